"""What a run computes that is compared: its gradients, or its results if it takes none.

Used by `run_plans`; `run_checks` compares. No run is made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence
from typing import Any

from amp.graph_rewrite.graph import calls, frames, generators, ir, op_schema
from amp.graph_rewrite.normalize import wanted, wanted_results
from amp.graph_rewrite.normalize.wanted import NotRepeatable
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.integration.sessions.policy_view import edge_of


@dataclasses.dataclass(frozen=True, slots=True)
class RunValues:
    """What is compared of a run, by the names of the user's nodes.

    Attributes:
      edges: the tensors to fetch: for each gradient the unscaled one, or the results.
      names: for each, the node that makes it.
      gradients: whether they are gradients.
      taken: the edges that come from what cannot run twice.
      unawaited: the nodes that cannot run twice, and that others only wait for.
      scales, inverses: the edges of loss scales, and of what unscales by them.
      weights: the variables that gradients depend on.
    """

    edges: tuple[ir.Edge, ...]
    names: Sequence[str]
    gradients: bool
    taken: Sequence[ir.Edge]
    unawaited: frozenset[str] = frozenset()
    scales: Sequence[ir.Edge] = ()
    inverses: Sequence[ir.Edge] = ()
    weights: frozenset[str] = frozenset()


def values_of(
    module: ir.Module,
    feeds: Iterable[Any],
    fetches: Iterable[Any],
    executed: Container[str],
) -> RunValues:
    """What is compared of a run.

    Args:
      module: the run as a graph of its own, as the user built it.
      feeds: references of the tensors that are fed.
      fetches: the tensors that are fetched.
      executed: the nodes that the run executes: gradients may be fed as well.

    Raises:
      NotRepeatable: it cannot be computed without changing something, or there is
        nothing.
    """
    fed = {edge_of(reference.deref()) for reference in feeds}
    graph, lookup = module.main, op_schema.lookup_of(module)
    first: dict[ir.Edge, str] = {}  # by gradient, one of the markers that read it
    inverses: dict[ir.Edge, None] = {}
    for node in graph.nodes.values():
        taken_here = node.name in executed and (node.name, 0) not in fed
        known = lookup(node.op) if taken_here and node.flag(ir.UNSCALE) else None
        if known is not None and known.signature(node).ins[0].type == ir.FLOAT:
            first.setdefault(node.inputs[0], node.name)
            inverses.update(dict.fromkeys(node.inputs[1:]))
    if not first:
        return _results(module, fetches, fed)
    seeds = [node for node in graph.nodes.values() if node.flag(ir.SEED)]
    scales = dict.fromkeys(node.inputs[1] for node in seeds)
    needed = _Needed(module, fed, {*inverses, *scales})
    needed.by(first.values())
    return RunValues(
        tuple((marker, 0) for marker in first.values()),
        tuple(name for name, _ in first),
        True,
        needed.recordable(),
        frozenset(needed.unawaited),
        [*scales],
        [*inverses],
        _weights(graph, needed.names, lookup),
    )


def _results(
    module: ir.Module, fetches: Iterable[Any], fed: Container[ir.Edge]
) -> RunValues:
    """The results of a run that takes no gradient.

    Raises:
      NotRepeatable: as of `values_of`.
    """
    fetched = dict.fromkeys(map(edge_of, fetches))
    needed = _Needed(module, fed, frozenset())
    unfed = [edge for edge in fetched if edge not in fed]
    edges = wanted_results.rounded(module, unfed, needed.is_recorded)
    if not edges:
        raise NotRepeatable(wanted_results.NONE)
    needed.by(name for name, _ in edges)
    names = [name for name, _ in edges]
    taken, unawaited = needed.recordable(), frozenset(needed.unawaited)
    return RunValues((*edges,), names, False, taken, unawaited)


class _Needed:
    """What some nodes are computed from, up to what cannot run twice.

    Args:
      module: the run.
      fed: the edges that are fed.
      given: further edges whose values are known.

    Attributes:
      names: of the nodes.
      unawaited: as of `RunValues`.
    """

    def __init__(
        self, module: ir.Module, fed: Container[ir.Edge], given: Container[ir.Edge]
    ) -> None:
        self._module, self._fed, self._given = module, fed, given
        self._lookup = op_schema.lookup_of(module)
        self._hidden = frames.not_every_run(module.main)
        self._taken: dict[ir.Edge, None] = {}
        self.names: set[str] = set()
        self.unawaited: set[str] = set()
        self._recorded: dict[str, bool] = {}

    def by(self, names: Iterable[str]) -> None:
        """Adds nodes, and what they are computed from.

        Raises:
          NotRepeatable: one cannot be computed without changing something.
        """
        waiting = [*names]
        self.names.update(waiting)
        while waiting:
            sources = list(self._sources(self._module.main.nodes[waiting.pop()]))
            waiting += [name for name in sources if name not in self.names]
            self.names.update(sources)

    def _sources(self, node: ir.Node) -> Iterable[str]:
        if node.name in self._hidden and (node.flag(ir.SEED) or node.flag(ir.UNSCALE)):
            raise NotRepeatable("its gradients are taken in a loop or branch")
        for edge in node.inputs:
            if edge in self._fed or edge in self._given:
                continue
            if self.is_recorded(self._module.main.nodes[edge[0]]):
                self._taken[edge] = None
            else:
                yield edge[0]
        for name in node.controls:
            if not self.is_recorded(self._module.main.nodes[name]):
                yield name
            elif name in self._hidden:  # what waits for it is in the same loop
                raise NotRepeatable(f"node {name} cannot run twice")
            else:
                self.unawaited.add(name)

    def is_recorded(self, node: ir.Node) -> bool:
        """Whether a node, or what it calls, may not run twice; see `_repeats`."""
        if node.name not in self._recorded:
            run = wanted.run_by(node, self._module)
            repeat = all(_repeats(each, self._module, self._lookup) for each in run)
            self._recorded[node.name] = not repeat
        return self._recorded[node.name]

    def recordable(self) -> list[ir.Edge]:
        """The edges that come from what cannot run twice, and can be fetched and fed.

        Raises:
          NotRepeatable: one cannot.
        """
        for name, port in self._taken:
            node = self._module.main.nodes[name]
            known = self._lookup(node.op)
            type_ = known.signature(node).outs[port].type if known is not None else 0
            # TensorFlow takes a call apart before it looks at what is fed.
            call = calls.call_of(node, self._module.functions) is not None
            apart = call or name in self._hidden
            if apart or type_ in ir.HANDLES or not 0 < type_ < ir.REF_OFFSET:
                raise NotRepeatable(f"node {name} ({node.op}) cannot run twice")
        return [*self._taken]


def _weights(
    graph: ir.Graph, names: Iterable[str], lookup: op_schema.Lookup
) -> frozenset[str]:
    """The variables of floating-point numbers among some nodes."""
    nodes = map(graph.nodes.__getitem__, names)
    return frozenset(
        node.name
        for node in nodes
        if not ir.FLOATS.isdisjoint(node.types("dtype"))
        and (known := lookup(node.op)) is not None
        and _names_variable(known.signature(node))
    )


def _names_variable(signature: op_schema.Signature) -> bool:
    """Whether an op makes handles, or references, of nothing."""
    outs = {slot.type for slot in signature.outs}
    handles = outs <= ir.HANDLES or min(outs) > ir.REF_OFFSET
    return not signature.ins and bool(outs) and handles


def _repeats(node: ir.Node, module: ir.Module, lookup: op_schema.Lookup) -> bool:
    """Whether a second run of a node gives the same, and changes nothing.

    Not if it is given a reference and is no control flow, which hands it on: TensorFlow
    calls none of these stateful, though most write to it. Case 1: TensorFlow says so.
    Case 2: it works on an array or a stack, which are of one run. Case 3: it names a
    variable. Case 4: it checks something. What prints would print again.
    """
    row, known = facts(node.op), lookup(node.op)
    ins = () if known is None else known.signature(node).ins
    if generators.is_random(node) or row.kind is Kind.PRINT:
        return False
    if not row.in_frames and any(slot.type > ir.REF_OFFSET for slot in ins):
        return False
    if not wanted.takes_from_elsewhere(node, module):
        return True  # Case 1
    if row.same_list or row.hands_on_list:
        return True  # Case 2
    if known is None:
        return False
    if not ins:
        return _names_variable(known.signature(node))  # Case 3
    return not known.signature(node).outs and ins[0].type == ir.BOOL  # Case 4
