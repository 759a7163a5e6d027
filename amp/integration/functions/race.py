"""`Race`: times the calls of a function, by turns its original and its rewritten forms.

Used by `contest`, which has the winner called from then on. Whose turn it is and how a
call is timed is decided here; who is out and who has won is decided by the rules in
`race_rules`. How a function is made or called is not known.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.outcomes import RacedPlan, TrialOutcome
from amp.integration import fallback
from amp.integration.functions import race_rules
from amp.integration.functions.race_log import Log
from amp.integration.functions.race_rules import FLOAT32, Rules, Ruling

_BROKEN_OFF = fallback.Part("a race between plans was broken off")
# The rules are applied after each call until each entrant had so many timed ones.
EACH_CALL = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Listener:
    """What a race calls, outside its lock, when something happens.

    Attributes:
      ended: with the race and its outcome, once.
      released: with the race and the name of an entrant that is out, when none of its
        calls is running any more; once for each.
      advanced: with the race, when 1, 2, 4, 8, ... of its rounds are over.
    """

    ended: Callable[[Race, TrialOutcome], None]
    released: Callable[[Race, str], None]
    advanced: Callable[[Race], None] = lambda race: None


@dataclasses.dataclass(frozen=True, slots=True)
class _Turn:
    """One call of a race.

    Attributes:
      name: the entrant to call.
      round: its round.
      number: how many calls of this race had begun, this one included.
      first: whether it is the entrant's first call.
      alone: whether no other call was running when it began.
      work: what its time grows with.
    """

    name: str
    round: int
    number: int
    first: bool
    alone: bool
    work: float


class Race:
    """Calls several entrants by turns until it is known which is the fastest::

        round 0: each entrant twice, in the order given (the first may have more calls);
            first calls are not timed
        each further round: each entrant that is left once, in random order
        a call's time counts if the entrant has run before, and no other call of this
            race overlapped
        after each call, later each round: the rules say who is out, and who has won
        ended when one is left, and at the latest after as many calls as all looks take

    The order in a round is random, so that a pattern in the user's program (an update
    at every fourth step, say) does not always fall on the same entrant. A machine that
    becomes slower or faster affects a round as a whole. Where calls say how much work
    they have, what follows from that is taken out of their ratios. An entrant that
    would take too long to be made ready is out before its first call. Threads may call
    at the same time, and none waits for another.

    Args:
      entrants: names of at least two; the one that is to be called first is the first.
      rules: say who is out and who has won.
      log: to be filled.
      listener: is told of the end and of who is out.
      clock: returns seconds, after the devices have finished their work.
      ahead: how many calls the first entrant has in round 0.
    """

    def __init__(
        self,
        entrants: Sequence[str],
        rules: Rules,
        log: Log,
        listener: Listener,
        clock: Callable[[], float] | None = None,
        ahead: int = 2,
    ) -> None:
        self._entrants = tuple(entrants)
        self._left = list(entrants)
        self._rules, self._listener = rules, listener
        self.log = log
        self._clock = clock or synchronised_clock
        self._draw = random.Random(0)  # the same in every race
        first, *others = ((name, 0) for name in entrants)
        self._waiting: collections.deque[tuple[str, int]] = collections.deque(
            [first] * ahead + [name for name in others for _ in range(2)]
        )
        self._extra = ahead - 2  # calls, beyond those of any race
        self._round = 0
        # Reentrant: the garbage collector may run a program's `__del__`, which may call
        # the function, while it is held.
        self._lock = threading.RLock()
        self._begun = 0
        self._running: collections.Counter[str] = collections.Counter()
        self._out: dict[str, str] = {}  # who is out, and why
        self._unreleased: set[str] = set()  # of those
        self._outcome: TrialOutcome | None = None
        self._text = ""
        self._told = False
        self._advanced = False

    def call(self, call: Callable[[str], Any], work: float = 1.0) -> Any:
        """Calls the entrant whose turn it is, and returns its outputs.

        Args:
          call: calls the entrant of a name; makes it first if it has to be made.
          work: what the call's time grows with, as the number of elements in a batch;
            the same for all calls if that is not known.
        """
        turn = self._begin(work)
        seconds = None
        try:
            start = self._clock()
            outputs = call(turn.name)
            seconds = self._clock() - start
        finally:
            end = functools.partial(self._end, turn, seconds)
            fallback.attempt(_BROKEN_OFF, end, self._break_off)
            self._tell()
        return outputs

    def _break_off(self) -> None:
        """Ends the race, as its rules have failed; float32 runs if it still can."""
        with self._lock:
            if self._outcome is None:
                name = FLOAT32 if FLOAT32 in self._left else self._left[0]
                self._apply(Ruling(winner=name, text="ended: its rules have failed"))

    def enter(self, name: str) -> bool:
        """Has one more entrant race; returns False if the race has ended."""
        with self._lock:
            if self._outcome is not None:
                return False
            self._entrants += (name,)
            self._left.append(name)
            self._waiting.extend([(name, self._round)] * 2)
            self.log.looked = 0  # there is no round yet in which all were timed
            return True

    def drop(self, name: str, why: str, text: str = "") -> None:
        """Takes an entrant out of the race, because it cannot run.

        Args:
          name: of the entrant.
          why: what becomes of it, for the report.
          text: how the race ended, for the report, if nothing ends it with more reason.
        """
        with self._lock:
            if self._outcome is None and name in self._left:
                self._text = self._text or text
                self._apply(Ruling({name: why}))
        self._tell()

    @property
    def slower(self) -> list[str]:
        """Who is out because it was slower than another."""
        with self._lock:
            out = self._out.items()
            return [name for name, why in out if why in race_rules.BEATEN]

    @property
    def front(self) -> str:
        """The name of the winner, or of the fastest so far."""
        with self._lock:
            return race_rules.leader(self.log, self._left)

    def _begin(self, work: float) -> _Turn:
        with self._lock:
            self._begun += 1
            name, number = self._next()
            first = name not in self.log.first
            self._running[name] += 1
            alone = self._running.total() == 1
            return _Turn(name, number, self._begun, first, alone, work)

    def _next(self) -> tuple[str, int]:
        """The entrant whose turn it is, and the number of its round."""
        while self._outcome is None:
            if not self._waiting:
                self._round += 1
                order = _order(self._draw, self._left)
                self._waiting.extend((name, self._round) for name in order)
            name, number = self._waiting.popleft()
            known = name in self.log.first or name == self._entrants[0]
            if known or race_rules.affordable(self.log, name):
                return name, number
            text = f"ended: the others {race_rules.TOO_LONG}"
            if FLOAT32 in (name, *self._out):
                text += f"; {FLOAT32} {race_rules.LATER}"
            self._apply(Ruling({name: race_rules.TOO_LONG}, text=text))
        return self._left[0], self._round

    def _end(self, turn: _Turn, seconds: float | None) -> None:
        """Records the end of a call, and has the rules applied.

        Args:
          turn: of the call.
          seconds: the time that it took, None if it raised.
        """
        with self._lock:
            alone = turn.alone and turn.number == self._begun
            self._running[turn.name] -= 1
            self.log.calls[turn.name] = self.log.calls.get(turn.name, 0) + 1
            if seconds is not None and turn.first:
                self.log.first.setdefault(turn.name, seconds)
            if seconds is None or self._outcome is not None or turn.name in self._out:
                return
            if not alone and not turn.first:
                self.log.overlapped.setdefault(turn.name, []).append(seconds)
                left = tuple(self._left)
                self._apply(self._rules.overlapped(self.log, left))
            if alone and not turn.first:
                self.log.add(turn.name, turn.round, seconds, turn.work)
                over = turn.round + 1  # rounds, if this was the last call of one
                self._advanced = not self._waiting and over.bit_count() == 1
                # Later in a race, one call of many tells little: once a round will do.
                few = turn.round == 0 or len(self.log.times(turn.name)) <= EACH_CALL
                if few or not self._waiting:
                    self._apply(self._rules.judge(self.log, tuple(self._left)))
                    if all(map(self.log.times, self._left)):
                        self.log.looked = self.log.rounds(self._left)
            if self._outcome is None and self._begun >= self._most():
                self._apply(self._rules.cut_short(self.log, tuple(self._left)))

    def _most(self) -> int:
        """After so many calls a race ends whose calls cannot be timed."""
        count = len(self._entrants)
        return self._extra + count * (2 + race_rules.looks(count)[-1])

    def _apply(self, ruling: Ruling) -> None:
        """Takes out who is out; ends the race if there is a winner, or one is left."""
        out = dict(ruling.out)
        if ruling.winner is not None:
            others = (name for name in self._left if name != ruling.winner)
            out = {**dict.fromkeys(others, "not chosen"), **out}
        self._left = [name for name in self._left if name not in out]
        self._waiting = collections.deque(
            turn for turn in self._waiting if turn[0] not in out
        )
        self._out |= out
        self._unreleased |= out.keys()
        if len(self._left) == 1:
            self._outcome = self._result(
                ruling.text or self._text or self._by_default()
            )

    def _by_default(self) -> str:
        if self.log.timed:
            return f"ended: {race_rules.is_faster(self._left[0])}"
        return "ended: there is nothing else to try"

    def _result(self, text: str) -> TrialOutcome:
        winner, median = self._left[0], self.log.median
        plans = tuple(
            RacedPlan(
                name=name,
                predicted=self.log.predicted.get(name),
                seconds=median(name),
                timed=len(self.log.times(name)),
                fate=self._out.get(name, "won"),
            )
            for name in self._entrants
        )
        others = [p for p in plans if p.name != FLOAT32 and p.seconds is not None]
        best = min((p.seconds for p in others if p.seconds is not None), default=None)
        return TrialOutcome(
            twin=winner != FLOAT32,
            seconds32=median(FLOAT32),
            seconds16=best if winner == FLOAT32 else median(winner),
            timed=sum(plan.timed for plan in plans),
            text=text,
            plans=plans,
        )

    def _tell(self) -> None:
        """Tells the listener what is new; each thing once, and outside the lock."""
        with self._lock:
            ended = self._outcome if not self._told else None
            self._told = self._told or ended is not None
            advanced = self._advanced and self._outcome is None
            self._advanced = False
            idle = [name for name in self._unreleased if not self._running[name]]
            self._unreleased.difference_update(idle)
        if ended is not None:
            self._listener.ended(self, ended)
        for name in idle:
            self._listener.released(self, name)
        if advanced:
            self._listener.advanced(self)


def _order(draw: random.Random, names: Sequence[str]) -> list[str]:
    return draw.sample(names, len(names))


def synchronised_clock() -> float:
    """The clock in seconds, read after every device has finished its work.

    A call on a GPU, or under asynchronous execution, returns before it is done.
    """
    tf.test.experimental.sync_devices()
    return time.perf_counter()
