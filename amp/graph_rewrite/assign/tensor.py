"""A tensor with its producer and readers, the casts it needs, and cut variables.

Nothing is chosen here: the caller says which variables are 16-bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from typing import Literal, NamedTuple

from amp.graph_rewrite.assign.min_cut import Branch
from amp.graph_rewrite.candidates.call_values import Carried
from amp.graph_rewrite.graph.calls import FunctionUse, UseEdge
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


class Passed(NamedTuple):
    """A tensor of a caller as an argument of a branch.

    Attributes:
      place: the argument.
      share: how often the branch runs for each run of the function that makes it.
    """

    place: UseEdge
    share: float


class Reader(NamedTuple):
    """A reader of a tensor.

    Attributes:
      variable: decides the type in which it reads.
      use: the function that it is in.
      at: the node and its input; None for a result or a fetch.
      late: whether it is in the backward pass, so that the tensor is stored for it.
      branches: the branches that it is in and that the tensor is passed to, outermost
        first.
    """

    variable: CutVariable
    use: FunctionUse
    at: Read | None = None
    late: bool = False
    branches: tuple[Passed, ...] = ()


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
        """The variables that read it as it is made, outside branches."""
        return [r.variable for r in self._early if not r.branches] + self._kept

    @property
    def branches(self) -> list[Branch[CutVariable]]:
        """The branches that it is passed to, with the variables that read it there."""
        return list(_branches([r for r in self._early if r.branches], 0))

    @property
    def _early(self) -> list[Reader]:
        return [r for r in self.readers if not (self.holds and r.late)]

    @property
    def _kept(self) -> list[CutVariable]:
        return [] if self.stored is None else [self.stored]

    def casts(self, low: Set[CutVariable]) -> set[tuple[UseEdge, bool]]:
        """The casts of it as it is made: where, and whether to 16 bits.

        The edge is where it is made, or the argument of a branch.
        """
        made_low = self.producer in low
        down = not made_low
        if down and (self.free or not self._is_read(low)):
            return set()
        if down and any(r.variable in low for r in self.late):
            return {(self.place, True)}  # branches read it too
        reads = Branch(self.place, 1.0, self.early, self.branches)
        return {(place, down) for place in reads.casts(made_low, low)[1]}

    def _is_read(self, low: Set[CutVariable]) -> bool:
        """Whether anything reads it in 16 bits, or it is stored in them."""
        read = any(reader.variable in low for reader in self.readers)
        return read or self.stored in low

    def folded(self, low: Set[CutVariable]) -> bool:
        """Whether it is a constant that is also needed rounded to 16 bits."""
        variables = (*(r.variable for r in self._early), *self._kept)
        reads = any(variable in low for variable in variables)
        return self.free and self.producer not in low and reads

    def waiting(self, low: Set[CutVariable]) -> list[Read]:
        """The late float32 reads that need a cast in the backward pass."""
        if self.stored not in low:
            return []
        return sorted(r.at for r in self.late if r.at and r.variable not in low)

    def to_make(
        self, low: Set[CutVariable], late: Mapping[Read, str]
    ) -> set[tuple[UseEdge, CastForm]]:
        """All its casts: the edge that is cast, and the form.

        Args:
          low: what is 16-bit.
          late: by late read, the node that its cast waits for, "" if there is none.
        """
        made: set[tuple[UseEdge, CastForm]] = {
            (place, "down" if down else "up") for place, down in self.casts(low)
        }
        if self.free and self.folded(low):
            made.add((self.place, "folded"))
        for read in self.waiting(low):
            made.add((self.place, "late" if late[read] else "up"))
        return made

    def casts_saved(
        self, low: Set[CutVariable], inner: Container[FunctionUse]
    ) -> CastsSaved:
        """The casts saved for reads in another type than the tensor is made in.

        Args:
          low: the 16-bit variables.
          inner: functions that run inside loops.
        """
        made_low = self.producer in low
        other = [r for r in self.readers if (r.variable in low) != made_low]
        if not other:
            return CastsSaved()
        if self.free and not made_low:
            return CastsSaved(folded=len(other))
        places = {place for place, _ in self.casts(low)}
        uses = ((r.use, self._cast_for(r, places)) for r in other)
        hoisted = any(use in inner and use != cast for use, cast in uses)
        made = len(places) + bool(self.waiting(low))
        return CastsSaved(shared=max(len(other) - made, 0), hoisted=int(hoisted))

    def _cast_for(self, reader: Reader, places: Container[UseEdge]) -> FunctionUse:
        """The function in which the tensor is cast for a reader."""
        within = (p.place for p in reversed(reader.branches) if p.place in places)
        use, _ = next(within, self.place)
        return use


def _branches(readers: Sequence[Reader], depth: int) -> Iterator[Branch[CutVariable]]:
    """The branches, `depth` of them around, that some readers are in."""
    inside: dict[Passed, list[Reader]] = {}
    for reader in readers:
        inside.setdefault(reader.branches[depth], []).append(reader)
    for (place, share), own in inside.items():
        here = [r.variable for r in own if len(r.branches) == depth + 1]
        further = [r for r in own if len(r.branches) > depth + 1]
        yield Branch(place, share, here, list(_branches(further, depth + 1)))
