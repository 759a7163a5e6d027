"""The numbers that a function gives which takes no gradient.

They are its results, and what it writes to variables, as far as a product computes them
and rounding changes them by little. Copies are made in `copies`, not here; how large an
error they may have is `accuracy`'s to say.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from amp.graph_rewrite.graph import calls, gradients_taken, ir, op_schema
from amp.graph_rewrite.normalize.inner_steps import Way, every_way, graphs_on
from amp.graph_rewrite.normalize.wanted import (
    NotRepeatable,
    Read,
    Wanted,
    inside,
    run_by,
    taken_by,
    takes_from_elsewhere,
)
from amp.graph_rewrite.ops.op_table import COMPUTE, Kind, facts

_DISCRETE = ir.INTEGERS | {ir.BOOL}
_COMPARED = frozenset({ir.FLOAT, ir.DOUBLE, ir.COMPLEX64, ir.COMPLEX128})
_WHOLE = frozenset({Kind.ROUND, Kind.SIGN, Kind.REMAINDER})


class _Value(enum.IntEnum):
    """What a tensor depends on."""

    GIVEN = 0  # no product
    ROUNDED = 1  # products; a rounding of them changes it as much as them, or little
    DECIDED = 2  # an order or a whole number that rounding may change: then it jumps


NONE = (
    "it gives nothing to compare: no number that a product computes and rounding moves"
)


def results(module: ir.Module) -> Wanted:
    """Finds the numbers that a function gives.

    Args:
      module: the function in float32, with its calls inlined.

    Raises:
      NotRepeatable: it takes gradients, or a tape takes them of it; it gives no such
        number, or one that depends on what can neither be repeated nor be recorded.
    """
    _must_not_train(module)
    found = (_of(module, way) for way in every_way(module))
    wanted = next((each for each in found if each is not None), None)
    if wanted is None:
        raise NotRepeatable(NONE)
    return wanted


def _of(module: ir.Module, way: Way) -> Wanted | None:
    """What one graph gives, None if nothing.

    Args:
      module: the function.
      way: to the graph. Of another than the main one what is written is looked at
        alone: only that is float32 in every rewritten function.

    Raises:
      NotRepeatable: as of `results`.
    """
    graph = graphs_on(module, way)[-1]
    given: dict[ir.Edge, Read] = {}
    for read in itertools.chain(() if way else _results(graph), _writes(graph, module)):
        given.setdefault(read.edge(graph), read)
    if not given:
        return None
    values = _values(module, graph, lambda node: takes_from_elsewhere(node, module))
    first = {e: r for e, r in given.items() if values.get(e) is _Value.ROUNDED}
    if not first:
        return None
    found, taken = taken_by(module, graph, first)
    wanted = Wanted(
        reads=tuple(first.values()),
        names=tuple(name for name, _ in first),
        labels=("",) * len(first),
        gradients=False,
        taken=tuple(taken),
        stood_for=tuple(edge for edge, _ in taken),
        scaled=False,
    )
    return inside(module, way, wanted, found) if way else wanted


def rounded(
    module: ir.Module,
    edges: Iterable[ir.Edge],
    is_recorded: Callable[[ir.Node], bool],
) -> list[ir.Edge]:
    """Those of some edges of the main graph that a product computes, and no decision.

    Args:
      module: the function.
      edges: the edges.
      is_recorded: whether a node runs but once, so that what it gives is the same in
        all copies.

    Raises:
      NotRepeatable: the module takes gradients, or a tape takes them of it.
    """
    _must_not_train(module)
    graph, lookup = module.main, op_schema.lookup_of(module)
    values = _values(module, graph, is_recorded)
    return [
        edge
        for edge in edges
        if values.get(edge) is _Value.ROUNDED
        and (known := lookup(graph.nodes[edge[0]].op)) is not None
        and known.signature(graph.nodes[edge[0]]).outs[edge[1]].type in _COMPARED
    ]


def _must_not_train(module: ir.Module) -> None:
    if gradients_taken.is_trained(module.graphs()):
        raise NotRepeatable("it has no gradients of variables")


def _results(graph: ir.Graph) -> Iterator[Read]:
    for index, result in enumerate(graph.results):
        if result.type in _COMPARED:
            yield Read("", index, result.type)


def _writes(graph: ir.Graph, module: ir.Module) -> Iterator[Read]:
    """What reads a number to write it to a variable."""
    lookup = op_schema.lookup_of(module)
    for node in graph.nodes.values():
        known = lookup(node.op) if facts(node.op).kind is Kind.WRITE else None
        slots = () if known is None else known.signature(node).ins
        yield from (
            Read(node.name, number, slot.type)
            for number, slot in enumerate(slots)
            if slot.type in _COMPARED
        )


def _values(
    module: ir.Module, graph: ir.Graph, is_recorded: Callable[[ir.Node], bool]
) -> Mapping[ir.Edge, _Value]:
    """What each tensor of a graph depends on.

    In time linear in its nodes; where loops of TensorFlow 1 go round, once more for
    each two loops that are one behind or in the other, as a value only ever rises.
    """
    found: dict[ir.Edge, _Value] = {}
    lookup = op_schema.lookup_of(module)
    nodes = [graph.nodes[name] for name in graph.order]
    nodes = [node for node in nodes if not is_recorded(node)]
    loops = any(facts(node.op).kind is Kind.NEXT_ITERATION for node in nodes)
    before: dict[ir.Edge, _Value] | None = None
    while before != found:
        before = dict(found) if loops else found
        for node in nodes:
            _pass(node, module, lookup, found)
    return found


def _pass(
    node: ir.Node,
    module: ir.Module,
    lookup: op_schema.Lookup,
    found: dict[ir.Edge, _Value],
) -> None:
    """Notes what the results of a node depend on."""
    known = lookup(node.op)
    if known is None:
        return
    signature = known.signature(node)
    value = _made_by(node, module, lookup)
    if facts(node.op).kind is not Kind.SHAPE:
        types = [slot.type for slot in signature.ins]
        value = max(value, _of_inputs(node, module, types, found))
    if value is _Value.ROUNDED and facts(node.op).kind in _WHOLE:
        value = _Value.DECIDED
    for index, slot in enumerate(signature.outs):
        decides = value is not _Value.GIVEN and slot.type in _DISCRETE
        found[node.name, index] = _Value.DECIDED if decides else value


def _of_inputs(
    node: ir.Node,
    module: ir.Module,
    types: Iterable[int],
    found: Mapping[ir.Edge, _Value],
) -> _Value:
    """What the results of a node depend on by its inputs.

    Not on what chooses among elements, if they are computed: few are near the point at
    which the choice changes (see `accuracy` of results). Among constants it is a jump.
    """
    pairs = [
        (type_, found.get(edge, _Value.GIVEN))
        for edge, type_ in zip(node.inputs, types, strict=False)
    ]
    every = max((value for _, value in pairs), default=_Value.GIVEN)
    calling = calls.call_of(node, module.functions) is not None
    if calling or facts(node.op).kind in (Kind.CAST, Kind.SWITCH):
        return every
    chosen = [value for type_, value in pairs if type_ != ir.BOOL]
    floats = any(type_ in ir.FLOATS for type_, _ in pairs)
    if not floats or max(chosen) is _Value.GIVEN:
        return every
    return max(chosen)


def _made_by(node: ir.Node, module: ir.Module, lookup: op_schema.Lookup) -> _Value:
    """What the results of a node depend on by what it does itself.

    Whether a loop runs once more is not asked: where that is held against an error, the
    results are as exact as it says.
    """
    call = calls.call_of(node, module.functions)
    if call is None:
        return _Value.ROUNDED if node.op in COMPUTE else _Value.GIVEN
    inside = [node]
    if call.loop:
        body = calls.callees_of(node, call)[-1]
        inside = [*module.functions[body].nodes.values()]
    run = [each for one in inside for each in run_by(one, module)]
    if not any(each.op in COMPUTE for each in run):
        return _Value.GIVEN
    return _Value.DECIDED if _decide(run, lookup) else _Value.ROUNDED


def _decide(nodes: Iterable[ir.Node], lookup: op_schema.Lookup) -> bool:
    """Whether some nodes make whole numbers of floats, or count where they are so."""
    asks = counts = False
    for node in nodes:
        known, kind = lookup(node.op), facts(node.op).kind
        if known is None or kind is Kind.SHAPE:
            continue
        signature = known.signature(node)
        ins = {slot.type for slot in signature.ins}
        outs = {slot.type for slot in signature.outs}
        if not ins.isdisjoint(_COMPARED):
            if kind in _WHOLE or not outs.isdisjoint(ir.INTEGERS):
                return True
            asks = asks or ir.BOOL in outs
        counts = counts or (kind is Kind.CAST and ir.BOOL in ins)
    return asks and counts
