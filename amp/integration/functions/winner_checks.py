"""The rules of a check: whether a race's winner still is faster than float32.

`race.Race` takes the times, as in a race of two, and asks here after its calls; when
there is a check is decided by `contest`. No function is called, no clock is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from amp.integration.functions.paired_ranks import interval
from amp.integration.functions.race_log import Log
from amp.integration.functions.race_rules import Ruling, due, excess

# A check later on may cost 0.1 % of the calls since the last one. It looks at more
# pairs, at a lower level, because a job has many checks: twenty with three looks each
# are wrong at most 60/512 of the times about plans that are equally fast.
SHARE = 0.001
LOOKS, LEVEL = (10, 20, 40), 1 / 512
# The calls after which a winner is checked, and how many calls of the original a check
# must be able to pay for.
CHECKS, EVERY, LEAST_CALLS = (200, 1000, 5000), 10_000, 3


def checked(log: Log, running: Sequence[str], since: int) -> Ruling:
    """The rules of a check: the winner stays unless float32 is faster with confidence.

    1. Once the calls of float32 have lost what the check may cost, the winner stays.
    2. At each of `LOOKS`: if the winner is slower, float32 runs from now on; if
       it is faster, with confidence, or after the last look, it stays.

    Args:
      log: of this check alone.
      running: the winner and the original, in this order.
      since: how many calls the winner had since the last check.
    """
    winner, original = running
    mine = log.median(winner)
    if mine is None or not log.times(original):
        return Ruling()
    stays = Ruling({original: "checked"}, winner, "still the faster")
    if (log.calls[original] + 1) * excess(log, original, winner) > SHARE * since * mine:
        return stays
    if not due(log, running, LOOKS):
        return Ruling()
    found = interval(log.ratios(winner, original), LEVEL)
    if found.low > 0:
        text = "float32 became the faster: found by a check"
        return Ruling({winner: "slower"}, original, text)
    if found.high < 0 or log.rounds(running) >= LOOKS[-1]:
        return stays
    return Ruling()


def cut_short(log: Log, running: Sequence[str]) -> Ruling:
    """The outcome of a check of which too few calls could be timed: nothing new."""
    return Ruling({running[-1]: "checked"}, running[0], "not enough could be timed")


def calls_to_check(done: int, ratio: float) -> int:
    """How many calls the winner has before its next check.

    Args:
      done: how many checks it has had.
      ratio: the original's time over the winner's, as far as known.
    """
    planned = (0, *CHECKS)
    calls = planned[done + 1] - planned[done] if done < len(CHECKS) else EVERY
    return max(calls, math.ceil(LEAST_CALLS * (ratio - 1) / SHARE))
