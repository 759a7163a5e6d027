"""`Race`: times the calls of a function, by turns its original and its rewritten forms.

Used by `contest`, which has the winner called from then on. How a call is timed is
decided here, whose turn it is in `turns`; who is out and who has won is decided by the
rules in `race_rules`. How a function is made or called is not known.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
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
from amp.integration.racing.turns import AT_ONCE, Turn, Turns

_BROKEN_OFF = fallback.Part("a race between plans was broken off")
_UNTOLD = fallback.Part("what a race between plans came to is not told")
# The rules are applied after each call until each entrant had so many timed ones.
EACH_CALL = 3
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
class _Call:
    """One call of a race.

    Attributes:
      turn: whose it is.
      number: how many calls of this race had begun, this one included.
      first: whether it is the entrant's first call.
      alone: whether no other call was running when it began.
      work: what its time grows with.
    """

    turn: Turn
    number: int
    first: bool
    alone: bool
    work: float


class Race:
    """Calls several entrants by `Turns` until it is known which is the fastest::

        first calls are not timed
        a call's time counts if the entrant has run before, and no other call of this
            race overlapped
        after each call, later each round: the rules say who is out, and who has won
        a meeting of two ends at the latest after as many calls as all looks take, and
            the race when no entrant is left but one

    Where calls say how much work they have, what follows from that is taken out of
    their ratios. An entrant that would take too long to be made ready is out before its
    first call. Threads may call at the same time, and none waits for another.

    Args:
      entrants: names of at least two; the one that is to be called first is the first.
      rules: say who is out and who has won.
      log: to be filled.
      listener: is told of the end and of who is out.
      clock: returns seconds, after the devices have finished their work.
      ahead: as of `Turns`.
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
        self._turns = Turns(entrants, ahead)
        log.entrants = len(entrants)
        self._rules, self._listener = rules, listener
        self.log = log
        self._clock = clock or synchronised_clock
        self._most = ahead - 2 + self._calls  # at the end of this meeting
        # Reentrant: the garbage collector may run a program's `__del__`, which may call
        # the function, while it is held.
        self._lock = threading.RLock()
        self._begun = 0
        self._running: collections.Counter[str] = collections.Counter()
        self._unreleased: set[str] = set()  # of those that are out
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
        begun = self._begin(work)
        seconds = None
        try:
            start = self._clock()
            outputs = call(begun.turn.name)
            seconds = self._clock() - start
        finally:
            end = functools.partial(self._end, begun, seconds)
            fallback.attempt(_BROKEN_OFF, end, self._break_off)
            self.tell()
        return outputs

    def _break_off(self) -> None:
        """Ends the race, as its rules have failed; float32 runs if it still can."""
        with self._lock:
            if self._outcome is None:
                left = self._turns.left
                name = FLOAT32 if FLOAT32 in left else left[0]
                text = "ended: its rules have failed"
                self._apply(Ruling(winner=name, text=text, last=True))

    def enter(self, name: str) -> bool:
        """Has one more entrant race, as the next; False if the race has ended."""
        with self._lock:
            if self._outcome is not None:
                return False
            self.log.entrants += 1
            if self._turns.add(name):
                self._meet()
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
        turns = self._turns
        with self._lock:
            if self._outcome is None and name in (*turns.left, *turns.to_come):
                self._text = self._text or text
                self.log.entrants -= name not in self.log.first
                self._apply(Ruling({name: why}))
        self.tell()

    @property
    def slower(self) -> list[str]:
        """Who is out because it was slower than another."""
        with self._lock:
            out = self._turns.out.items()
            return [name for name, why in out if why in race_rules.BEATEN]

    @property
    def front(self) -> str:
        """The name of the winner, or of the fastest so far."""
        with self._lock:
            return race_rules.leader(self.log, self._turns.left)

    def _begin(self, work: float) -> _Call:
        with self._lock:
            self._begun += 1
            turn = self._next()
            first = turn.name not in self.log.first
            self._running[turn.name] += 1
            alone = self._running.total() == 1
            return _Call(turn, self._begun, first, alone, work)

    def _next(self) -> Turn:
        """The next turn of an entrant that may have one; the winner's in the end."""
        while True:
            turn = self._turns.next()
            name = turn.name
            known = name in self.log.first or name == self._turns.entrants[0]
            over = self._outcome is not None
            if over or known or race_budget.affordable(self.log, name):
                return turn
            why = race_rules.TOO_LONG
            text = f"ended: the others {why}"
            if (self._turns.out | {name: why}).get(FLOAT32) == why:
                text += f"; {FLOAT32} {race_rules.LATER}"
            self._apply(Ruling({name: why}, text=text))

    def _end(self, call: _Call, seconds: float | None) -> None:
        """Records the end of a call, and has the rules applied.

        Args:
          call: the one that ends.
          seconds: the time that it took, None if it raised.
        """
        name = call.turn.name
        with self._lock:
            alone = call.alone and call.number == self._begun
            self._running[name] -= 1
            if threading.get_ident() in self._postponed:
                self._postponed.remove(threading.get_ident())
                self._turns.again(call.turn)
                return
            self.log.calls[name] = self.log.calls.get(name, 0) + 1
            if seconds is not None and call.first:
                self.log.first.setdefault(name, seconds)
            if seconds is None or self._outcome is not None or name in self._turns.out:
                return
            if not alone and not call.first:
                self.log.overlapped.setdefault(name, []).append(seconds)
                self._ask(self._rules.overlapped)
            if alone and not call.first:
                self._timed(call, seconds)
            if self._outcome is None and self._begun >= self._most:
                self._ask(self._rules.cut_short)

    def _timed(self, call: _Call, seconds: float) -> None:
        """Takes in a call whose time counts."""
        turn, over = call.turn, self._turns.round_over
        self.log.add(turn.name, turn.round, seconds, call.work)
        self._advanced = over and (turn.round + 1).bit_count() == 1
        # Later in a race, one call of many tells little: once a round will do.
        few = turn.round == 0 or len(self.log.times(turn.name)) <= EACH_CALL
        if few or over:
            self._ask(self._rules.judge)
            if all(map(self.log.times, self._turns.left)):
                self.log.looked = self.log.rounds(self._turns.left)

    def _ask(self, judge: race_rules.Judge) -> None:
        self._apply(judge(self.log, tuple(self._turns.left)))

    @property
    def _calls(self) -> int:
        """After so many calls those that meet are told apart by what is known."""
        return AT_ONCE * (2 + race_rules.looks(self.log.entrants)[-1])

    def _apply(self, ruling: Ruling) -> None:
        """Takes out who is out, and brings in who is next, or ends the race."""
        turns, out = self._turns, dict(ruling.out)
        if ruling.winner is not None:
            others = (name for name in turns.left if name != ruling.winner)
            out = {**dict.fromkeys(others, "not chosen"), **out}
        if ruling.last:
            out |= dict.fromkeys(turns.to_come, NOT_TRIED)
        self._unreleased |= out.keys()
        if turns.take_out(out):
            self._meet()
        if len(turns.left) == 1:
            self._outcome = self._result(
                ruling.text or self._text or self._by_default()
            )

    def _meet(self) -> None:
        """Begins a meeting: there is no round yet in which both were timed."""
        self._most = self._begun + self._calls
        self.log.looked = 0

    def _by_default(self) -> str:
        if self.log.timed:
            return f"ended: {race_rules.is_faster(self._turns.left[0])}"
        return "ended: there is nothing else to try"

    def _result(self, text: str) -> TrialOutcome:
        winner = self._turns.left[0]
        plans = tuple(
            RacedPlan(
                name=name,
                predicted=self.log.predicted.get(name),
                seconds=self._seconds(name),
                timed=len(self.log.times(name)),
                fate=self._turns.out.get(name, "won"),
            )
            for name in self._turns.entrants
        )
        seconds = {plan.name: plan.seconds for plan in plans if plan.seconds}
        # By the user's own float32, not by one that this package added a scale to.
        high = seconds.pop(FLOAT32, None)
        high = seconds.get(self.log.setup.plain, high)
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
        winner = self._turns.left[0]
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


def synchronised_clock() -> float:
    """The clock in seconds, read after every device has finished its work.

    A call on a GPU, or under asynchronous execution, returns before it is done.
    """
    tf.test.experimental.sync_devices()
    return time.perf_counter()
