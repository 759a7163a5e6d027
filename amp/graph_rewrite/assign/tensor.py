"""A tensor with its producer and readers, the casts it needs, and cut variables.

Nothing is chosen here: the caller says which variables are 16-bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Set
from typing import Literal, NamedTuple

from amp.graph_rewrite.candidates.call_values import Carried, UseEdge
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import CastForm, CastsSaved, Read


class CutVariable(NamedTuple):
    """Something with one precision to be chosen: a vertex of the minimum cut.

    Attributes:
      kind: "node"; "carried" for a loop variable or branch result; "list" for a tensor
        list; "tie" for the members of a tie together; "stored" for a tensor while it
        is stored for the backward pass; "low" and "high" for what always is 16-bit or
        float32.
      of: which one. For "node" the use and the node's name, for "carried" the value,
        for "list" and "tie" its number, for "stored" the tensor's edge.
    """

    kind: Literal["node", "carried", "list", "tie", "stored", "low", "high"]
    of: tuple[FunctionUse, str] | Carried | int | UseEdge | None = None


LOW, HIGH = CutVariable("low"), CutVariable("high")


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """A reader of a tensor.

    Attributes:
      variable: decides the type in which it reads.
      use: the function that it is in.
      at: the node and its input; None for a result or a fetch.
      late: whether it is in the backward pass, so that the tensor is stored for it.
    """

    variable: CutVariable
    use: FunctionUse
    at: Read | None = None
    late: bool = False


@dataclasses.dataclass(slots=True)
class Tensor:
    """A tensor; casts of it that the graph already has are the same tensor.

    A tensor that is stored for the backward pass may be stored in another type than it
    is made in. The cut then has two tensors: the one that is made, and the stored one,
    which reads the first and is read by the late readers.

    Attributes:
      place: the edge where it is made.
      producer: decides the type in which it is made.
      free: whether it is a constant, whose cast costs nothing.
      holds: whether its type may change for storage.
      readers: all its readers.
    """

    place: UseEdge
    producer: CutVariable
    free: bool
    holds: bool
    readers: list[Reader] = dataclasses.field(default_factory=list)

    @property
    def stored(self) -> CutVariable | None:
        """The variable of the stored tensor, None if it is not stored."""
        return CutVariable("stored", self.place) if self.late else None

    @property
    def late(self) -> list[Reader]:
        """The readers that read the stored tensor."""
        return [reader for reader in self.readers if self.holds and reader.late]

    @property
    def early(self) -> list[CutVariable]:
        """The variables that read it as it is made."""
        early = [r.variable for r in self.readers if not (self.holds and r.late)]
        stored = self.stored
        return early if stored is None else [*early, stored]

    def casts(self, low: Set[CutVariable]) -> set[bool]:
        """The casts right after it is made: True to 16 bits, False to float32."""
        made_low = self.producer in low
        casts = {r in low for r in self.early if (r in low) != made_low}
        if not made_low and any(r.variable in low for r in self.late):
            casts.add(True)
        return casts - {True} if self.free else casts

    def folded(self, low: Set[CutVariable]) -> bool:
        """Whether it is a constant that is also needed rounded to 16 bits."""
        reads = (reader in low for reader in self.early)
        return self.free and self.producer not in low and any(reads)

    def waiting(self, low: Set[CutVariable]) -> list[Read]:
        """The late float32 reads that need a cast in the backward pass."""
        if self.stored not in low:
            return []
        return sorted(r.at for r in self.late if r.at and r.variable not in low)

    def forms(self, low: Set[CutVariable], late: Mapping[Read, str]) -> set[CastForm]:
        """The forms of all its casts.

        Args:
          low: what is 16-bit.
          late: by late read, the node that its cast waits for, "" if there is none.
        """
        forms: set[CastForm] = {"down" if down else "up" for down in self.casts(low)}
        if self.folded(low):
            forms.add("folded")
        forms.update("late" if late[read] else "up" for read in self.waiting(low))
        return forms

    def casts_saved(
        self, low: Set[CutVariable], inner: Container[FunctionUse]
    ) -> CastsSaved:
        """The casts saved for reads in another type than the tensor is made in.

        Args:
          low: the 16-bit variables.
          inner: functions that run inside loops.
        """
        made_low = self.producer in low
        other = [r.use for r in self.readers if (r.variable in low) != made_low]
        if not other:
            return CastsSaved()
        if self.free and not made_low:
            return CastsSaved(folded=len(other))
        hoisted = any(use != self.place[0] and use in inner for use in other)
        made = len(self.casts(low)) + bool(self.waiting(low))
        return CastsSaved(shared=max(len(other) - made, 0), hoisted=int(hoisted))
