"""`Turns`: whose turn it is among the entrants of a race, and who meets whom.

Used by `race`, which holds its lock around each call. Who is out is told; no time is
taken and nothing is called.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Mapping, Sequence

# So many entrants meet: each holds a graph, kernels and memory that the others do not.
AT_ONCE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One turn.

    Attributes:
      name: of the entrant.
      round: the number of its round, from 0.
    """

    name: str
    round: int


class Turns:
    """The turns of a race::

        round 0: the first two, each twice, in the order given (the first may have more)
        each further round: both once, in random order
        who is left meets the next entrant, which begins a round with two turns

    The order in a round is random, so that a pattern in the user's program (an update
    at every fourth step, say) does not always fall on the same entrant. A machine that
    becomes slower or faster affects a round as a whole.

    Args:
      entrants: names of at least two, in the order in which they meet.
      ahead: how many turns the first entrant has in round 0.

    Attributes:
      entrants: as given, then those that were added.
      left: who meets now; who has won, once there is nobody else.
      to_come: who meets them next.
      out: who is out, and why.
    """

    def __init__(self, entrants: Sequence[str], ahead: int = 2) -> None:
        self.entrants = tuple(entrants)
        self.left = list(entrants[:AT_ONCE])
        self.to_come = collections.deque(entrants[AT_ONCE:])
        self.out: dict[str, str] = {}
        self._draw = random.Random(0)  # the same in every race
        self._round = 0
        first, *others = (Turn(name, 0) for name in self.left)
        self._waiting = collections.deque(
            [first] * ahead + [turn for turn in others for _ in range(2)]
        )

    def next(self) -> Turn:
        """The next turn; it begins a round where none is waiting in this one."""
        if not self._waiting:
            self._round += 1
            order = _order(self._draw, self.left)
            self._waiting.extend(Turn(name, self._round) for name in order)
        return self._waiting.popleft()

    def again(self, turn: Turn) -> None:
        """Has a turn that did not count come next, unless its entrant is out."""
        if turn.name in self.left:
            self._waiting.appendleft(turn)

    @property
    def round_over(self) -> bool:
        """Whether none is waiting of the latest round."""
        return not self._waiting

    def add(self, name: str) -> bool:
        """Has one more entrant come, as the next; returns as `take_out`."""
        self.entrants += (name,)
        self.to_come.appendleft(name)
        return self._bring_in()

    def take_out(self, out: Mapping[str, str]) -> bool:
        """Takes entrants out.

        Args:
          out: their names, and why.

        Returns:
          Whether another one meets who is left now.
        """
        self.out |= out
        self.left = [name for name in self.left if name not in out]
        to_come = [name for name in self.to_come if name not in out]
        self.to_come = collections.deque(to_come)
        waiting = [turn for turn in self._waiting if turn.name not in out]
        self._waiting = collections.deque(waiting)
        return self._bring_in()

    def _bring_in(self) -> bool:
        """Has the next entrants meet who is left, each in a round of its own."""
        before = len(self.left)
        while self.to_come and len(self.left) < AT_ONCE:
            name, self._round = self.to_come.popleft(), self._round + 1
            turns = [name, name, *self.left]
            self._waiting.extend(Turn(each, self._round) for each in turns)
            self.left.append(name)
        return len(self.left) > before


def _order(draw: random.Random, names: Sequence[str]) -> list[str]:
    return draw.sample(names, len(names))
