"""Finds the name that was probably meant where a name is not known.

No name of the package is known here: the caller gives those that there are.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most like `name`, None if none is much like it.

    Case does not count: `amp_dtype` is most like `AMP_DTYPE`.
    """
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[found[0]] if found else None


def hint(name: str, known: Iterable[str], otherwise: str) -> str:
    """Returns "did you mean ...?" for a name that is not known, or `otherwise`."""
    found = closest(name, known)
    return otherwise if found is None else f"did you mean {found}?"
