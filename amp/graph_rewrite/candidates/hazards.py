"""Hazards: arithmetic that must not turn 16-bit, by what it reads or what it is for.

Each function looks at a typed graph and returns the nodes it refuses, with the reason.
What its values may grow to is the matter of `ranges`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason

_FLOATS = frozenset({ir.FLOAT, ir.BFLOAT16, ir.HALF})
_DISCRETE = ir.INTEGERS | {ir.BOOL, ir.STRING}


def _writes_state(view: Typed) -> bool:
    if view.facts.kind is not Kind.WRITE:
        return False
    first = view.ins[0].type if view.ins else 0  # a variable's handle or reference
    return first == ir.RESOURCE or first > ir.REF_OFFSET


def references(
    graph: ir.Graph, typed: Mapping[str, Typed], refused: Mapping[str, Reason]
) -> dict[str, Reason]:
    """Refuses what reads a v1 reference, since a cast of it would read at another time.

    The reader's own result may be cast, unless control inputs say when it reads: to
    make it smaller sooner, Grappler moves a cast before an Identity and leaves the
    control inputs of the Identity behind.
    """
    found: dict[str, Reason] = {}
    timed: set[str] = set()
    if not any(t > ir.REF_OFFSET for v in typed.values() for t in v.signature.types):
        return found
    for name in graph.order:
        view = typed[name]
        source = next((e[0] for e in view.node.inputs if _is_reference(e, typed)), None)
        if source is not None and view.node.controls:
            timed.add(name)
        if source is None:
            source = next((e[0] for e in view.node.inputs if e[0] in timed), None)
        if source is not None and name not in refused:
            found[name] = Reason("variable", source)
    return found


def _is_reference(edge: ir.Edge, typed: Mapping[str, Typed]) -> bool:
    producer = typed.get(edge[0])
    if producer is None or edge[1] >= len(producer.outs):
        return False
    return producer.outs[edge[1]].type > ir.REF_OFFSET


def sinks(
    graph: ir.Graph, typed: Mapping[str, Typed], refused: Mapping[str, Reason]
) -> dict[str, Reason]:
    """Refuses arithmetic whose every reader has the same end that 16 bits do not serve.

    Case 1: it only updates variables; the walk against the edges stops at products, at
    sums (the gradient of a bias) and at the function's results.
    Case 2: it only is summed to a scalar (the squared errors of a loss, which float16
    cannot hold from 256 on); the walk stops at products and at results.
    """
    found: dict[str, Reason] = {}
    returned = {result.edge[0] for result in graph.results}
    for name in reversed(graph.order):
        view = typed[name]
        if name in refused or name in returned or not view.touches(ir.FLOAT):
            continue
        row = view.row
        if row is None or row.role is Role.COMPUTE:
            continue
        ends = {
            _sink(graph, typed[reader], found)
            for index in range(len(view.outs))
            for reader, _ in graph.readers.get((name, index), ())
        }
        reason = ends.pop() if len(ends) == 1 else None
        if reason is not None and (reason.rule == "scalar" or not row.sums):
            found[name] = reason
    return found


def _sink(graph: ir.Graph, view: Typed, found: Mapping[str, Reason]) -> Reason | None:
    node = view.node
    if node.name in found:
        return found[node.name]
    if view.row is not None and view.row.sums and graph.shape((node.name, 0)) == ():
        return Reason("scalar", node.name)
    if _writes_state(view):
        return Reason("state", node.name)
    return None


def decisions(
    graph: ir.Graph,
    typed: Mapping[str, Typed],
    refused: Mapping[str, Reason],
    products: Container[str],
) -> dict[str, Reason]:
    """Refuses arithmetic that only decides: on an index, a mask, an integer, a target.

    Every reader gives truth values, integers or text alone (a comparison, TopK for its
    indices), stops the gradient, or only decides itself. Rounding such values gains
    little and may decide otherwise, which no gradient mends: other boxes are kept, ties
    appear. The walk against the edges passes what is refused already, loops included,
    and stops at products, at what reads one (TensorFlow fuses those two), at results,
    and at values of other types, such as tensor lists.

    Args:
      graph, typed: looked at.
      refused: by earlier rules.
      products: nodes that compute a product, in functions that they call included.
    """
    found: dict[str, Reason] = {}
    ends: dict[str, Reason] = {}
    returned = {result.edge[0] for result in graph.results}
    for name in reversed(graph.order):
        view = typed[name]
        node, row = view.node, view.row
        types = [slot.type for slot in view.outs]
        floats = [i for i, number in enumerate(types) if number in _FLOATS]
        if not (_FLOATS | _DISCRETE).issuperset(types):
            continue
        if types and (not floats or view.facts.kind is Kind.STOP_GRADIENT):
            ends[name] = Reason("decision", name)
            continue
        if name in returned or name in products:
            continue
        if any(source in products for source, _ in node.inputs):
            continue
        readers = [r for i in floats for r, _ in graph.readers.get((name, i), ())]
        if not readers and len(floats) < len(types):  # read for its indices
            ends[name] = Reason("decision", name)
        elif readers and all(reader in ends for reader in readers):
            ends[name] = ends[readers[0]]
        else:
            continue
        if name not in refused and row is not None and row.role is not Role.MOVE:
            found[name] = ends[name]
    return found
