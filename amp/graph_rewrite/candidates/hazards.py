"""Hazards: nodes that must stay float32 because of what reads them or what they read.

Each function takes a typed graph and returns the nodes that it refuses, with reasons.
Nothing here looks at the size of values; `ranges` does.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping
from typing import TypeAlias

from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason

_DISCRETE = ir.INTEGERS | {ir.BOOL, ir.STRING}
_PLAIN = ir.FLOATS | _DISCRETE


def _writes_state(view: Typed) -> bool:
    if view.facts.kind is not Kind.WRITE:
        return False
    first = view.ins[0].type if view.ins else 0  # a variable's handle or reference
    return first == ir.RESOURCE or first > ir.REF_OFFSET


def references(graph: ir.Graph, typed: Mapping[str, Typed]) -> dict[str, Reason]:
    """Refuses nodes that read a v1 reference: a cast would read it at another time.

    The results of such a node may be cast, unless the node has control inputs that
    determine when it reads: Grappler moves a cast in front of an Identity, of whatever
    moves values and of some arithmetic, and the cast does not get the control inputs of
    the Identity. Then all that follows is refused too, up to and with a product. So it
    is with what reads a variable's memory behind an update, and with what hands it on.
    """
    found: dict[str, Reason] = {}
    timed: set[str] = set()  # readers with control inputs, and what follows them
    types = {view.signature.types for view in typed.values()}
    if not any(number > ir.REF_OFFSET for each in types for number in each):
        return found
    held = _held(graph, typed)
    late = _late(graph, typed, held)
    handing = _handing(graph, late, held)
    for name in graph.order:
        view = typed[name]
        source = next((e[0] for e in view.node.inputs if _is_reference(e, typed)), None)
        if source is not None and view.node.controls:
            timed.add(name)
        if source is None and name in handing and view.node.inputs:
            source = view.node.inputs[0][0]
        if name in late:
            source = late[name]
            if view.facts.role is not Role.COMPUTE:
                timed.add(name)
        if source is None:
            source = next((e[0] for e in view.node.inputs if e[0] in timed), None)
            if source is not None and view.facts.role is not Role.COMPUTE:
                timed.add(name)
        if source is not None:
            found[name] = Reason("variable", source)
    return found


_NODE_OF = operator.itemgetter(0)  # the node of an edge
_Held: TypeAlias = Mapping[str, frozenset[str]]
_NOTHING: frozenset[str] = frozenset()


def _late(graph: ir.Graph, typed: Mapping[str, Typed], held: _Held) -> dict[str, str]:
    """What reads a v1 variable's memory behind an update that the read is not behind.

    An Identity of a reference copies nothing. A reader of it that runs behind an update
    (by a control input, say, or in a later trip of a loop) sees the new values, and a
    cast of it has the old ones.

    Returns:
      Such readers, each with the node that it reads.
    """
    updates: dict[str, int] = {}  # of each variable, one bit each
    own: dict[str, int] = {}  # of each node that updates some, its bit
    for name in graph.order:
        if written := _taken(typed[name], held):
            own[name] = 1 << len(own)
            updates |= {v: updates.get(v, 0) | own[name] for v in written}
    late: dict[str, str] = {}
    done: dict[str, int] = {}  # those that a node is, or is behind
    known = None
    while own and known != done:  # once more for each loop around an update
        known = dict(done)
        for name in graph.order:
            node = graph.nodes[name]
            behind = own.get(name, 0)
            for source in (*map(_NODE_OF, node.inputs), *node.controls):
                behind |= done.get(source, 0)
            if behind:
                done[name] = behind
    for name, behind in done.items():
        if name in own:
            continue
        for source, _ in graph.nodes[name].inputs:
            new = behind & ~done.get(source, 0)
            if any(
                updates[v] & new for v in held.get(source, _NOTHING) & updates.keys()
            ):
                late[name] = source
    return late


def _held(graph: ir.Graph, typed: Mapping[str, Typed]) -> dict[str, frozenset[str]]:
    """The v1 variables whose memory a node's results may be, where there are any."""
    held: dict[str, frozenset[str]] = {}
    for name in graph.order:
        view = typed[name]
        if any(slot.type > ir.REF_OFFSET for slot in view.outs):
            held[name] = _taken(view, held) or frozenset([name])
        elif view.facts.work == "free":
            sources = [source for source, _ in view.node.inputs if source in held]
            if sources:
                held[name] = _NOTHING.union(*(held[source] for source in sources))
    return held


def _taken(view: Typed, held: _Held) -> frozenset[str]:
    """The v1 variables that a node takes by reference, to update them, as a rule."""
    pairs = zip(view.node.inputs, view.ins, strict=False)
    taken = [e[0] for e, slot in pairs if slot.type > ir.REF_OFFSET]
    return _NOTHING.union(*(held.get(source, _NOTHING) for source in taken))


def _handing(graph: ir.Graph, late: Mapping[str, str], held: _Held) -> set[str]:
    """The nodes that hand a variable's memory on to late readers."""
    found: set[str] = set()
    for name in reversed(graph.order):
        if name in late or name in found:
            found |= {
                source for source, _ in graph.nodes[name].inputs if source in held
            }
    return found


def _is_reference(edge: ir.Edge, typed: Mapping[str, Typed]) -> bool:
    producer = typed.get(edge[0])
    if producer is None or edge[1] >= len(producer.outs):
        return False
    return producer.outs[edge[1]].type > ir.REF_OFFSET


_FLOW = Reason("listed", "a TensorArray's flow, which orders the ops on it")


def flows(graph: ir.Graph, typed: Mapping[str, Typed]) -> dict[str, Reason]:
    """Refuses what hands on a TensorArray's flow, a float32 that has no meaning.

    The ops on the array take flows themselves, and only in float32.
    """
    found: dict[str, Reason] = {}
    pending = [
        (name, index)
        for name, view in typed.items()
        if view.facts.flows
        for index, slot in enumerate(view.outs)
        if slot.port in view.facts.flows
    ]
    seen = set(pending)
    while pending:
        for name, index in graph.readers.get(pending.pop(), ()):
            view = typed[name]
            if view.ins[index].port in view.facts.flows:
                continue
            found[name] = _FLOW
            made = {(name, i) for i, s in enumerate(view.outs) if s.type in ir.FLOATS}
            if view.facts.kind is Kind.BUNDLE:
                made = {(name, index)}
            pending += made - seen
            seen |= made
    return found


def sinks(
    graph: ir.Graph, typed: Mapping[str, Typed], refused: Mapping[str, Reason]
) -> dict[str, Reason]:
    """Refuses arithmetic all of whose results end in one of two ways.

    Case 1: they only update variables. The walk against the edges stops at products, at
    sums (the gradient of a bias) and at the function's results.
    Case 2: they are only summed to a scalar (the squared errors of a loss, which
    overflow in float16 from 256 on). The walk stops at products and at results.
    """
    found: dict[str, Reason] = {}
    returned = {result.edge[0] for result in graph.results}
    for name in reversed(graph.order):
        view = typed[name]
        if name in refused or name in returned or not view.float32:
            continue
        row = view.row
        if row is None or row.role is Role.COMPUTE:
            continue
        reason = _only_end(graph, view, typed, found)
        if reason is not None and (reason.rule == "scalar" or not row.sums):
            found[name] = reason
    return found


def _only_end(
    graph: ir.Graph,
    view: Typed,
    typed: Mapping[str, Typed],
    found: Mapping[str, Reason],
) -> Reason | None:
    """The end that all readers of a node's results are, None if there is none."""
    only = None
    for index in range(len(view.outs)):
        for reader, _ in graph.readers.get((view.node.name, index), ()):
            end = _sink(graph, typed[reader], found)
            if end is None or (only is not None and end != only):
                return None
            only = end
    return only


def _sink(graph: ir.Graph, view: Typed, found: Mapping[str, Reason]) -> Reason | None:
    """Why a node counts as an end in the sense of `sinks`, None if it does not."""
    node = view.node
    if node.name in found:
        return found[node.name]
    if view.row is not None and view.row.sums and graph.size((node.name, 0)) == ():
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
    """Refuses arithmetic whose results only lead to a discrete choice or a target.

    Every reader returns only bools, integers or strings (a comparison, TopK read for
    its indices), stops the gradient, or only leads to such nodes itself. Rounding these
    values saves little time and may change the choice, which training does not correct:
    a detector keeps other boxes, or ties appear. The walk against the edges passes
    nodes that are refused already, loops included. It stops at products, at nodes that
    read a product (TensorFlow fuses the two), at results, and at values of other types,
    such as tensor lists. To what only casts to integers read it goes through products,
    too: an index that a product computes (one_hot(i) @ range) is that index exactly.

    Args:
      graph: one function.
      typed: its nodes.
      refused: the nodes that earlier rules refused.
      products: nodes that compute a product, or call a function that does.
    """
    found: dict[str, Reason] = {}
    ends: dict[str, Reason] = {}
    whole: set[str] = set()  # casts to integers, and what only leads to such
    returned = {result.edge[0] for result in graph.results}
    for name in reversed(graph.order):
        view = typed[name]
        node, row = view.node, view.row
        types = view.signature.made
        if not _PLAIN.issuperset(types):
            continue
        floats = [i for i, number in enumerate(types) if number in ir.FLOATS]
        if types and (not floats or view.facts.kind is Kind.STOP_GRADIENT):
            ends[name] = Reason("decision", name)
            if view.facts.kind is Kind.CAST and ir.INTEGERS.issuperset(types):
                whole.add(name)
            continue
        if name in returned:
            continue
        readers = [r for i in floats for r, _ in graph.readers.get((name, i), ())]
        if readers and whole.issuperset(readers):
            whole.add(name)
            if name not in refused and row is not None and row.role is not Role.MOVE:
                found[name] = Reason("decision", readers[0])
        if name in products:
            continue
        if any(source in products for source, _ in node.inputs):
            continue
        if not readers and len(floats) < len(types):  # read for its indices
            ends[name] = Reason("decision", name)
        elif readers and all(reader in ends for reader in readers):
            ends[name] = ends[readers[0]]
        else:
            continue
        if name not in refused and row is not None and row.role is not Role.MOVE:
            found[name] = ends[name]
    return found
