"""What a race may cost, and what it has cost so far.

Everything here is computed from a `Log`; who is out is not decided here.
"""

from __future__ import annotations

import itertools
import math
import statistics

from amp.graph_rewrite.assign.nominee import REWRITTEN
from amp.integration.racing.race_log import FLOAT32, Log

# What a race may lose, in wall-clock time: 2 % of 500 steps or 20 s, whichever is more.
SHARE, STEPS, SECONDS = 0.02, 500, 20.0


def budget(log: Log) -> float:
    """The seconds that a race may lose, from what is known of the step's length."""
    return allowed(log.best or 0.0, log.setup.steps)


def allowed(step: float, steps: int) -> float:
    """The seconds that all races of a function may lose together.

    Args:
      step: seconds of a call.
      steps: how many the job has had; 2 % may be lost of more than `STEPS` as well.
    """
    return max(SHARE * max(STEPS, steps) * step, SECONDS)


def lost(log: Log, *, whole: bool = False) -> float:
    """The seconds that a race has lost: what its calls took beyond the faster's.

    Of two that met, the calls of the slower one count, by the median ratio of their
    times, so that what delays a call by chance is not held against the race. First
    calls count with all that they took longer (to make, instantiate or compile the
    function), but for the very first, unless `whole`: without a race one function would
    have had to be made ready as well. What earlier races of the function lost counts.
    """
    usual = log.best
    if usual is None:
        return log.setup.spent
    first = list(log.first.values())[0 if whole else 1 :]
    ready = sum(max(0.0, seconds - usual) for seconds in first)
    pairs = itertools.combinations(log.timed, 2)
    return log.setup.spent + ready + sum(_lost_between(log, *pair) for pair in pairs)


def _lost_between(log: Log, name: str, other: str) -> float:
    """What the calls of the slower of two took longer, those not timed included."""
    rounds = log.met(name, other)
    if not rounds:
        return 0.0
    apart = statistics.median(log.ratios(name, other))
    slower, faster = (name, other) if apart > 0 else (other, name)
    timed = len(log.times(slower))
    calls = rounds * max(1.0, (log.calls.get(slower, 0) - 1) / timed)
    return calls * (log.median(faster) or 0.0) * (math.exp(abs(apart)) - 1)


def excess(log: Log, name: str, front: str) -> float:
    """The seconds that a typical call of an entrant takes beyond the front's.

    By their ratios within rounds, which met the same machine; by medians if there is no
    common round, and 0 if the entrant was not timed.
    """
    base, relative = log.median(front) or 0.0, log.relative(name, front)
    if relative is not None:
        return base * (math.exp(relative) - 1)
    return (log.median(name) or base) - base


def affordable(log: Log, name: str) -> bool:
    """Whether the budget allows for the first call of one more entrant.

    Float32 always is allowed, as it has to be made ready only where XLA compiles it:
    the clusters of a twin make its first call long, and float32 has none; and so is the
    user's own float32, where the original has a loss scale that was added to it. Where
    float32 was ready before the race, all first calls are charged: if it wins, all were
    lost.
    """
    free = name in (FLOAT32, log.setup.plain) and not log.setup.compiled
    if log.best is None or not log.first or free:
        return True
    making = 0.0 if name == FLOAT32 else log.setup.making
    so_far = lost(log, whole=log.setup.stepped)
    return so_far + _readying(log, name) + making <= budget(log)


def _readying(log: Log, name: str = FLOAT32) -> float:
    """The seconds that one more first call takes: as the longest one so far.

    Rewritten in float32, a function has no clusters to compile: as the shortest.
    """
    first = log.first.values()
    soon = name == REWRITTEN.name and not log.setup.compiled
    seconds = min(first) if soon else max(log.setup.longest, *first)
    return seconds - (log.best or 0.0)


def calls_until_affordable(log: Log) -> int:
    """How many calls there are to be before one more first call is `SHARE` of them.

    Then float32 may be tried if the budget of the race did not allow for it: as the
    race may lose 2 % of the first 500 steps, it may lose 2 % of more steps later.
    """
    return math.ceil(_readying(log) / SHARE / log.best) if log.best else 0
