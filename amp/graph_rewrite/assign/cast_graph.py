"""Every tensor of a analysis: who makes it, who reads it, which casts that takes.

Nothing is chosen here: which nodes are 16-bit is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Set
from typing import TypeAlias

from amp.graph_rewrite.assign import min_cut
from amp.graph_rewrite.assign.liveness import Liveness
from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.candidates.call_values import CallValues, Carried, UseEdge
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.graph import bridges, ir, op_schema
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import Kind
from amp.graph_rewrite.plan import CastsSaved, Read


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor from the point on where its graph holds most bytes."""

    place: UseEdge


# What a precision is chosen for: a node of a use, a value between functions, a tensor
# list (its number), a tensor that is held; or one of the two that are settled.
Choice: TypeAlias = tuple[FunctionUse, str] | Carried | int | StoredTensor | str
LOW, HIGH = "in 16 bits for ever", "in float32 for ever"
# By an edge, the seconds in (float32, 16 bits) that a cast on it adds besides its own.
CastPrices: TypeAlias = dict[ir.Edge, Times]
Casts: TypeAlias = Mapping[FunctionUse, frozenset[tuple[ir.Edge, bool]]]
Late: TypeAlias = dict[Read, str]  # as in a plan


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader:
    """Who reads a tensor, where, and whether the tensor is held for it."""

    choice: Choice
    use: FunctionUse
    at: Read | None = None
    late: bool = False


@dataclasses.dataclass(slots=True)
class _Tensor:
    """A tensor under one name, however many casts the graph already has on it.

    Where it is held for late readers, it may be so in another type than it is made in:
    then it counts as two, the tensor as it is made and the tensor as it is held, which
    reads the first.
    """

    place: UseEdge
    producer: Choice
    free: bool  # a constant: its cast is folded
    holds: bool
    readers: list[_Reader] = dataclasses.field(default_factory=list)

    @property
    def stored(self) -> StoredTensor | None:
        return StoredTensor(self.place) if self.late else None

    @property
    def late(self) -> list[_Reader]:
        return [reader for reader in self.readers if self.holds and reader.late]

    @property
    def early(self) -> list[Choice]:
        """Who reads it as it is made."""
        stored = [self.stored] if self.stored else []
        return [r.choice for r in self.readers if not (self.holds and r.late)] + stored

    def casts(self, low: Set[Choice]) -> set[bool]:
        """Whether it is cast as soon as it is made: to 16 bits (True), to float32."""
        made_low = self.producer in low
        casts = {r in low for r in self.early if (r in low) != made_low}
        if not made_low and any(r.choice in low for r in self.late):
            casts.add(True)
        return casts - {True} if self.free else casts

    def waiting(self, low: Set[Choice]) -> list[Read]:
        """The late reads that get a cast of their own."""
        if self.stored not in low:
            return []
        return sorted(r.at for r in self.late if r.at and r.choice not in low)

    def casts_saved(
        self, low: Set[Choice], inner: Container[FunctionUse]
    ) -> CastsSaved:
        """What the reads in another type do without; `inner`: in loops."""
        made_low = self.producer in low
        other = [r.use for r in self.readers if (r.choice in low) != made_low]
        if not other:
            return CastsSaved()
        if self.free and not made_low:
            return CastsSaved(folded=len(other))
        hoisted = any(use != self.place[0] and use in inner for use in other)
        made = len(self.casts(low)) + bool(self.waiting(low))
        return CastsSaved(shared=max(len(other) - made, 0), hoisted=int(hoisted))


class Tensors:
    """Every tensor of a module, with who makes it and who reads it.

    A tensor that crosses a call is one tensor, named by where it comes from.
    """

    def __init__(
        self,
        parts: Mapping[FunctionUse, UseAnalysis],
        call_values: CallValues,
        turns: Set[Carried],
        cast_prices: Mapping[FunctionUse, CastPrices],
    ) -> None:
        self.parts = parts
        self.turns = turns
        self._cast_prices = cast_prices
        self._call_values = call_values
        self._number = next(iter(parts.values())).context.format.number
        self._tensors: dict[UseEdge, _Tensor] = {}
        self._lives = {
            use: Liveness(p.graph, p.found.typed) for use, p in parts.items()
        }
        for use, part in parts.items():
            self._read_by_nodes(use, part)
            self._read_outside(use, part)
        self._returned()

    def key(self, use: FunctionUse, name: str) -> Choice:
        """What the precision of a node is chosen as."""
        found = self.parts[use].found
        if name in found.already:
            return LOW
        if name not in found.allowed:
            return HIGH
        return self._call_values.lists.get((use, name), (use, name))

    def _read_by_nodes(self, use: FunctionUse, part: UseAnalysis) -> None:
        number = part.context.format.number
        numbers = (ir.FLOAT, number)
        for name, view in part.found.typed.items():
            if bridges.is_bridge(view.node, number):
                continue
            key = self.key(use, name)
            site = self._call_values.sites.get((use, name))
            for index, slot in enumerate(view.ins):
                if slot.type not in numbers:
                    continue
                edge = view.node.inputs[index]
                reader: Choice = LOW if slot.type == number else HIGH
                if site is not None and slot.type == ir.FLOAT:
                    if self._call_values.passes(site, index):
                        continue  # those inside read it
                    reader = (
                        self._carried((use, (name, index))) if site.call.loop else HIGH
                    )
                elif key != HIGH and _turns(slot, view):
                    reader = key
                late = site is None and self._lives[use].late(name)
                self._read((use, edge), slot.type, reader, (name, index), late)

    def _read_outside(self, use: FunctionUse, part: UseAnalysis) -> None:
        """What the user sees, and what is returned to calls that stay as they are."""
        if use not in self._call_values.inner:
            for result in part.graph.results:
                if result.type == ir.FLOAT:
                    self._read((use, result.edge), ir.FLOAT, HIGH)
        number = part.context.format.number
        for name in part.context.fetched & part.found.typed.keys():
            for index, slot in enumerate(part.found.typed[name].outs):
                if slot.type in (ir.FLOAT, number):
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
        reader: Choice,
        at: Read | None = None,
        late: bool = False,
    ) -> None:
        tensor, use = self._of(place, number), place[0]
        late = late and tensor.place[0] == use
        tensor.readers.append(_Reader(reader, use, at, late))

    def _carried(self, place: UseEdge) -> Choice:
        value = self._call_values.made.get(place)
        return value if value is not None and value in self.turns else HIGH

    def _of(self, place: UseEdge, number: int) -> _Tensor:
        """The tensor that an edge of type `number` is, or is a cast of."""
        low = self._number
        while True:
            place = self._call_values.source(place)
            view = self.parts[place[0]].found.typed.get(place[1][0])
            if view is None or not bridges.is_bridge(view.node, low):
                break
            place, number = (place[0], view.node.inputs[0]), view.ins[0].type
        if place not in self._tensors:
            use, (name, index) = place
            producer = LOW if number == low else self._carried(place)
            if producer == HIGH and view is not None and _turns(view.outs[index], view):
                producer = self.key(use, name)
            constant = view is not None and view.facts.kind is Kind.CONSTANT
            # Only what may be 16-bit where it is made may be so where it is held.
            holds = producer != HIGH and self.parts[place[0]].weight <= 1
            holds = holds and self._lives[place[0]].held(place[1])
            self._tensors[place] = _Tensor(place, producer, constant, holds)
        return self._tensors[place]

    def _kept(self) -> Iterator[_Tensor]:
        for tensor in self._tensors.values():
            if tensor.producer != HIGH or any(r.choice != HIGH for r in tensor.readers):
                yield tensor

    def priced(self) -> list[min_cut.Tensor[Choice]]:
        """The tensors as `assign` takes them."""
        priced = []
        for tensor in self._kept():
            use, edge = tensor.place
            part = self.parts[use]
            seconds = part.weight * part.cost_model.cast(part.graph.shape(edge))
            producer = None if tensor.producer == HIGH else tensor.producer
            down = 0.0 if tensor.free else seconds
            after = self._cast_prices[use].get(edge, (0.0, 0.0))
            up, down = (
                cast + part.weight * more
                for cast, more in zip((seconds, down), after, strict=True)
            )
            priced.append(min_cut.Tensor(producer, tensor.early, up, down))
            if tensor.stored:
                late = [reader.choice for reader in tensor.late]
                priced.append(min_cut.Tensor(tensor.stored, late, seconds, seconds))
        return priced

    def holding(self) -> dict[Choice, Times]:
        """Seconds that holding each tensor counts as, in (float32, 16 bits)."""
        prices: dict[Choice, Times] = {}
        for tensor in self._kept():
            if tensor.stored:
                use, edge = tensor.place
                part = self.parts[use]
                high, low = part.cost_model.held(part.graph.shape(edge))
                prices[tensor.stored] = (part.weight * high, part.weight * low)
        return prices

    def casts(self, low: Set[Choice]) -> Casts:
        """By use, what is cast if what is in `low` is 16-bit: (edge, to 16 bits)."""
        found: dict[FunctionUse, set[tuple[ir.Edge, bool]]] = {
            use: set() for use in self.parts
        }
        for tensor in self._kept():
            use, edge = tensor.place
            found[use].update((edge, down) for down in tensor.casts(low))
        return {use: frozenset(casts) for use, casts in found.items()}

    def late(self, low: Set[Choice]) -> dict[FunctionUse, Late]:
        """By use, the reads that wait for a cast of their own, as in a plan."""
        found: dict[FunctionUse, Late] = {use: {} for use in self.parts}
        for tensor in self._kept():
            reads = tensor.waiting(low)
            if reads:
                use = tensor.place[0]
                found[use].update(dict.fromkeys(reads, self._lives[use].before(reads)))
        return found

    def casts_saved(self, low: Set[Choice]) -> dict[FunctionUse, CastsSaved]:
        """By use, the casts that those of `casts` make needless."""
        sites = self._call_values.sites.values()
        inner = {c for site in sites if site.call.loop for c in site.callees}
        counts = {use: [0, 0, 0] for use in self.parts}
        for tensor in self._kept():
            one = tensor.casts_saved(low, inner)
            for index, count in enumerate((one.shared, one.folded, one.hoisted)):
                counts[tensor.place[0]][index] += count
        return {use: CastsSaved(*count) for use, count in counts.items()}


def _turns(slot: op_schema.Slot, view: Typed) -> bool:
    return view.row is not None and slot.attr in view.row.attrs
