"""What a run raises that is none of the suite's own errors, with its name put to it.

In a module of its own, because the digest of each run's code has `errors` in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from amp.errors import AmpError
from convergence.errors import DataError, ResultError


class FamilyError(AmpError, RuntimeError):
    """A run of a family that raised something else than the suite's own errors."""


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Has what is raised say where: the family, and what of it was run.

    Raises:
      FamilyError: in the place of all but the suite's own errors.
    """
    try:
        yield
    except (DataError, ResultError, FamilyError):
        raise
    except Exception as e:
        text = str(e).strip() or "without a message"
        raise FamilyError(
            f"{type(e).__name__}: {text.splitlines()[0]}",
            where=where,
            allowed="steps that run, and training that raises nothing",
            remedy="run this family alone; if float32 trains, the package is at fault",
        ) from e


def together(failed: Sequence[FamilyError]) -> FamilyError:
    """One error of several families."""
    first = failed[0]
    if len(failed) == 1:
        return first
    return FamilyError(
        "; ".join(each.found for each in failed),
        where="; ".join(each.where for each in failed),
        allowed=first.allowed,
        remedy=first.remedy,
    )
