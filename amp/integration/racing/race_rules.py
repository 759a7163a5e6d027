"""The rules of a race: who is out, when it ends, who won.

`race.Race` takes the times and asks here after each call. Everything here is computed
from a `Log`; no function is called, no clock is read, no lock is held. What a race may
cost is in `race_budget`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from amp.integration.racing.paired_ranks import Interval, interval, typical
from amp.integration.racing.race_budget import budget, lost
from amp.integration.racing.race_log import FLOAT32, IN_FLOAT32, Log

USED_UP = "ended: the budget is used up; the fastest so far runs"
# What becomes of an entrant whose first call the budget does not allow for.
TOO_LONG = "would take too long to be made ready"
LATER = "is tried when making it ready takes 2 % of the job's time"
BEATEN = ("slower", "hopeless")  # why an entrant is out that lost
NEARLY = "ended: no other is faster by more than 2 %"

# How probable it may be, at one look in each meeting of a race, that one of entrants
# that are equally fast is taken for slower; the meetings share it. There are seven
# looks, each at half as many rounds more as the one before, so that all of them are
# wrong at most 7/64 of the times about entrants that are equally fast, and less the
# more these differ: see decision 20.
LEVEL, LOOKS, GROWTH = 1 / 64, 7, 1.5
# Two are equally fast if the ratio of their times is known to be within 2 %.
EQUAL = math.log(1.02)
# An entrant all of whose calls take longer than twice the leader's longest is out. One
# timed call is enough if another would cost more than a twentieth of the budget, a
# second or more: what makes a single call twice as long (another process, a page fault,
# a file that is written) mostly lasts less, so it explains a short call that was slow,
# and not a long one. At a hundredth, 3 % of simulated races lost the best of their
# plans, twice as fast as all others, to one stall.
HOPELESS, SECOND_LOOK = 2.0, 0.05
# What a first call may take longer for other reasons than what is compiled (estimates):
# so many calls, as kernels are made ready and memory is touched for the first time, and
# what it takes to make the plan; or by this factor, as no two compilations are alike.
READY, LONGER = 2, 1.3
# Where calls differ in their work, both need so many: of times uniform between 1 and 5,
# each of three is over twice as long as each of three others in 1 race of 900.
UNEVEN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Ruling:
    """What follows from a log.

    Attributes:
      out: who is out from now on, and why.
      winner: who has won; None while they race on.
      text: how it ended, for the report.
      last: whether the winner meets no further entrant.
    """

    out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    winner: str | None = None
    text: str = ""
    last: bool = False


# Given the log and the entrants that are not out, says what follows.
Judge = Callable[[Log, Sequence[str]], Ruling]


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a race.

    Attributes:
      judge: asked after calls that were timed.
      overlapped: asked after calls that others overlapped.
      cut_short: asked for the winner when there were as many calls as all looks take,
        but few of them could be timed.
    """

    judge: Judge
    cut_short: Judge
    overlapped: Judge = lambda log, running: Ruling()


def _often_timed(log: Log, names: Sequence[str]) -> Sequence[str]:
    """Those that were timed often enough for a look, or all where none was.

    In its first rounds one call of the other that was slow by chance would make a
    newcomer ten times as fast.
    """
    least = looks(log.entrants)[0]
    return [name for name in names if len(log.times(name)) >= least] or names


def judged(log: Log, running: Sequence[str]) -> Ruling:
    """The rules of a race.

    1. Who is hopeless is out.
    2. Once the budget is used up, the fastest so far has won.
    3. At each of the `looks`: who is slower than the leader, with confidence, is out.
    4. If one is at most 2 % slower than any other, with confidence, it has won: nothing
       is left to be gained. After the last look, the fastest so far has won.
    """
    out = {name: "hopeless" for name in running if _hopeless(log, name, running)}
    left = [name for name in running if name not in out]
    if lost(log) >= budget(log) and all(map(log.times, left)):
        front = leader(log, _often_timed(log, left))
        return Ruling(out, front, USED_UP, last=True)
    # Rounds of an earlier run may be enough, but a winner must have run in this one.
    if out or not all(map(log.times, left)) or not due(log, left, looks(log.entrants)):
        return Ruling(out)
    return _look(log, left)


def looks(count: int) -> list[int]:
    """After how many rounds of two their times are compared, in a race of so many.

    The first look is as early as it can tell: n rounds give a level of 2**-n at best.
    """
    first = math.ceil(math.log2((count - 1) / LEVEL))
    return [math.ceil(first * GROWTH**number) for number in range(LOOKS)]


def cut_short(log: Log, running: Sequence[str]) -> Ruling:
    """The winner of a race that ends before enough of its calls could be timed."""
    if all(map(log.times, running)):
        text = "ended: the fastest of few timed calls runs"
        return Ruling({}, leader(log, running), text)
    beside = {name: log.overlapped.get(name, ()) for name in running}
    if min(map(len, beside.values())) >= UNEVEN:
        usual = {name: statistics.median(times) for name, times in beside.items()}
        most = min(usual.values()) * math.exp(EQUAL)
        good = [name for name in running if usual[name] <= most]
        name = min(good, key=log.prediction)
        return Ruling({}, name, "ended: calls overlapped, and the fastest run")
    name = min(running, key=log.prediction)
    return Ruling({}, name, "ended as predicted: too few calls were timed alone")


def overlapped(log: Log, running: Sequence[str]) -> Ruling:
    """Who is hopeless where threads call at the same time, so that none is timed alone.

    All of whose calls, of at least `UNEVEN`, took more than `HOPELESS` times as long as
    each of another.
    """
    seen = {n: log.overlapped.get(n, ()) for n in running}
    known = {n: times for n, times in seen.items() if len(times) >= UNEVEN}
    longest = min(map(max, known.values()), default=math.inf)
    out = {n: "hopeless" for n, t in known.items() if min(t) > HOPELESS * longest}
    return Ruling(out)


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
    least = UNEVEN if log.uneven else 1
    beside = log.times_beside(front, name)
    if front == name or not beside or min(len(times), len(beside)) < least:
        return False
    fastest = min(*times, log.first.get(name, math.inf))
    if fastest <= HOPELESS * max(beside):
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
        relative, predicted = log.relative(name, FLOAT32), log.prediction(name)
        if relative is not None and predicted < math.inf:
            gain = math.log(predicted / log.prediction(FLOAT32))
            found = max(found, abs(relative - gain))
    return math.exp(found)


def _look(log: Log, running: Sequence[str]) -> Ruling:
    front = leader(log, running)
    level = LEVEL / (log.entrants - 1)

    def against(name: str, other: str) -> Interval:
        return interval(log.ratios(name, other), level)

    others = [name for name in running if name != front]
    out = {name: "slower" for name in others if against(name, front).low > 0}
    left = [name for name in running if name not in out]
    if len(left) == 1:
        return Ruling(out, front, f"ended: {is_faster(front)}")
    good = [
        name
        for name in left
        if all(against(name, one).high < EQUAL for one in left if one != name)
    ]
    if good:
        return Ruling(out, preferred(log, good, left), NEARLY)
    if log.rounds(running) >= looks(log.entrants)[-1]:
        text = f"ended without certainty: {is_faster(front)} so far"
        return Ruling(out, front, text)
    return Ruling(out)


def is_faster(name: str) -> str:
    """Who won, for the report."""
    if name == FLOAT32:
        return "float32 is faster"
    low = "float32 as rewritten is" if name in IN_FLOAT32 else "16 bits are"
    return f"{low} faster"


def preferred(log: Log, equal: Sequence[str], running: Sequence[str]) -> str:
    """Whom to take of several each of which is at most 2 % slower than any other.

    Of those in 16 bits, which take less memory than float32, and are ready `_soon`, the
    one that is predicted to be fastest. Where that seems to be slower than float32, the
    original or the user's own, the fastest so far of them and that.

    Args:
      log: of the race.
      equal: the several.
      running: all that are not out.
    """
    low = [name for name in equal if name not in IN_FLOAT32]
    soon = _soon(log, low or equal)
    favourite = min(soon, key=log.prediction)
    for own in (log.setup.plain, FLOAT32):
        if own in running and typical(log.ratios(favourite, own)) > 0:
            return leader(log, [*soon, own])
    return favourite


def _soon(log: Log, names: Sequence[str]) -> Sequence[str]:
    """Those whose first call was not much longer than the shortest, if that is known.

    Each start of the job has it again (XLA compiles clusters), and where calls take
    equally long nothing is gained by it.
    """
    if log.setup.warm in names:
        return names
    shortest = min(log.first[name] for name in names)
    longer = READY * (log.best or 0.0) + log.setup.making
    most = max(LONGER * shortest, shortest + longer)
    return [name for name in names if log.first[name] <= most]


RACE = Rules(judged, cut_short, overlapped)  # between all plans, or with a later one
