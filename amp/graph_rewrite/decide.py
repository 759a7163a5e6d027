"""From candidates to plans: prices every node and tensor, then lets `assign` choose.

Nothing is changed here, and no rule about ops may enter. All functions of a module are
decided together, each weighted by how often it runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Set
from typing import TypeAlias

from amp.graph_rewrite import assign, ir, op_schema, price
from amp.graph_rewrite.boundary import interfaces
from amp.graph_rewrite.context import Typed, turning
from amp.graph_rewrite.control_flow import Use
from amp.graph_rewrite.crossing import Carried, Crossing, Place
from amp.graph_rewrite.plan import Interface, Plan, Reason
from amp.graph_rewrite.program import Part, Program
from amp.graph_rewrite.propagate import Candidates

# What a precision is chosen for: a node of a use, a value between functions, a tensor
# list (its number); or one of the two that are settled.
Choice: TypeAlias = tuple[Use, str] | Carried | int | str
_LOW, _HIGH = "in 16 bits for ever", "in float32 for ever"
_Casts: TypeAlias = Mapping[Use, frozenset[tuple[ir.Edge, bool]]]


@dataclasses.dataclass(slots=True)
class _Tensor:
    """A tensor under one name, however many casts the graph already has on it."""

    place: Place
    producer: Choice
    free: bool  # a constant: its cast is folded
    readers: list[Choice] = dataclasses.field(default_factory=list)


def decide(program: Program) -> dict[Use, Plan]:
    """Prices the candidates of all uses and chooses among them.

    With `assignment="all"` every candidate is taken, whatever it costs.
    """
    parts, crossing, turns = program.parts, program.crossing, program.turning
    times = {
        use: price.times(part.graph, part.found, part.context, part.clock)
        for use, part in parts.items()
    }
    gathered = _Tensors(parts, crossing, turns)
    chosen, tie = _chosen(gathered, times)
    low = {
        use: frozenset(n for n in part.found.allowed if gathered.key(use, n) in chosen)
        for use, part in parts.items()
    }
    casts = gathered.casts(chosen | {_LOW})
    before = gathered.casts({_LOW})
    faces = interfaces(
        {use: (part.graph, part.found.typed) for use, part in parts.items()},
        crossing,
        low,
        frozenset(turns & chosen),
    )
    return {
        use: _plan(part, times[use], low[use], (before[use], casts[use]), tie, face)
        for (use, part), face in zip(parts.items(), faces, strict=True)
    }


def _plan(
    part: Part,
    times: Mapping[str, tuple[float, float]],
    chosen: frozenset[str],
    casts: tuple[frozenset[tuple[ir.Edge, bool]], frozenset[tuple[ir.Edge, bool]]],
    tie: float,
    interface: Interface,
) -> Plan:
    number, already = part.context.format.number, part.found.already

    def seconds(low: frozenset[str], made: frozenset[tuple[ir.Edge, bool]]) -> float:
        nodes = sum(times[name][name in low] for name in times)
        return nodes + sum(part.clock.cast(part.graph.shape(edge)) for edge, _ in made)

    return Plan(
        dtype=number,
        low=chosen,
        attrs={n: tuple(turning(part.found.typed[n], number)) for n in chosen},
        reasons=_reasons(part.found, chosen, times),
        casts=casts[1],
        seconds32=seconds(already, casts[0]),
        seconds16=seconds(chosen | already, casts[1]),
        tie=tie,
        interface=interface,
    )


def _chosen(
    gathered: _Tensors, times: Mapping[Use, Mapping[str, tuple[float, float]]]
) -> tuple[frozenset[Choice], float]:
    """What is to be 16-bit, and by how many seconds that may miss the cheapest."""
    free: dict[Choice, tuple[float, float]] = dict.fromkeys(gathered.turns, (0.0, 0.0))
    forced = False
    for use, part in gathered.parts.items():
        forced |= part.context.policy.assignment == "all"
        for name in part.found.allowed:
            key = gathered.key(use, name)
            high, low = free.get(key, (0.0, 0.0))
            more = times[use][name]
            free[key] = (high + part.weight * more[0], low + part.weight * more[1])
    if forced:
        return frozenset(free), -math.inf
    tensors = gathered.priced()
    return assign.solve(free, {_LOW}, tensors), assign.rounding(free, tensors)


class _Tensors:
    """Every tensor of a module, with who makes it and who reads it.

    A tensor that crosses a call is one tensor, named by where it comes from.
    """

    def __init__(
        self, parts: Mapping[Use, Part], crossing: Crossing, turns: Set[Carried]
    ) -> None:
        self.parts = parts
        self.turns = turns
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
            return _LOW
        if name not in found.allowed:
            return _HIGH
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
                reader: Choice = _LOW if slot.type == number else _HIGH
                if site is not None and slot.type == ir.FLOAT:
                    if self._crossing.passes(site, index):
                        continue  # those inside read it
                    reader = (
                        self._carried((use, (name, index))) if site.call.loop else _HIGH
                    )
                elif key != _HIGH and _turns(slot, view):
                    reader = key
                self._of((use, edge), slot.type).readers.append(reader)

    def _read_outside(self, use: Use, part: Part) -> None:
        """What the user sees, and what is returned to calls that stay as they are."""
        if use not in self._crossing.inner:
            for result in part.graph.results:
                if result.type == ir.FLOAT:
                    self._of((use, result.edge), ir.FLOAT).readers.append(_HIGH)
        number = part.context.format.number
        for name in part.context.fetched & part.found.typed.keys():
            for index, slot in enumerate(part.found.typed[name].outs):
                if slot.type in (ir.FLOAT, number):
                    place = (use, (name, index))
                    self._of(place, slot.type).readers.append(_HIGH)

    def _returned(self) -> None:
        for value in self._crossing.carried:
            reader = self._carried(
                (value.site.use, (value.site.node.name, value.index))
            )
            for place in value.returned:
                self._of(place, ir.FLOAT).readers.append(reader)

    def _carried(self, place: Place) -> Choice:
        value = self._crossing.made.get(place)
        return value if value is not None and value in self.turns else _HIGH

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
            producer = _LOW if number == low else self._carried(place)
            if (
                producer == _HIGH
                and view is not None
                and _turns(view.outs[index], view)
            ):
                producer = self.key(use, name)
            constant = view is not None and view.node.op == "Const"
            self._tensors[place] = _Tensor(place, producer, constant)
        return self._tensors[place]

    def _kept(self) -> Iterator[_Tensor]:
        for tensor in self._tensors.values():
            if tensor.producer != _HIGH or any(r != _HIGH for r in tensor.readers):
                yield tensor

    def priced(self) -> list[assign.Tensor[Choice]]:
        """The tensors as `assign` takes them."""
        priced = []
        for tensor in self._kept():
            use, edge = tensor.place
            part = self.parts[use]
            seconds = part.weight * part.clock.cast(part.graph.shape(edge))
            producer = None if tensor.producer == _HIGH else tensor.producer
            down = 0.0 if tensor.free else seconds
            priced.append(assign.Tensor(producer, tensor.readers, seconds, down))
        return priced

    def casts(self, low: Set[Choice]) -> _Casts:
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


def _turns(slot: op_schema.Slot, view: Typed) -> bool:
    return view.row is not None and slot.attr in view.row.attrs


def _is_bridge(view: Typed, number: int) -> bool:
    """Whether a node is a cast between float32 and the 16-bit type."""
    if view.node.op != "Cast" or not view.ins:
        return False
    return {view.ins[0].type, view.outs[0].type} == {ir.FLOAT, number}


def _reasons(
    found: Candidates,
    chosen: frozenset[str],
    times: Mapping[str, tuple[float, float]],
) -> dict[str, Reason]:
    reasons = dict(found.refused)
    for name in found.already:
        reasons[name] = Reason("already", name)
    for name, reason in found.allowed.items():
        high, low = times[name]
        figures = f"{high * 1e6:.1f} us in float32, {low * 1e6:.1f} us in 16 bits"
        reasons[name] = reason if name in chosen else Reason("cost", figures)
    return reasons
