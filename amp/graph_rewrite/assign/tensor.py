"""One tensor: who makes it, who reads it, and which casts that takes.

What precision is chosen for has a name here (`CutVariable`); nothing is chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Set
from typing import Literal, NamedTuple

from amp.graph_rewrite.candidates.call_values import Carried, UseEdge
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import CastsSaved, Read


class CutVariable(NamedTuple):
    """Something that one precision is chosen for; a vertex of the minimum cut.

    Attributes:
      kind: what it is. "low" and "high" are the two that are settled: always in 16
        bits, always in float32.
      of: which one. Of "node" the use and the node's name; of "carried" the value that
        calls hand on; of "list" the number of the tensor list; of "stored" the edge of
        a tensor, from the point on where its graph holds most bytes.
    """

    kind: Literal["node", "carried", "list", "stored", "low", "high"]
    of: tuple[FunctionUse, str] | Carried | int | UseEdge | None = None


LOW, HIGH = CutVariable("low"), CutVariable("high")


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a tensor, where, and whether the tensor is held for it."""

    variable: CutVariable
    use: FunctionUse
    at: Read | None = None
    late: bool = False


@dataclasses.dataclass(slots=True)
class Tensor:
    """A tensor under one name, however many casts the graph already has on it.

    Where it is held for late readers, it may be so in another type than it is made in:
    then it counts as two, the tensor as it is made and the tensor as it is held, which
    reads the first.
    """

    place: UseEdge
    producer: CutVariable
    free: bool  # a constant: its cast is folded
    holds: bool
    readers: list[Reader] = dataclasses.field(default_factory=list)

    @property
    def stored(self) -> CutVariable | None:
        return CutVariable("stored", self.place) if self.late else None

    @property
    def late(self) -> list[Reader]:
        return [reader for reader in self.readers if self.holds and reader.late]

    @property
    def early(self) -> list[CutVariable]:
        """Who reads it as it is made."""
        early = [r.variable for r in self.readers if not (self.holds and r.late)]
        stored = self.stored
        return early if stored is None else [*early, stored]

    def casts(self, low: Set[CutVariable]) -> set[bool]:
        """Whether it is cast as soon as it is made: to 16 bits (True), to float32."""
        made_low = self.producer in low
        casts = {r in low for r in self.early if (r in low) != made_low}
        if not made_low and any(r.variable in low for r in self.late):
            casts.add(True)
        return casts - {True} if self.free else casts

    def waiting(self, low: Set[CutVariable]) -> list[Read]:
        """The late reads that get a cast of their own."""
        if self.stored not in low:
            return []
        return sorted(r.at for r in self.late if r.at and r.variable not in low)

    def casts_saved(
        self, low: Set[CutVariable], inner: Container[FunctionUse]
    ) -> CastsSaved:
        """What the reads in another type do without; `inner`: in loops."""
        made_low = self.producer in low
        other = [r.use for r in self.readers if (r.variable in low) != made_low]
        if not other:
            return CastsSaved()
        if self.free and not made_low:
            return CastsSaved(folded=len(other))
        hoisted = any(use != self.place[0] and use in inner for use in other)
        made = len(self.casts(low)) + bool(self.waiting(low))
        return CastsSaved(shared=max(len(other) - made, 0), hoisted=int(hoisted))
