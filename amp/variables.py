"""The `AMP_*` variables that the package reads, and those that it does not know.

Asked by `amp doctor`, by the command before it starts anything, and at the start of a
job under `AMP_ENABLE=1`. Of values only switches are understood here: a field of
`Policy` parses its own, and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from amp import spelling
from amp.policy import FIELDS, WORDS

PREFIX = "AMP_"
# Those that stand for no field of a policy.
OTHERS = ("AMP_ENABLE", "AMP_CACHE_DIR")


def known() -> tuple[str, ...]:
    """Every variable that has a meaning."""
    return (*(field.variable for field in FIELDS.values()), *OTHERS)


def switch(environ: Mapping[str, str], name: str = "AMP_ENABLE") -> bool | None:
    """Whether a variable is on; off where it is not set, None if it says neither."""
    return WORDS.get(environ.get(name, "").strip().lower())


def unknown(environ: Iterable[str]) -> dict[str, str | None]:
    """The variables that look like ours and are not.

    Args:
      environ: the names of all variables that are set.

    Returns:
      By their names, the variable that was probably meant, or None.
    """
    names = known()
    strange = [n for n in environ if n.upper().startswith(PREFIX) and n not in names]
    return {name: _meant(name, names) for name in sorted(strange)}


def _meant(name: str, names: Iterable[str]) -> str | None:
    """The closest name, but for the prefix, by which all of them are alike."""
    by_rest = {known.removeprefix(PREFIX): known for known in names}
    found = spelling.closest(name[len(PREFIX) :], by_rest)
    return None if found is None else by_rest[found]


def complaint(environ: Iterable[str]) -> str:
    """One line about the variables that have no meaning, "" if there are none."""
    found = unknown(environ)
    if not found:
        return ""
    meant = [name + (f" (did you mean {m}?)" if m else "") for name, m in found.items()]
    if len(found) == 1:
        return f"{meant[0]} is no variable of this package and changes nothing"
    return f"{', '.join(meant)} are no variables of this package and change nothing"
