"""The tensors of a module with their producers and readers, and so the casts needed.

`decide` prices casts with this description and plans list their casts from it, so that
both agree. Nothing is chosen here: the caller says which nodes are 16-bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Set
from typing import TypeAlias

from amp.graph_rewrite.assign import min_cut
from amp.graph_rewrite.assign.liveness import Liveness
from amp.graph_rewrite.assign.tensor import HIGH, LOW, CutVariable, Reader, Tensor
from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.candidates.call_values import Carried, Member, UseEdge
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.graph import bridges, ir, op_schema
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import Kind
from amp.graph_rewrite.plan import Cast, CastsSaved, CastsToMake, MadeCast, Read

Late: TypeAlias = dict[Read, str]  # as in a plan


@dataclasses.dataclass(frozen=True, slots=True)
class UseCasts:
    """The casts of one use of a function, as in a plan.

    Attributes:
      casts: tensors that are read in both types.
      late: reads with a cast of their own in the backward pass, and the node that the
        cast waits for.
      saved: the casts saved by sharing, folding and hoisting.
      to_make: every cast to make, those that no price counts too.
    """

    casts: frozenset[Cast]
    late: Late
    saved: CastsSaved
    to_make: CastsToMake


class Tensors:
    """All tensors of a module, with their producers and readers.

    A tensor that is passed into functions is one tensor, named by the edge where it is
    made. A tensor and existing casts of it are one tensor too, so that a second rewrite
    sees the same tensors.

    Args:
      priced: the module's analysis and prices.
    """

    def __init__(self, priced: Priced) -> None:
        self._priced = priced.uses
        self._uses = priced.analysis.uses
        self._turning = priced.analysis.turning
        self._call_values = priced.analysis.call_values
        self._number = next(iter(self._uses.values())).context.format.number
        self._ties: dict[Member | Carried, int] = {
            member: number
            for number, tie in enumerate(priced.analysis.ties)
            for member in tie.members
        }
        self._tensors: dict[UseEdge, Tensor] = {}
        self._lives = {
            use: Liveness(one.graph, one.found.typed) for use, one in self._uses.items()
        }
        for use, one in self._uses.items():
            self._read_by_nodes(use, one)
            self._read_outside(use, one)
        self._returned()
        self._kept = [tensor for tensor in self._tensors.values() if _may_turn(tensor)]

    def variable(self, use: FunctionUse, name: str) -> CutVariable:
        """The variable of the cut that decides the precision of a node."""
        found = self._uses[use].found
        if name in found.already:
            return LOW
        if name not in found.allowed:
            return HIGH
        if (use, name) in self._ties:
            return CutVariable("tie", self._ties[use, name])
        number = self._call_values.lists.get((use, name))
        if number is not None:
            return CutVariable("list", number)
        return CutVariable("node", (use, name))

    def _read_by_nodes(self, use: FunctionUse, one: UseAnalysis) -> None:
        number = self._number
        numbers = (ir.FLOAT, number)
        for name, view in one.found.typed.items():
            if bridges.is_bridge(view.node, number):
                continue
            variable = self.variable(use, name)
            site = self._call_values.sites.get((use, name))
            for index, slot in enumerate(view.ins):
                if slot.type not in numbers:
                    continue
                edge = view.node.inputs[index]
                reader = LOW if slot.type == number else HIGH
                if site is not None and slot.type == ir.FLOAT:
                    if self._call_values.passes(site, index):
                        continue  # the readers inside the function count instead
                    reader = (
                        self._carried((use, (name, index))) if site.call.loop else HIGH
                    )
                elif variable != HIGH and _turns(slot, view):
                    reader = variable
                # A stored tensor may have another type than the one made, so a tied
                # reader reads the one made, like the other members of its tie.
                late = site is None and (use, name) not in self._ties
                late = late and not view.facts.in_frames
                late = late and self._lives[use].late(name)
                self._read((use, edge), slot.type, reader, (name, index), late)

    def _read_outside(self, use: FunctionUse, one: UseAnalysis) -> None:
        """Adds float32 readers for fetched tensors and for results to other callers."""
        if use not in self._call_values.inner:
            for result in one.graph.results:
                if result.type == ir.FLOAT:
                    self._read((use, result.edge), ir.FLOAT, HIGH)
        typed = one.found.typed
        for name in one.context.fetched & typed.keys():
            for index, slot in enumerate(typed[name].outs):
                if slot.type in (ir.FLOAT, self._number):
                    place = (use, (name, index))
                    self._read(place, slot.type, HIGH)

    def _returned(self) -> None:
        for value in self._call_values.carried:
            reader = self._carried(
                (value.site.use, (value.site.node.name, value.index))
            )
            for place in value.returned:
                self._read(place, ir.FLOAT, reader)

    def _read(
        self,
        place: UseEdge,
        number: int,
        reader: CutVariable,
        at: Read | None = None,
        late: bool = False,
    ) -> None:
        tensor, use = self._of(place, number), place[0]
        late = late and tensor.place[0] == use
        tensor.readers.append(Reader(reader, use, at, late))

    def _carried(self, place: UseEdge) -> CutVariable:
        value = self._call_values.made.get(place)
        return HIGH if value is None else self.carried(value)

    def carried(self, value: Carried) -> CutVariable:
        """The variable that decides the type of a loop variable or branch result."""
        if value not in self._turning:
            return HIGH
        if value in self._ties:
            return CutVariable("tie", self._ties[value])
        return CutVariable("carried", value)

    def _of(self, place: UseEdge, number: int) -> Tensor:
        """The tensor at an edge of type `number`, or that the edge is a cast of."""
        low = self._number
        *_, (place, number) = self._path(place, number)
        view = self._uses[place[0]].found.typed.get(place[1][0])
        if place not in self._tensors:
            use, (name, index) = place
            producer = LOW if number == low else self._carried(place)
            if producer == HIGH and view is not None and _turns(view.outs[index], view):
                producer = self.variable(use, name)
            constant = view is not None and view.facts.kind is Kind.CONSTANT
            # A tensor may be stored in 16 bits only if its producer may be 16-bit.
            one = self._uses[place[0]]
            once = one.weight <= 1 and place[1][0] not in one.runs
            holds = producer != HIGH and once
            holds = holds and self._lives[place[0]].held(place[1])
            if view is not None and view.outs:  # no opaque bytes
                holds = holds and view.outs[index].port not in view.facts.opaque
            self._tensors[place] = Tensor(place, producer, constant, holds)
        return self._tensors[place]

    def _path(self, place: UseEdge, number: int) -> Iterator[tuple[UseEdge, int]]:
        """The edges and their types, from one back to where its tensor is made."""
        while True:
            place = self._call_values.source(place)
            yield place, number
            view = self._uses[place[0]].found.typed.get(place[1][0])
            if view is None or not bridges.is_bridge(view.node, self._number):
                return
            place, number = (place[0], view.node.inputs[0]), view.ins[0].type
            yield place, number

    def _given(self) -> Iterator[UseEdge]:
        """The edges of every tensor that the module has a cast of already."""
        for use, one in self._uses.items():
            for name, view in one.found.typed.items():
                if bridges.is_bridge(view.node, self._number):
                    path = self._path((use, (name, 0)), view.outs[0].type)
                    yield from (place for place, _ in path)

    def priced(self) -> list[min_cut.Tensor[CutVariable]]:
        """The tensors in the form that `min_cut` takes, in seconds per step."""
        priced = []
        for tensor in self._kept:
            use, edge = tensor.place
            weight = self._uses[use].weight
            seconds = weight * self._priced[use].cast(edge)
            producer = None if tensor.producer == HIGH else tensor.producer
            down = 0.0 if tensor.free else seconds
            priced.append(min_cut.Tensor(producer, tensor.early, seconds, down))
            if tensor.stored:
                late = [reader.variable for reader in tensor.late]
                priced.append(min_cut.Tensor(tensor.stored, late, seconds, seconds))
        return priced

    def free(self) -> dict[CutVariable, Times]:
        """The variables that are no nodes, with their seconds in (float32, 16 bits).

        Loop variables and branch results take no time of their own; a stored tensor
        costs `CostModel.held`.
        """
        prices: dict[CutVariable, Times] = {
            self.carried(value): (0.0, 0.0)
            for value in self._call_values.carried
            if value in self._turning
        }
        for tensor in self._kept:
            if tensor.stored:
                use, edge = tensor.place
                one = self._uses[use]
                high, low = self._priced[use].cost_model.held(one.graph.size(edge))
                prices[tensor.stored] = (one.weight * high, one.weight * low)
        return prices

    def casts(self, low: Set[CutVariable]) -> dict[FunctionUse, frozenset[Cast]]:
        """By use, the casts of an assignment; `low` are the 16-bit variables."""
        found: dict[FunctionUse, set[Cast]] = {use: set() for use in self._uses}
        for tensor in self._kept:
            use, edge = tensor.place
            found[use].update(Cast(edge, down) for down in tensor.casts(low))
        return {use: frozenset(casts) for use, casts in found.items()}

    def use_casts(
        self, low: Set[CutVariable], handed_on: Set[UseEdge]
    ) -> dict[FunctionUse, UseCasts]:
        """By use, its casts in the form of a plan.

        `low` are the 16-bit variables, `handed_on` as `interfaces.handed_on` gives it.
        """
        casts, late, saved = self.casts(low), self._late(low), self._saved(low)
        make = self._to_make(low, handed_on, late)
        return {u: UseCasts(casts[u], late[u], saved[u], make[u]) for u in self._uses}

    def _to_make(
        self,
        low: Set[CutVariable],
        handed_on: Set[UseEdge],
        late: Mapping[FunctionUse, Late],
    ) -> dict[FunctionUse, CastsToMake]:
        """By use, every cast that is to be added, those without a price too."""
        found: dict[FunctionUse, set[MadeCast]] = {use: set() for use in self._uses}
        given: dict[FunctionUse, set[ir.Edge]] = {use: set() for use in self._uses}
        for (use, edge), tensor in self._tensors.items():
            if (use, edge) in handed_on:
                tensor = dataclasses.replace(tensor, producer=LOW)
            forms = tensor.forms(low, late[use])
            found[use] |= {MadeCast(edge, form) for form in forms}
        for use, edge in self._given():
            given[use].add(edge)
        return {
            use: CastsToMake(frozenset(made), frozenset(given[use]))
            for use, made in found.items()
        }

    def _late(self, low: Set[CutVariable]) -> dict[FunctionUse, Late]:
        found: dict[FunctionUse, Late] = {use: {} for use in self._uses}
        for tensor in self._kept:
            reads = tensor.waiting(low)
            if reads:
                use = tensor.place[0]
                found[use].update(dict.fromkeys(reads, self._lives[use].before(reads)))
        return found

    def _saved(self, low: Set[CutVariable]) -> dict[FunctionUse, CastsSaved]:
        sites = self._call_values.sites.values()
        inner = {c for site in sites if site.call.loop for c in site.callees}
        counts = {use: [0, 0, 0] for use in self._uses}
        for tensor in self._kept:
            one = tensor.casts_saved(low, inner)
            for index, count in enumerate((one.shared, one.folded, one.hoisted)):
                counts[tensor.place[0]][index] += count
        return {use: CastsSaved(*count) for use, count in counts.items()}


def _may_turn(tensor: Tensor) -> bool:
    """Whether the producer or a reader of a tensor may be 16-bit."""
    readers = (reader.variable for reader in tensor.readers)
    return tensor.producer != HIGH or any(variable != HIGH for variable in readers)


def _turns(slot: op_schema.Slot, view: Typed) -> bool:
    return view.row is not None and slot.attr in view.row.attrs
