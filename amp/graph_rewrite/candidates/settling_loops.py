"""Loops that run until what they compute settles: rounding may keep them from ending.

Loops of functions and of TensorFlow 1 alike. No cost may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.float_paths import FloatPaths
from amp.graph_rewrite.graph import frames, ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, UseEdge
from amp.graph_rewrite.ops.op_table import Kind
from amp.graph_rewrite.plan import Reason


def settling_loops(paths: FloatPaths) -> dict[Member, Reason]:
    """Refuses what a loop computes the difference from that its condition waits for::

        while max(abs(new - old)) > tolerance: old, new = new, f(new)

    In 16 bits the difference comes down to a unit in the last place and stays there. A
    loop is one of these if its condition comes, through floating numbers, truth values
    (a flag that the body sets) and counts of these, from a difference; an index of what
    is largest, or a shape, comes from none. All that it comes from is refused, over the
    trips and in the functions that are called, products too. A loop that ends once
    something is not finite waits for no size.

    Args:
      paths: of the module, with calls too that keep the types of their tensors, such
        as a branch that updates weights.
    """
    module = _Module(paths)
    found: dict[Member, Reason] = {}
    for start, own, label in module.conditions():
        names = module.before(start, own)
        if any(_differs(paths.view(name)) for name in names):
            found |= dict.fromkeys(names, Reason("settles", label))
    return found


def _differs(view: Typed) -> bool:
    """Whether a node subtracts one floating tensor from another one."""
    floats = sum(slot.type == ir.FLOAT for slot in view.ins)
    return view.facts.subtracts and floats > 1


def _comes_from(view: Typed, made: int, read: int) -> bool:
    """Whether a node makes values of a type of the values of a type that it reads.

    Integers of truth values are counts; of floating numbers, they are chosen by size or
    tell a shape. Those that a floating number is made with tell which one or how many,
    but for a cast. Whether a number is finite does not hang on its last place.
    """
    if view.facts.kind is Kind.CHECK:
        return False
    if read in ir.INTEGERS:
        return made != ir.FLOAT or view.facts.kind is Kind.CAST
    return read == ir.BOOL or (read == ir.FLOAT and made not in ir.INTEGERS)


def _type(view: Typed, index: int) -> int:
    """The type of an output; 0 of an op that is not registered, which is not known."""
    return view.outs[index].type if index < len(view.outs) else 0


class _Module:
    """The functions of a module, to be walked backwards from where loops end."""

    def __init__(self, paths: FloatPaths) -> None:
        self._graphs, self._typed = paths.graphs, paths.typed
        self._sites, self._handovers = paths.sites, paths.handovers

    def conditions(self) -> Iterator[tuple[UseEdge, _Own, str]]:
        """Where each loop's condition is made, what is inside the loop, its node."""
        for site in self._sites.values():
            if site.call.loop:
                yield self._result(site.callees[0], 0), _Own(site.use), site.node.name
        for use, views in self._typed.items():
            within = frames.frames(self._graphs[use])
            for name in within:
                if views[name].facts.kind is Kind.LOOP_CONDITION:
                    edge = views[name].node.inputs[0]
                    yield (use, edge), _Own(use, within, within[name]), name

    def before(self, start: UseEdge, own: _Own) -> list[Member]:
        """The nodes of a loop that its condition comes from, each once."""
        pending, seen = [start], {start}
        found: dict[Member, None] = {}
        while pending:
            use, (name, index) = place = pending.pop()
            view = self._typed[use].get(name)
            if view is not None and _type(view, index) not in ir.INTEGERS:
                found[use, name] = None
            for source in self._sources(place):
                if source not in seen and source in own:
                    seen.add(source)
                    pending.append(source)
        return list(found)

    def _sources(self, place: UseEdge) -> Iterator[UseEdge]:
        """The edges of numbers and truth values that one is made from."""
        use, (name, index) = place
        site = self._sites.get((use, name))
        if site is not None:
            if site.call.loop:
                yield self._result(site.callees[0], 0)
            yield from ((use, edge) for edge in site.node.inputs[: site.call.skip])
        if site is not None or name not in self._typed[use]:
            yield from self._handovers.back.get(place, ())
        else:
            view = self._typed[use][name]
            made = _type(view, index)
            for edge, slot in zip(view.node.inputs, view.ins, strict=False):
                if _comes_from(view, made, slot.type):
                    yield use, edge

    def _result(self, use: FunctionUse, index: int) -> UseEdge:
        return use, self._graphs[use].results[index].edge


@dataclasses.dataclass(frozen=True, slots=True)
class _Own:
    """What is inside of a loop.

    Attributes:
      use: the function that the loop is in. Of a loop that calls functions all of it is
        outside.
      within: the frames of its nodes.
      frame: that of a loop of TensorFlow 1.
    """

    use: FunctionUse
    within: Mapping[str, frames.Frame] = dataclasses.field(default_factory=dict)
    frame: frames.Frame = ()

    def __contains__(self, place: UseEdge) -> bool:
        use, (name, _) = place
        own = self.within.get(name, ())[: len(self.frame)]
        return use != self.use or bool(self.frame and own == self.frame)
