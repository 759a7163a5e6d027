"""The `AMP_*` variables that the package reads, and those that it does not know.

Asked by `amp doctor`, by the command before it starts anything, and at the start of a
job under `AMP_ENABLE=1`. No value is understood here: a field of `Policy` parses its
own, and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Iterable

from amp import spelling
from amp.policy import FIELDS

PREFIX = "AMP_"
# Those that stand for no field of a policy.
OTHERS = ("AMP_ENABLE", "AMP_CACHE_DIR")


def known() -> tuple[str, ...]:
    """Every variable that has a meaning."""
    return (*(field.variable for field in FIELDS.values()), *OTHERS)


def unknown(environ: Iterable[str]) -> dict[str, str | None]:
    """The variables that look like ours and are not.

    Args:
      environ: the names of all variables that are set.

    Returns:
      By their names, the variable that was probably meant, or None.
    """
    names = known()
    strange = [n for n in environ if n.upper().startswith(PREFIX) and n not in names]
    return {name: spelling.closest(name, names) for name in sorted(strange)}


def complaint(environ: Iterable[str]) -> str:
    """One line about the variables that have no meaning, "" if there are none."""
    found = unknown(environ)
    if not found:
        return ""
    meant = [name + (f" (did you mean {m}?)" if m else "") for name, m in found.items()]
    are = "is no variable" if len(found) == 1 else "are no variables"
    return f"{', '.join(meant)} {are} of this package and changes nothing"
