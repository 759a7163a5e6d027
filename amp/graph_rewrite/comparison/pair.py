"""`Pair`: a function in float32 and its twin; which tensors of them are looked at.

Both have their calls inlined (`observed.flat`), so that a tensor of the one is found in
the other by its name. Nothing is run here, and no array is looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from amp.graph_rewrite.comparison import pairing
from amp.graph_rewrite.comparison.pairing import Taken
from amp.graph_rewrite.graph import bridges, calls, frames, ir, op_schema
from amp.graph_rewrite.ops.op_table import Kind, facts

_STATE = frozenset({Kind.VARIABLE, Kind.READ_VARIABLE})
_STILL = frozenset({Kind.CONSTANT, Kind.VARIABLE, Kind.READ_VARIABLE})


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """A tensor that exists on both sides.

    Attributes:
      edge: where the function in float32 has it.
      twin: where the twin has it; its 16-bit form, if it has one.
      op: the type of the node that makes it, "argument" for an argument.
      dtype: its type in the twin.
      role: "result" of the function, "gradient" of a variable, or "".
    """

    edge: ir.Edge
    twin: ir.Edge
    op: str
    dtype: str
    role: str

    @property
    def name(self) -> str:
        """The node's name, with the number of the output if that is not the first."""
        return self.edge[0] if not self.edge[1] else f"{self.edge[0]}:{self.edge[1]}"


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A function in float32 and its twin, calls inlined.

    Attributes:
      plain: the function in float32.
      twin: the function by the plan.
      number: DataType number of the 16-bit type.
      variables: the arguments that are handles of variables.
    """

    plain: ir.Module
    twin: ir.Module
    number: int
    variables: frozenset[str]

    def taken(self) -> Taken:
        """What the function takes from elsewhere, in float32."""
        return pairing.taken(self.plain, self.variables)

    def watched(self) -> list[Watched]:
        """The tensors that exist on both sides, in topological order."""
        return [*_watched(self)]

    def may_be_low(self) -> list[Watched]:
        """The float32 tensors that a twin might hold in 16 bits, in order.

        Not what is computed of unscaled gradients, nor what an optimizer computes.
        """
        return [*_floating(self)]

    def scaled(self) -> frozenset[str]:
        """The nodes whose results the loss scale is a factor of."""
        graph, found = self.plain.main, set()
        behind = _behind(graph, {n.name for n in graph.nodes.values() if _unscales(n)})
        for name in graph.order:
            node = graph.nodes[name]
            reads = any(edge[0] in found for edge in node.inputs)
            if node.flag(ir.SEED) or (reads and name not in behind):
                found.add(name)
        return frozenset(found)

    def beside(self) -> frozenset[str]:
        """The nodes that show variables which no gradient is computed from: metrics.

        None where no gradients are taken.
        """
        graph = self.plain.main
        ends = [(n.name, 0) for n in graph.nodes.values() if _unscales(n)]
        needed = graph.computed_from(ends)
        found: set[str] = set()
        for name in graph.order if needed else ():
            node = graph.nodes[name]
            reads = any(edge[0] in found for edge in node.inputs)
            if reads or (facts(node.op).kind in _STATE and name not in needed):
                found.add(name)
        return frozenset(found)

    def called(self, name: str, number: int) -> Pair:
        """Both sides of a function that a node calls.

        Args:
          name: of the node.
          number: of the function, in the order in which the node names them.
        """
        plain, twin = (_called(m, name, number) for m in (self.plain, self.twin))
        return Pair(plain, twin, self.number, self.variables)

    def loops(self) -> list[str]:
        """Nodes that call functions, of which only the results are seen."""
        graph, functions = self.plain.main, self.plain.functions
        leading = _leading_to_results(graph)
        called = (node.name for node, _ in calls.calls(graph, functions))
        return [name for name in called if name in leading]


def _called(module: ir.Module, name: str, number: int) -> ir.Module:
    node = module.main.nodes[name]
    call = calls.call_of(node, module.functions)
    assert call is not None
    function = calls.callees_of(node, call)[number]
    return ir.Module(module.functions[function], module.functions)


def _leading_to_results(graph: ir.Graph) -> set[str]:
    """The nodes that results and gradients are computed from; all, if there are none.

    So what only an optimizer, a metric or a loss scaler computes is left out.
    """
    found = graph.computed_from(_roles(graph))
    return found or {*graph.nodes, *(arg.name for arg in graph.args)}


def _unscales(node: ir.Node) -> bool:
    return node.flag(ir.UNSCALE)


def _behind(graph: ir.Graph, first: set[str]) -> set[str]:
    """Some nodes, and all that is computed from them."""
    found = set(first)
    for name in graph.order:
        if any(edge[0] in found for edge in graph.nodes[name].inputs):
            found.add(name)
    return found


def _floating(pair: Pair) -> Iterator[Watched]:
    graph, lookup = pair.plain.main, op_schema.lookup_of(pair.plain)
    hidden = frames.not_every_run(graph)
    hidden |= _behind(graph, {n.name for n in graph.nodes.values() if _unscales(n)})
    leading = _leading_to_results(graph)
    for arg in graph.args:
        if arg.type == ir.FLOAT and arg.name in leading:
            yield Watched((arg.name, 0), (arg.name, 0), "argument", "float32", "")
    for name in graph.order:
        node = graph.nodes[name]
        known = lookup(node.op)
        if known is None or name in hidden or name not in leading:
            continue
        for index, slot in enumerate(known.signature(node).outs):
            opaque = slot.port in facts(node.op).opaque
            if slot.type == ir.FLOAT and not opaque and not _hands_on(name, graph):
                yield Watched((name, index), (name, index), node.op, "float32", "")


def _watched(pair: Pair) -> Iterator[Watched]:
    plain, twin = pair.plain.main, pair.twin.main
    low, hidden = low_forms(pair), frames.not_every_run(plain)
    roles = _roles(plain)
    lookup, twins = op_schema.lookup_of(pair.plain), op_schema.lookup_of(pair.twin)
    short, leading = ir.DTYPE_NAMES[pair.number], _leading_to_results(plain)
    for arg in plain.args:
        edge = (arg.name, 0)
        if arg.type == ir.FLOAT and edge in low:
            yield Watched(edge, low[edge], "argument", short, roles.get(edge, ""))
    for name in plain.order:
        node = plain.nodes[name]
        known = lookup(node.op)
        if known is None or name in hidden or name not in leading:
            continue
        still = facts(node.op).kind in _STILL
        for index, slot in enumerate(known.signature(node).outs):
            edge = (name, index)
            if slot.type != ir.FLOAT or slot.port in facts(node.op).opaque:
                continue
            other = twin.nodes.get(name)
            role = roles.get(edge, "")
            if edge in low:
                yield Watched(edge, low[edge], node.op, short, role)
            elif other is not None and not still and not _hands_on(name, plain):
                number = _type(other, index, twins)
                if number in (ir.FLOAT, pair.number):
                    dtype = ir.DTYPE_NAMES[number]
                    yield Watched(edge, edge, node.op, dtype, role)


def edge_type(graph: ir.Graph, edge: ir.Edge, lookup: op_schema.Lookup) -> int:
    """The DataType number of what a node makes, or of an argument."""
    node = graph.nodes.get(edge[0])
    if node is None:
        return next(arg.type for arg in graph.args if arg.name == edge[0])
    return _type(node, edge[1], lookup)


def _type(node: ir.Node, index: int, lookup: op_schema.Lookup) -> int:
    known = lookup(node.op)
    outs = () if known is None else known.signature(node).outs
    return outs[index].type if index < len(outs) else 0


def _is_constant(*nodes: ir.Node) -> bool:
    return all(facts(node.op).kind is Kind.CONSTANT for node in nodes)


def _roles(graph: ir.Graph) -> dict[ir.Edge, str]:
    """The gradients of variables, and what the function returns."""
    marked = (node for node in graph.nodes.values() if node.flag(ir.UNSCALE))
    gradients = {_made(n.inputs[0], graph): "gradient" for n in marked if n.inputs}
    return gradients | {_made(r.edge, graph): "result" for r in graph.results}


def _made(edge: ir.Edge, graph: ir.Graph) -> ir.Edge:
    """Where a tensor is made, which nodes may only hand on."""
    while _hands_on(edge[0], graph):
        edge = graph.nodes[edge[0]].inputs[0]
    return edge


def _hands_on(name: str, graph: ir.Graph) -> bool:
    """Whether a node only hands on what another one computes."""
    node = graph.nodes.get(name)
    if node is None or facts(node.op).kind is not Kind.IDENTITY:
        return False
    source = graph.nodes.get(node.inputs[0][0])
    return source is not None and facts(source.op).kind not in _STILL


def low_forms(pair: Pair) -> dict[ir.Edge, ir.Edge]:
    """For tensors that the twin casts or rounds to 16 bits: where it has that form."""
    plain, twin = pair.plain.main, pair.twin.main
    found: dict[ir.Edge, ir.Edge] = {}
    hidden = frames.not_every_run(twin)
    for name in twin.nodes.keys() - plain.nodes.keys() - hidden:
        node = twin.nodes[name]
        base = name.rpartition("/amp_")[0]
        if bridges.is_down(node, pair.number):
            found.setdefault(node.inputs[0], (name, 0))
        elif base in plain.nodes and _is_constant(node, plain.nodes[base]):
            found.setdefault((base, 0), (name, 0))
    return found
