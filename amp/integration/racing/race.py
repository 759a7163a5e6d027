"""`Race`: times the calls of a function, by turns its original and its rewritten forms.

Used by `contest`, which has the winner called from then on. Whose turn it is and how a
call is timed is decided here; who is out and who has won is decided by the rules in
`race_rules`. How a function is made or called is not known.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.outcomes import RacedPlan, TrialOutcome
from amp.integration import fallback
from amp.integration.racing import race_budget, race_rules
from amp.integration.racing.race_log import FLOAT32, Log
from amp.integration.racing.race_rules import Rules, Ruling

_BROKEN_OFF = fallback.Part("a race between plans was broken off")
_UNTOLD = fallback.Part("what a race between plans came to is not told")
# The rules are applied after each call until each entrant had so many timed ones.
EACH_CALL = 3
# So many entrants meet: each holds a graph, kernels and memory that the others do not.
AT_ONCE = 2
NOT_TRIED = "not tried, the race was over"


@dataclasses.dataclass(frozen=True, slots=True)
class Listener:
    """What a race calls, outside its lock, when something happens.

    What is interrupted by Ctrl-C is called again, at the next `Race.tell`.

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

        round 0: the first two, each twice, in the order given (the first may have more
            calls); first calls are not timed
        each further round: both once, in random order
        a call's time counts if the entrant has run before, and no other call of this
            race overlapped
        after each call, later each round: the rules say who is out, and who has won
        who is left meets the next entrant, which begins a round with two calls
        such a meeting ends at the latest after as many calls as all looks take, and the
            race when no entrant is left but one

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
        self._left = list(entrants[:AT_ONCE])
        log.entrants = len(entrants)
        self._next_in = collections.deque(entrants[AT_ONCE:])
        self._rules, self._listener = rules, listener
        self.log = log
        self._clock = clock or synchronised_clock
        self._draw = random.Random(0)  # the same in every race
        first, *others = ((name, 0) for name in self._left)
        self._waiting: collections.deque[tuple[str, int]] = collections.deque(
            [first] * ahead + [name for name in others for _ in range(2)]
        )
        self._most = ahead - 2 + self._calls  # at the end of this meeting
        self._round = 0
        # Reentrant: the garbage collector may run a program's `__del__`, which may call
        # the function, while it is held.
        self._lock = threading.RLock()
        self._begun = 0
        self._running: collections.Counter[str] = collections.Counter()
        self._out: dict[str, str] = {}  # who is out, and why
        self._unreleased: set[str] = set()  # of those
        self._postponed: set[int] = set()  # the threads whose turn does not count
        self._outcome: TrialOutcome | None = None
        self._text = ""
        self._news: collections.deque[Callable[[], None]] = collections.deque()
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
            self.tell()
        return outputs

    def _break_off(self) -> None:
        """Ends the race, as its rules have failed; float32 runs if it still can."""
        with self._lock:
            if self._outcome is None:
                name = FLOAT32 if FLOAT32 in self._left else self._left[0]
                text = "ended: its rules have failed"
                self._apply(Ruling(winner=name, text=text, last=True))

    def enter(self, name: str) -> bool:
        """Has one more entrant race, as the next; False if the race has ended."""
        with self._lock:
            if self._outcome is not None:
                return False
            self._entrants += (name,)
            self.log.entrants += 1
            self._next_in.appendleft(name)
            self._bring_in()
            return True

    def postpone(self) -> None:
        """Is told within an entrant's turn that another function runs in its place.

        The turn does not count, and comes again at the next call.
        """
        with self._lock:
            self._postponed.add(threading.get_ident())

    def drop(self, name: str, why: str, text: str = "") -> None:
        """Takes an entrant out of the race, because it cannot run.

        Args:
          name: of the entrant.
          why: what becomes of it, for the report.
          text: how the race ended, for the report, if nothing ends it with more reason.
        """
        with self._lock:
            if self._outcome is None and name in (*self._left, *self._next_in):
                self._text = self._text or text
                self.log.entrants -= name not in self.log.first
                self._apply(Ruling({name: why}))
        self.tell()

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
            if known or race_budget.affordable(self.log, name):
                return name, number
            why = race_rules.TOO_LONG
            text = f"ended: the others {why}"
            if (self._out | {name: why}).get(FLOAT32) == why:
                text += f"; {FLOAT32} {race_rules.LATER}"
            self._apply(Ruling({name: why}, text=text))
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
            if threading.get_ident() in self._postponed:
                self._postponed.remove(threading.get_ident())
                if turn.name in self._left:
                    self._waiting.appendleft((turn.name, turn.round))
                return
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
            if self._outcome is None and self._begun >= self._most:
                self._apply(self._rules.cut_short(self.log, tuple(self._left)))

    @property
    def _calls(self) -> int:
        """After so many calls those that meet are told apart by what is known."""
        return AT_ONCE * (2 + race_rules.looks(self.log.entrants)[-1])

    def _apply(self, ruling: Ruling) -> None:
        """Takes out who is out, and brings in who is next, or ends the race."""
        out = dict(ruling.out)
        if ruling.winner is not None:
            others = (name for name in self._left if name != ruling.winner)
            out = {**dict.fromkeys(others, "not chosen"), **out}
        if ruling.last:
            out |= dict.fromkeys(self._next_in, NOT_TRIED)
        self._left = [name for name in self._left if name not in out]
        self._next_in = collections.deque(n for n in self._next_in if n not in out)
        self._waiting = collections.deque(
            turn for turn in self._waiting if turn[0] not in out
        )
        self._out |= out
        self._unreleased |= out.keys()
        self._bring_in()
        if len(self._left) == 1:
            self._outcome = self._result(
                ruling.text or self._text or self._by_default()
            )

    def _bring_in(self) -> None:
        """Has the next entrants meet who is left, in a round of their own."""
        while self._next_in and len(self._left) < AT_ONCE:
            name, self._round = self._next_in.popleft(), self._round + 1
            turns = [name, name, *self._left]
            self._waiting.extend((each, self._round) for each in turns)
            self._left.append(name)
            self._most = self._begun + self._calls
            self.log.looked = 0  # there is no round yet in which both were timed

    def _by_default(self) -> str:
        if self.log.timed:
            return f"ended: {race_rules.is_faster(self._left[0])}"
        return "ended: there is nothing else to try"

    def _result(self, text: str) -> TrialOutcome:
        winner = self._left[0]
        plans = tuple(
            RacedPlan(
                name=name,
                predicted=self.log.predicted.get(name),
                seconds=self._seconds(name),
                timed=len(self.log.times(name)),
                fate=self._out.get(name, "won"),
            )
            for name in self._entrants
        )
        seconds = {plan.name: plan.seconds for plan in plans if plan.seconds}
        # By the user's own float32, not by one that this package added a scale to.
        high = seconds.pop(FLOAT32, None)
        high = seconds.get(self.log.plain, high)
        best = min(seconds.values(), default=None)
        return TrialOutcome(
            twin=winner != FLOAT32,
            seconds32=high,
            seconds16=best if winner == FLOAT32 else seconds.get(winner),
            timed=sum(plan.timed for plan in plans),
            text=text,
            plans=plans,
        )

    def _seconds(self, name: str) -> float | None:
        """What an entrant takes where the winner takes its median."""
        winner = self._left[0]
        base, relative = self.log.median(winner), self.log.relative(name, winner)
        if name == winner or base is None or relative is None:
            return self.log.median(name)
        return base * math.exp(relative)

    def tell(self) -> None:
        """Tells the listener what is new; each thing once, and outside the lock.

        The job goes on where the listener fails.
        """
        while True:
            with self._lock:
                self._note_news()
                if not self._news:
                    return
                news = self._news.popleft()
            try:
                fallback.attempt(_UNTOLD, news, lambda: None)
            except Exception:
                raise
            except BaseException:
                self._news.appendleft(news)  # interrupted
                raise

    def _note_news(self) -> None:
        """Notes what is to be told, in its order."""
        if self._outcome is not None and not self._told:
            self._told = True
            ended = functools.partial(self._listener.ended, self, self._outcome)
            self._news.append(ended)
        idle = [name for name in self._unreleased if not self._running[name]]
        self._unreleased.difference_update(idle)
        for name in idle:
            self._news.append(functools.partial(self._listener.released, self, name))
        if self._advanced and self._outcome is None:
            self._news.append(functools.partial(self._listener.advanced, self))
        self._advanced = False


def _order(draw: random.Random, names: Sequence[str]) -> list[str]:
    return draw.sample(names, len(names))


def synchronised_clock() -> float:
    """The clock in seconds, read after every device has finished its work.

    A call on a GPU, or under asynchronous execution, returns before it is done.
    """
    tf.test.experimental.sync_devices()
    return time.perf_counter()
