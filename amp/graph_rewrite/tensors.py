"""Every tensor of a program: who makes it, who reads it, which casts that takes.

Nothing is chosen here: which nodes are 16-bit is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Set
from typing import TypeAlias

from amp.graph_rewrite import assign, ir, op_schema
from amp.graph_rewrite.context import Typed
from amp.graph_rewrite.control_flow import Use
from amp.graph_rewrite.crossing import Carried, Crossing, Place
from amp.graph_rewrite.instance import Times
from amp.graph_rewrite.plan import Spared
from amp.graph_rewrite.program import Part

# What a precision is chosen for: a node of a use, a value between functions, a tensor
# list (its number); or one of the two that are settled.
Choice: TypeAlias = tuple[Use, str] | Carried | int | str
LOW, HIGH = "in 16 bits for ever", "in float32 for ever"
# By an edge, the seconds in (float32, 16 bits) that a cast on it adds besides its own.
Apart: TypeAlias = dict[ir.Edge, Times]
Casts: TypeAlias = Mapping[Use, frozenset[tuple[ir.Edge, bool]]]


@dataclasses.dataclass(slots=True)
class _Tensor:
    """A tensor under one name, however many casts the graph already has on it."""

    place: Place
    producer: Choice
    free: bool  # a constant: its cast is folded
    readers: list[Choice] = dataclasses.field(default_factory=list)
    at: list[Use] = dataclasses.field(default_factory=list)  # where each reads it

    def add(self, reader: Choice, use: Use) -> None:
        self.readers.append(reader)
        self.at.append(use)

    def spared(self, low: Set[Choice], inner: Container[Use]) -> Spared:
        """What the reads in another type do without; `inner`: in loops."""
        made_low = self.producer in low
        pairs = zip(self.readers, self.at, strict=True)
        other = [use for reader, use in pairs if (reader in low) != made_low]
        if not other:
            return Spared()
        if self.free and not made_low:
            return Spared(folded=len(other))
        hoisted = any(use != self.place[0] and use in inner for use in other)
        return Spared(shared=len(other) - 1, hoisted=int(hoisted))


class Tensors:
    """Every tensor of a module, with who makes it and who reads it.

    A tensor that crosses a call is one tensor, named by where it comes from.
    """

    def __init__(
        self,
        parts: Mapping[Use, Part],
        crossing: Crossing,
        turns: Set[Carried],
        apart: Mapping[Use, Apart],
    ) -> None:
        self.parts = parts
        self.turns = turns
        self._apart = apart
        self._crossing = crossing
        self._number = next(iter(parts.values())).context.format.number
        self._tensors: dict[Place, _Tensor] = {}
        for use, part in parts.items():
            self._read_by_nodes(use, part)
            self._read_outside(use, part)
        self._returned()

    def key(self, use: Use, name: str) -> Choice:
        """What the precision of a node is chosen as."""
        found = self.parts[use].found
        if name in found.already:
            return LOW
        if name not in found.allowed:
            return HIGH
        return self._crossing.lists.get((use, name), (use, name))

    def _read_by_nodes(self, use: Use, part: Part) -> None:
        number = part.context.format.number
        numbers = (ir.FLOAT, number)
        for name, view in part.found.typed.items():
            if _is_bridge(view, number):
                continue
            key = self.key(use, name)
            site = self._crossing.sites.get((use, name))
            for index, slot in enumerate(view.ins):
                if slot.type not in numbers:
                    continue
                edge = view.node.inputs[index]
                reader: Choice = LOW if slot.type == number else HIGH
                if site is not None and slot.type == ir.FLOAT:
                    if self._crossing.passes(site, index):
                        continue  # those inside read it
                    reader = (
                        self._carried((use, (name, index))) if site.call.loop else HIGH
                    )
                elif key != HIGH and _turns(slot, view):
                    reader = key
                self._of((use, edge), slot.type).add(reader, use)

    def _read_outside(self, use: Use, part: Part) -> None:
        """What the user sees, and what is returned to calls that stay as they are."""
        if use not in self._crossing.inner:
            for result in part.graph.results:
                if result.type == ir.FLOAT:
                    self._of((use, result.edge), ir.FLOAT).add(HIGH, use)
        number = part.context.format.number
        for name in part.context.fetched & part.found.typed.keys():
            for index, slot in enumerate(part.found.typed[name].outs):
                if slot.type in (ir.FLOAT, number):
                    place = (use, (name, index))
                    self._of(place, slot.type).add(HIGH, use)

    def _returned(self) -> None:
        for value in self._crossing.carried:
            reader = self._carried(
                (value.site.use, (value.site.node.name, value.index))
            )
            for place in value.returned:
                self._of(place, ir.FLOAT).add(reader, place[0])

    def _carried(self, place: Place) -> Choice:
        value = self._crossing.made.get(place)
        return value if value is not None and value in self.turns else HIGH

    def _of(self, place: Place, number: int) -> _Tensor:
        """The tensor that an edge of type `number` is, or is a cast of."""
        low = self._number
        while True:
            place = self._crossing.source(place)
            view = self.parts[place[0]].found.typed.get(place[1][0])
            if view is None or not _is_bridge(view, low):
                break
            place, number = (place[0], view.node.inputs[0]), view.ins[0].type
        if place not in self._tensors:
            use, (name, index) = place
            producer = LOW if number == low else self._carried(place)
            if producer == HIGH and view is not None and _turns(view.outs[index], view):
                producer = self.key(use, name)
            constant = view is not None and view.node.op == "Const"
            self._tensors[place] = _Tensor(place, producer, constant)
        return self._tensors[place]

    def _kept(self) -> Iterator[_Tensor]:
        for tensor in self._tensors.values():
            if tensor.producer != HIGH or any(r != HIGH for r in tensor.readers):
                yield tensor

    def priced(self) -> list[assign.Tensor[Choice]]:
        """The tensors as `assign` takes them."""
        priced = []
        for tensor in self._kept():
            use, edge = tensor.place
            part = self.parts[use]
            seconds = part.weight * part.clock.cast(part.graph.shape(edge))
            producer = None if tensor.producer == HIGH else tensor.producer
            down = 0.0 if tensor.free else seconds
            after = self._apart[use].get(edge, (0.0, 0.0))
            up, down = (
                cast + part.weight * more
                for cast, more in zip((seconds, down), after, strict=True)
            )
            priced.append(assign.Tensor(producer, tensor.readers, up, down))
        return priced

    def casts(self, low: Set[Choice]) -> Casts:
        """By use, what is cast if what is in `low` is 16-bit: (edge, to 16 bits)."""
        found: dict[Use, set[tuple[ir.Edge, bool]]] = {use: set() for use in self.parts}
        for tensor in self._kept():
            use, edge = tensor.place
            made_low = tensor.producer in low
            if made_low and any(reader not in low for reader in tensor.readers):
                found[use].add((edge, False))
            read_low = any(reader in low for reader in tensor.readers)
            if not made_low and read_low and not tensor.free:
                found[use].add((edge, True))
        return {use: frozenset(casts) for use, casts in found.items()}

    def spared(self, low: Set[Choice]) -> dict[Use, Spared]:
        """By use, the casts that those of `casts` make needless."""
        sites = self._crossing.sites.values()
        inner = {c for site in sites if site.call.loop for c in site.callees}
        counts = {use: [0, 0, 0] for use in self.parts}
        for tensor in self._kept():
            one = tensor.spared(low, inner)
            for index, count in enumerate((one.shared, one.folded, one.hoisted)):
                counts[tensor.place[0]][index] += count
        return {use: Spared(*count) for use, count in counts.items()}


def _turns(slot: op_schema.Slot, view: Typed) -> bool:
    return view.row is not None and slot.attr in view.row.attrs


def _is_bridge(view: Typed, number: int) -> bool:
    """Whether a node is a cast between float32 and the 16-bit type."""
    if view.node.op != "Cast" or not view.ins:
        return False
    return {view.ins[0].type, view.outs[0].type} == {ir.FLOAT, number}
