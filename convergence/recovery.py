"""Whether loss scaling recovers what is lost without it, where a family needs scaling.

The clause of such families where equality is not found: what is lost without scaling
is the yardstick, which shows at a noise at which 2 % does not. Arithmetic on paired
differences; no runs are read and no margins are known here.
"""

from __future__ import annotations

from collections.abc import Sequence

from convergence import equivalence
from convergence.equivalence import DIFFERENT, EQUAL, UNDECIDED

KEPT = 0.5  # of what is lost without scaling, what may stay lost with it


def outcome(
    worse: Sequence[float], bare: Sequence[float | None]
) -> tuple[str, tuple[float, float]]:
    """What pairs say of a setting: that it recovers more than half, less, or neither.

    A trial of non-inferiority to float32 whose margin is half of the effect, which is
    measured in the same trial. (ICH E10 of 2000 takes it from earlier ones.) Of each
    seed::

        x = worse - KEPT * bare

    `EQUAL` if the 90 % interval of the mean of x lies under 0, `DIFFERENT` if it lies
    over 0, else `UNDECIDED`.

    Args:
      worse: of each seed, by how much the setting is worse than float32.
      bare: the same without scaling; None where that run has no finite loss, and there
        is nothing that could be worse.

    Returns:
      The outcome, and the interval; one without width at 0 if no pair is left.
    """
    left = [
        own - KEPT * lost
        for own, lost in zip(worse, bare, strict=True)
        if lost is not None
    ]
    if not left:
        return EQUAL, (0.0, 0.0)
    low, high = equivalence.interval(left)
    said = EQUAL if high < 0 else DIFFERENT if low > 0 else UNDECIDED
    return said, (low, high)
