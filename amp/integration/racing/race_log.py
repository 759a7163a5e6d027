"""`Log`: what has been measured in a race so far.

`race.Race` fills it, and `race_rules` computes from it who is out. Nothing is decided
here, no function is called, and no clock is read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amp.graph_rewrite.assign.nominee import REWRITTEN
from amp.integration.racing import work_effect
from amp.integration.racing.work_effect import Point

FLOAT32 = "float32"  # the name of the original among the entrants
IN_FLOAT32 = (FLOAT32, REWRITTEN.name)


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """What is known of a race before its first call.

    Attributes:
      plain: the entrant that does what the user's program does without this package:
        the original, or it without a loss scale that was added to it.
      making: seconds that it is expected to take to make an entrant other than float32.
      compiled: whether XLA compiles the function, float32 too.
      uneven: whether calls may differ in their work without telling by how much.
      stepped: whether a call was made in float32 before the race.
      warm: the entrant that had calls before the race, "" if there is none.
      longest: seconds of the longest first call that is known of earlier races, 0 if
        none is.
      spent: seconds that earlier races of the function have lost.
      steps: how many calls it had before the race.
    """

    plain: str = FLOAT32
    making: float = 0.0
    compiled: bool = False
    uneven: bool = False
    stepped: bool = False
    warm: str = ""
    longest: float = 0.0
    spent: float = 0.0
    steps: int = 0


class Log:
    """What has been measured in a race so far.

    Args:
      predicted: seconds of a call by the cost model, by the entrant's name, as far as
        known; may be added to.
      setup: what is known before the race.

    Attributes:
      predicted, setup: as given.
      first: seconds of each entrant's first call, in the order in which they began.
      calls: how many calls of each have ended, also those that were not timed.
      overlapped: seconds of the calls of each that others overlapped.
      looked: with how many rounds the times were last compared.
      uneven: whether calls differ in their work, or may do so.
      entrants: how many race in all, one after another.
    """

    def __init__(self, predicted: dict[str, float], setup: Setup | None = None) -> None:
        self.predicted, self.setup = predicted, setup or Setup()
        self.first: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.overlapped: dict[str, list[float]] = {}
        self.looked, self.entrants = 0, 2
        self.uneven = self.setup.uneven
        self._times: dict[str, list[float]] = {}
        self._rounds: dict[str, list[int]] = {}  # of the same calls
        self._points: dict[str, dict[int, Point]] = {}  # by entrant and round
        self._works: set[float] = set()  # their logarithms
        self._effect: work_effect.Effect | None = None  # None: to be fitted

    def add(self, name: str, number: int, seconds: float, work: float = 1.0) -> None:
        """Notes a timed call of an entrant, in a round.

        Args:
          name: the entrant's.
          number: of the round.
          seconds: that the call took.
          work: what its time grows with; the same for all calls if that is not known.
        """
        self._times.setdefault(name, []).append(seconds)
        self._rounds.setdefault(name, []).append(number)
        point = math.log(max(work, 1.0)), math.log(seconds)
        self._points.setdefault(name, {})[number] = point
        self._works.add(point[0])
        self.uneven = self.uneven or len(self._works) > 1
        self._effect = None

    def kept(self) -> dict[str, Any]:
        """What a later run of the job can go on from, to be stored as JSON."""
        points = {name: list(each.items()) for name, each in self._points.items()}
        return {"uneven": self.uneven, "points": points}

    def go_on_from(self, kept: Mapping[str, Any]) -> None:
        """Takes over the rounds of an earlier run's race, before the first of this one.

        They tell as much as those to come, as in each the entrants met one machine. The
        seconds of single calls are not taken over: the machine may be slower by now.

        Args:
          kept: of the earlier log.
        """
        points: Mapping[str, Sequence[tuple[int, Point]]] = kept["points"]
        numbers = [number for each in points.values() for number, _ in each]
        shift = 1 + max(numbers, default=0)  # this run's rounds begin with 0
        for name, each in points.items():
            earlier = {number - shift: (work, time) for number, (work, time) in each}
            self._points[name] = earlier
            self._works.update(work for work, _ in earlier.values())
        self.uneven = self.uneven or bool(kept["uneven"])

    @property
    def timed(self) -> list[str]:
        """The entrants that were timed at least once."""
        return list(self._times)

    def times(self, name: str) -> list[float]:
        """The seconds of the timed calls of an entrant, in their order."""
        return self._times.get(name, [])

    def times_beside(self, name: str, other: str) -> list[float]:
        """The seconds of an entrant's timed calls since another's first one."""
        since = min(self._rounds.get(other, ()), default=math.inf)
        rounds = self._rounds.get(name, ())
        timed = zip(rounds, self.times(name), strict=True)
        return [seconds for number, seconds in timed if number >= since]

    def median(self, name: str) -> float | None:
        """The median of the timed calls of an entrant, None if there are none."""
        times = self._times.get(name)
        return statistics.median(times) if times else None

    def rounds(self, names: Sequence[str]) -> int:
        """In how many rounds each of some entrants was timed."""
        held = [self._points.get(name, {}).keys() for name in names]
        return len(functools.reduce(operator.and_, held)) if held else 0

    def met(self, name: str, other: str) -> int:
        """In how many rounds of this run both of two were timed."""
        own, others = self._rounds.get(name, ()), self._rounds.get(other, ())
        return len(set(own).intersection(others))

    def ratios(self, name: str, other: str) -> list[float]:
        """The logarithms of time / other's time, one for each common round.

        As far as the work of the two calls is known to differ, its effect is taken out.
        """
        mine, others = self._levels(name), self._levels(other)
        return [time - others[r] for r, time in mine.items() if r in others]

    def relative(self, name: str, other: str) -> float | None:
        """The logarithm of time / other's time, a median over common rounds.

        Of two that never met it is the sum along others that did, each pair of which
        met the same machine. None where nothing leads from one to the other.
        """
        known, waiting = {name: 0.0}, [name]
        while waiting and other not in known:
            one = waiting.pop(0)
            for each in self._points:
                if each not in known and (ratios := self.ratios(one, each)):
                    known[each] = known[one] + statistics.median(ratios)
                    waiting.append(each)
        return known.get(other)

    def _levels(self, name: str) -> dict[int, float]:
        """By the round, the logarithm of the time, less what follows from the work."""
        points = self._points.get(name, {})
        times = [time for _, time in points.values()]
        if len(self._works) > 1:
            effect = self._effect or self._fitted()
            works = np.array([work for work, _ in points.values()])
            times = (np.array(times) - effect(works)).tolist()
        return dict(zip(points, times, strict=True))

    def _fitted(self) -> work_effect.Effect:
        rounds: dict[int, list[Point]] = {}
        for points in self._points.values():
            for number, point in points.items():
                rounds.setdefault(number, []).append(point)
        self._effect = work_effect.fitted(list(rounds.values()))
        return self._effect

    def prediction(self, name: str) -> float:
        """The predicted seconds of a call, infinite where they are not known."""
        return self.predicted.get(name, math.inf)

    @property
    def best(self) -> float | None:
        """The lowest median of any entrant, also of those that are out."""
        medians = [m for m in map(self.median, self._times) if m is not None]
        return min(medians, default=None)
