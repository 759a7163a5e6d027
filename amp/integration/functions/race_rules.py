"""The rules of a race: who is out, when it ends, who won, and what it may cost.

`race.Race` takes the times and asks here after each call. Everything here is computed
from a `Log`; no function is called, no clock is read, no lock is held.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence

from amp.integration.functions.paired_ranks import Interval, interval, typical

FLOAT32 = "float32"  # the name of the original among the entrants
USED_UP = "ended: the budget is used up; the fastest so far runs"
# What becomes of an entrant whose first call the budget does not allow for.
TOO_LONG = "would take too long to be made ready"
LATER = "is tried when making it ready takes 2 % of the job's time"

# What a race may lose, in wall-clock time: 2 % of 500 steps or 20 s, whichever is more.
SHARE, STEPS, SECONDS = 0.02, 500, 20.0
# How probable it may be, at each look at the times, that one of several entrants that
# are equally fast is taken for slower; the leader is compared with each of the others.
# There are five looks, each at twice as many rounds as the one before, so that all of
# them together are wrong at most 5/64 of the times about entrants that are equally
# fast, and less the more these differ: see decision 20.
LEVEL, LOOKS = 1 / 64, 5
# Two are equally fast if the ratio of their times is known to be within 2 %.
EQUAL = math.log(1.02)
# An entrant all of whose calls take longer than twice the leader's longest is out. One
# timed call is enough if another would cost more than a hundredth of the budget: what
# makes a single call twice as long (another process, a page fault) lasts milliseconds,
# so it explains a short call that was slow, and not a long one.
HOPELESS, SECOND_LOOK = 2.0, 0.01


class Log:
    """What has been measured in a race so far.

    Args:
      predicted: seconds of a call by the cost model, by the entrant's name, as far as
        known; may be added to.
      making: seconds that it is expected to take to make an entrant other than float32.
      compiled: whether XLA compiles the function, float32 too.

    Attributes:
      predicted, making, compiled: as given.
      first: seconds of each entrant's first call, in the order in which they began.
      calls: how many calls of each have ended, also those that were not timed.
      looked: with how many rounds the times were last compared.
    """

    def __init__(
        self, predicted: dict[str, float], making: float = 0.0, compiled: bool = False
    ) -> None:
        self.predicted, self.making, self.compiled = predicted, making, compiled
        self.first: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.looked = 0
        self._times: dict[str, list[float]] = {}
        self._logarithms: dict[str, dict[int, float]] = {}  # by the round

    def add(self, name: str, number: int, seconds: float) -> None:
        """Notes a timed call of an entrant, in a round."""
        self._times.setdefault(name, []).append(seconds)
        self._logarithms.setdefault(name, {})[number] = math.log(seconds)

    @property
    def timed(self) -> list[str]:
        """The entrants that were timed at least once."""
        return list(self._times)

    def times(self, name: str) -> list[float]:
        """The seconds of the timed calls of an entrant, in their order."""
        return self._times.get(name, [])

    def median(self, name: str) -> float | None:
        """The median of the timed calls of an entrant, None if there are none."""
        times = self._times.get(name)
        return statistics.median(times) if times else None

    def rounds(self, names: Sequence[str]) -> int:
        """In how many rounds each of some entrants was timed."""
        held = [self._logarithms.get(name, {}).keys() for name in names]
        return len(functools.reduce(operator.and_, held)) if held else 0

    def ratios(self, name: str, other: str) -> list[float]:
        """The logarithms of time / other's time, one for each common round."""
        others = self._logarithms.get(other, {})
        mine = self._logarithms.get(name, {})
        return [time - others[r] for r, time in mine.items() if r in others]

    def prediction(self, name: str) -> float:
        """The predicted seconds of a call, infinite where they are not known."""
        return self.predicted.get(name, math.inf)

    @property
    def best(self) -> float | None:
        """The lowest median of any entrant, also of those that are out."""
        medians = [m for m in map(self.median, self._times) if m is not None]
        return min(medians, default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class Ruling:
    """What follows from a log.

    Attributes:
      out: who is out from now on, and why.
      winner: who has won; None while the race goes on.
      text: how it ended, for the report.
    """

    out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    winner: str | None = None
    text: str = ""


# Given the log and the entrants that are not out, says what follows.
Judge = Callable[[Log, Sequence[str]], Ruling]


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a race.

    Attributes:
      judge: asked after calls that were timed.
      cut_short: asked for the winner when there were as many calls as all looks take,
        but few of them could be timed.
    """

    judge: Judge
    cut_short: Judge


def budget(log: Log) -> float:
    """The seconds that a race may lose, from what is known of the step's length."""
    return max(SHARE * STEPS * (log.best or 0.0), SECONDS)


def lost(log: Log) -> float:
    """The seconds that a race has lost: what its calls took beyond the fastest's.

    An entrant's calls count by their typical time, so that what delays a call by chance
    is not held against the race. First calls count with all that they took longer (to
    make, instantiate or compile the function), but for the very first: without a race
    one function would have had to be made ready as well.
    """
    timed = {name: median for name in log.timed if (median := log.median(name))}
    if not timed:
        return 0.0
    front = min(timed, key=lambda name: timed[name])
    total = 0.0
    for number, (name, first) in enumerate(log.first.items()):
        excess = _excess(log, name, front)
        total += (log.calls.get(name, 1) - 1) * excess
        total += max(0.0, first - timed[front]) if number else excess
    return total


def _excess(log: Log, name: str, front: str) -> float:
    """The seconds that a typical call of an entrant takes beyond the front's.

    By their ratios within rounds, which met the same machine; by medians if there is no
    common round, and 0 if the entrant was not timed.
    """
    base = log.median(front) or 0.0
    if ratios := log.ratios(name, front):
        return base * (math.exp(statistics.median(ratios)) - 1)
    return (log.median(name) or base) - base


def affordable(log: Log, name: str) -> bool:
    """Whether the budget allows for the first call of one more entrant.

    Float32 always is allowed, as it has to be made ready only where XLA compiles it:
    the clusters of a twin make its first call long, and float32 has none.
    """
    if log.best is None or not log.first or (name == FLOAT32 and not log.compiled):
        return True
    making = 0.0 if name == FLOAT32 else log.making
    return lost(log) + _readying(log) + making <= budget(log)


def _readying(log: Log) -> float:
    """The seconds that one more first call takes: as the longest one so far."""
    return max(log.first.values()) - (log.best or 0.0)


def calls_until_affordable(log: Log) -> int:
    """How many calls there are to be before one more first call is `SHARE` of them.

    Then float32 may be tried if the budget of the race did not allow for it: as the
    race may lose 2 % of the first 500 steps, it may lose 2 % of more steps later.
    """
    return math.ceil(_readying(log) / SHARE / log.best) if log.best else 0


def judged(log: Log, running: Sequence[str]) -> Ruling:
    """The rules of a race.

    1. Who is hopeless is out.
    2. Once the budget is used up, the fastest so far has won.
    3. At each of the `looks`: who is slower than the leader, with confidence, is out.
    4. If all others are as fast as the leader, with confidence, or after the last look,
       the race ends.
    """
    out = {name: "hopeless" for name in running if _hopeless(log, name, running)}
    left = [name for name in running if name not in out]
    if lost(log) >= budget(log) and all(map(log.times, left)):
        return Ruling(out, leader(log, left), USED_UP)
    if out or not due(log, left, looks(len(left))):
        return Ruling(out)
    return _look(log, left)


def looks(count: int) -> list[int]:
    """After how many rounds the times of so many entrants are compared.

    The first look is as early as it can tell: n rounds give a level of 2**-n at best.
    """
    first = math.ceil(math.log2((count - 1) / LEVEL))
    return [first * 2**number for number in range(LOOKS)]


def cut_short(log: Log, running: Sequence[str]) -> Ruling:
    """The winner of a race that ends before enough of its calls could be timed."""
    if all(map(log.times, running)):
        text = "ended: the fastest of few timed calls runs"
        return Ruling({}, leader(log, running), text)
    name = min(running, key=log.prediction)
    return Ruling({}, name, "ended as predicted: too few calls were timed alone")


def due(log: Log, running: Sequence[str], looks: Sequence[int]) -> bool:
    """Whether there are enough rounds for the next look."""
    rounds = log.rounds(running)
    return any(log.looked < look <= rounds for look in looks)


def _hopeless(log: Log, name: str, running: Sequence[str]) -> bool:
    times, best = log.times(name), log.best
    if not times or best is None:
        return False
    front = min(
        filter(log.times, running), key=lambda each: log.median(each) or math.inf
    )
    fastest = min(*times, log.first.get(name, math.inf))
    if front == name or fastest <= HOPELESS * max(log.times(front)):
        return False
    cost = statistics.median(times) - best
    return len(times) > 1 or cost > SECOND_LOOK * budget(log)


def leader(log: Log, running: Sequence[str]) -> str:
    """The fastest so far; the one that is predicted fastest where none was timed.

    By the typical ratio to one of them within rounds, in which they met the same
    machine; by medians if there is no round that they all have.
    """
    timed = list(filter(log.times, running))
    if not timed:
        return min(running, key=log.prediction)
    if log.rounds(timed):
        return min(timed, key=lambda name: typical(log.ratios(name, timed[0])))
    return min(timed, key=lambda name: log.median(name) or math.inf)


def doubt(log: Log) -> float:
    """The largest factor, at least 1, by which a gain over float32 was mispredicted."""
    found = 0.0
    for name in log.timed:
        ratios, predicted = log.ratios(name, FLOAT32), log.prediction(name)
        if ratios and predicted < math.inf:
            gain = math.log(predicted / log.prediction(FLOAT32))
            found = max(found, abs(statistics.median(ratios) - gain))
    return math.exp(found)


def _look(log: Log, running: Sequence[str]) -> Ruling:
    front = leader(log, running)
    level = LEVEL / (len(running) - 1)
    others = {
        name: interval(log.ratios(name, front), level)
        for name in running
        if name != front
    }
    out = {name: "slower" for name, found in others.items() if found.low > 0}
    left = [name for name in running if name not in out]
    if len(left) == 1:
        return Ruling(out, front, f"ended: {is_faster(front)}")
    if all(_is_equal(others[name]) for name in left if name != front):
        return Ruling(out, preferred(log, left), "ended: they are equally fast")
    if log.rounds(running) >= looks(len(running))[-1]:
        text = "ended without certainty: they are about equally fast"
        return Ruling(out, preferred(log, left), text)
    return Ruling(out)


def is_faster(name: str) -> str:
    """Who won, for the report."""
    return "float32 is faster" if name == FLOAT32 else "16 bits are faster"


def _is_equal(found: Interval) -> bool:
    return found.low > -EQUAL and found.high < EQUAL


def preferred(log: Log, equal: Sequence[str]) -> str:
    """Whom to take of several that cannot be told apart.

    The one that is predicted to be fastest: it is in 16 bits, so it takes the least
    memory. The one in front if that seems to be slower than float32, or more than 2 %
    slower than the one in front.
    """
    front, favourite = leader(log, equal), min(equal, key=log.prediction)
    if typical(log.ratios(favourite, front)) > EQUAL:
        return front
    if FLOAT32 in equal and typical(log.ratios(favourite, FLOAT32)) > 0:
        return front
    return favourite
