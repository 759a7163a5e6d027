"""A machine with a clock of its own, for tests of races; no test lives here."""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Mapping
from typing import Any

from amp.graph_rewrite.outcomes import TrialOutcome
from amp.integration.racing import race_rules
from amp.integration.racing.race import Listener, Race
from amp.integration.racing.race_log import FLOAT32, Log, Setup
from amp.integration.racing.race_rules import Rules


class Machine:
    """Calls entrants whose true times are known, with noise, and counts their calls.

    Args:
      true: seconds of a call of each; the favourite is the first.
      seed: of the noise.
      noise: standard deviation of the logarithm of a time.
      slow: share of calls that take 2 to 10 times as long.
      bursts: share of calls at which 5 to 30 calls begin that take 1.6 times as long.
      flips: share of calls at which the machine becomes 1.5 times slower, or faster.
      drift: relative growth of times with each call.
      first: seconds that a first call takes longer, as XLA compiles.
      stepped: whether float32 had run before the race: XLA does not compile it.
      stalls: seconds from the end of a stall to the next, on average; in one, which
        takes 2 to 5 seconds, calls take 1.5 times as long.
      lengths: the shortest and the longest sequence of a batch. A call takes its true
        time at a length of 60, of which 30 % does not depend on the length, and 20 %
        grows with its square.
      hidden: whether the race is not told the lengths.
    """

    def __init__(self, true: Mapping[str, float], seed: int = 0, **traits: Any) -> None:
        self.true, self.traits = dict(true), traits
        self.draw = random.Random(seed)
        self.now, self.state, self.burst = 0.0, 1.0, 0
        self.excess = 0.0  # seconds that calls would have taken less by the fastest
        self.stall = 0.0, 0.0  # from when to when
        self.work = 1.0
        self.calls: collections.Counter[str] = collections.Counter()
        self.outcomes: list[TrialOutcome] = []

    def race(self, judge: race_rules.Judge = race_rules.judged) -> TrialOutcome:
        favourite, *others = (name for name in self.true if name != FLOAT32)
        names = [favourite, FLOAT32, *others]
        predicted = {name: 1.0 + 0.01 * i for i, name in enumerate(names)}
        hidden = bool(self.traits.get("hidden"))
        stepped = bool(self.traits.get("stepped"))
        compiled = bool(self.traits.get("first")) and not stepped
        log = Log(predicted, Setup(compiled=compiled, uneven=hidden, stepped=stepped))
        listener = Listener(
            ended=lambda _, outcome: self.outcomes.append(outcome),
            released=lambda *_: None,
        )
        rules = Rules(judge, race_rules.cut_short)
        race = Race(names, rules, log, listener, lambda: self.now)
        while not self.outcomes:
            self.work = float(self.draw.randint(*self.traits.get("lengths", (60, 60))))
            race.call(self.run, 1.0 if hidden else self.work)
        return self.outcomes[0]

    def run(self, name: str) -> None:
        draw, has = self.draw, self.traits.get
        length = self.work / 60
        longer = 0.3 + 0.5 * length + 0.2 * length**2
        self.excess += (self.true[name] - min(self.true.values())) * longer
        seconds = (
            self.true[name] * longer * math.exp(draw.gauss(0.0, has("noise", 0.05)))
        )
        if draw.random() < has("slow", 0.0):
            seconds *= draw.uniform(2.0, 10.0)
        if self.burst:
            self.burst -= 1
            seconds *= 1.6
        elif draw.random() < has("bursts", 0.0):
            self.burst = draw.randrange(5, 30)
        if draw.random() < has("flips", 0.0):
            self.state = 1.5 / self.state
        seconds *= self.state * math.exp(has("drift", 0.0) * self.calls.total())
        if has("stalls") and self.now >= self.stall[1]:
            begin = self.now + draw.expovariate(1 / has("stalls"))
            self.stall = begin, begin + draw.uniform(2.0, 5.0)
        if has("stalls") and self.now >= self.stall[0]:
            seconds *= 1.5
        ready = self.calls[name] or (name == FLOAT32 and has("stepped"))
        self.now += seconds + (0.0 if ready else has("first", 0.0))
        self.calls[name] += 1

    @property
    def lost(self) -> float:
        """The seconds that calls took beyond the fastest's true time."""
        made_ready = len(self.calls) - 1  # one would have been without a race
        return self.traits.get("first", 0.0) * made_ready + self.excess


def winner(outcome: TrialOutcome) -> str:
    (won,) = [plan.name for plan in outcome.plans if plan.fate == "won"]
    return won


# What is seen on machines that others use too.
MACHINES = (
    {"noise": 0.05},
    {"noise": 0.1},
    {"noise": 0.05, "slow": 0.05},
    {"noise": 0.05, "bursts": 0.05},
    {"noise": 0.05, "flips": 0.02},
    {"noise": 0.03, "drift": 0.003},
    {"noise": 0.02, "stalls": 20.0},
    {"noise": 0.02, "stalls": 20.0, "lengths": (20, 100)},
)
