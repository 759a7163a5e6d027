"""The rules of a check: whether a race's winner still is faster than float32.

`race.Race` takes the times, as in a race of two, and asks here after its calls; when
there is a check is decided by `contest`. No function is called, no clock is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from amp.integration.racing.paired_ranks import interval
from amp.integration.racing.race_budget import excess
from amp.integration.racing.race_log import Log
from amp.integration.racing.race_rules import Ruling, due

# A check later on may cost 0.1 % of the calls since the last one. It looks at more
# pairs, at a lower level, because a job has many checks: twenty with three looks each
# are wrong at most 60/512 of the times about plans that are equally fast.
SHARE = 0.001
LOOKS, LEVEL = (10, 20, 40), 1 / 512
# How many timed calls of a winner tell, before float32 is called, whether it takes as
# long as when it won; and how many calls it has for that, as not all can be timed.
ALONE, CALLS_ALONE = 10, 20
# The calls after which a winner is checked, and how many calls of the original a check
# must be able to pay for.
CHECKS, EVERY, LEAST_CALLS = (200, 1000, 5000), 10_000, 3
# The calls after which a winner is checked that is doubted in this run of the job.
DOUBTED = 20


def checked(
    log: Log,
    running: Sequence[str],
    since: int,
    then: Mapping[str, float] | None = None,
) -> Ruling:
    """The rules of a check: the winner stays unless float32 is faster with confidence.

    1. If float32 was not called in this run of the job, and the winner takes about as
       long as when it won: it stays, and float32 is not called.
    2. Once the calls of float32 have lost what the check may cost, the winner stays.
    3. At each of `LOOKS`: if the winner is slower, float32 runs from now on; if
       it is faster, with confidence, or after the last look, it stays.

    Args:
      log: of this check alone.
      running: the winner and the original, in this order.
      since: how many calls the winner had since the last check.
      then: seconds of a call of both when it won, if float32 was not called since.
    """
    winner, original = running
    mine = log.median(winner)
    if then and original not in log.first:
        # One of them cannot be timed while threads call at once: float32 comes then.
        alone = mine if len(log.times(winner)) >= ALONE else None
        same = alone is not None and _is_as_then(alone, then[winner], then[original])
        text = "takes as long as when it won"
        return Ruling({original: "not called"}, winner, text) if same else Ruling()
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


def _is_as_then(now: float, own: float, other: float) -> bool:
    """Whether a time is nearer to the winner's own than to float32's, or as near.

    By ratios, to either side: where the winner takes clearly less than when it won,
    another machine was measured then, and float32 may take less as well.
    """
    return abs(math.log(now / own)) <= math.log(other / own) / 2


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
