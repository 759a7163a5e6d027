"""Training steps whose gradients were taken without the loss scale that is asked for.

Only tells such a graph from others; that it stays float32 is `eligibility`'s rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from amp.graph_rewrite.graph import ir, op_schema, unscale_markers
from amp.graph_rewrite.graph.gradients_taken import is_gradient
from amp.graph_rewrite.ops.op_table import COMPUTE, Kind, facts
from amp.graph_rewrite.ops.structure import REPLACING
from amp.loss_scaling.scale import NoLossScale
from amp.policy import Policy


def unscaled(module: ir.Module, policy: Policy) -> str:
    """Why a module must stay float32 for want of a loss scale, "" if it need not.

    So it is where the policy's rule scales, and the module updates variables by
    gradients, but has no marker of the unscaling: it was traced, built or saved
    before a scope could scale it, or its gradients are written by hand. A forward pass
    that updates its statistics has no gradient in it, and a backward pass that
    TensorFlow calls has no update.

    Args:
      module: as it is analyzed.
      policy: settled.
    """
    if isinstance(policy.loss_scale, NoLossScale):
        return ""
    nodes = [node for graph in module.graphs() for node in graph.nodes.values()]
    if any(node.flag(ir.UNSCALE) for node in nodes):
        return ""
    behind = unscale_markers.downstream(module, is_gradient)
    writer, by = next(writers(module, behind), ""), "gradients"
    if not writer:
        writer, by = next(_by_hand(module), ""), "products of it"
    says = f"updates a variable by {by}, without a loss scale; see docs/limits.md"
    return writer and f"{writer} {says}"


def writers(module: ir.Module, among: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yields those of some nodes that update a variable.

    Args:
      module: as it is analyzed.
      among: names of nodes, by function; none of a function that is not in it.
    """
    for _, nodes in writing(module, among):
        yield from (node.name for node in nodes)


def writing(
    module: ir.Module, among: Mapping[str, Iterable[str]] | None = None
) -> Iterator[tuple[ir.Graph, list[ir.Node]]]:
    """Yields each graph, with its nodes, or those of some, that update a variable."""
    lookup = op_schema.lookup_of(module)

    def writes(node: ir.Node) -> bool:
        schema = lookup(node.op) if facts(node.op).kind is Kind.WRITE else None
        ins = () if schema is None else schema.signature(node).ins
        return bool(ins) and (ins[0].type == ir.RESOURCE or ins[0].type > ir.REF_OFFSET)

    for graph in module.graphs():
        names = graph.nodes if among is None else sorted(among.get(graph.name, ()))
        nodes = map(graph.nodes.__getitem__, names)
        yield graph, [node for node in nodes if writes(node)]


def _by_hand(module: ir.Module) -> Iterator[str]:
    """Yields nodes that update a variable by products of the variable itself.

    A gradient by weights is one of an error, which is computed of the weights; an
    optimizer's averages may stand between. An average of what a layer computes is no
    product of itself, and a state that is replaced is not added to.
    """
    for graph, nodes in writing(module):
        if nodes:
            yield from _by_own_products(graph, nodes)


@dataclasses.dataclass(slots=True)
class _Parts:
    """Of which variables something is computed, as bits of a number.

    Attributes:
      plain: of which without a product, or the like.
      products: of which by one.
    """

    plain: int = 0
    products: int = 0

    def add(self, other: _Parts) -> None:
        self.plain |= other.plain
        self.products |= other.products

    def count(self) -> int:
        return self.plain.bit_count() + self.products.bit_count()


def _by_own_products(graph: ir.Graph, writes: list[ir.Node]) -> Iterator[str]:
    variables = {edge: i for i, edge in enumerate({n.inputs[0]: None for n in writes})}
    held = {edge: _Parts(1 << i) for edge, i in variables.items()}
    names, before = frozenset(node.name for node in writes), 0
    given = _given(graph, held, names)
    while before != (before := sum(map(_Parts.count, held.values()))):
        for node in writes:  # what reads a variable later reads what was written
            held[node.inputs[0]].add(given[node.name])
        given = _given(graph, held, names)
    for node in writes:
        own, found = 1 << variables[node.inputs[0]], given[node.name]
        adds = node.op not in REPLACING or bool(found.plain & own)
        if adds and found.products & own:
            yield node.name


def _given(
    graph: ir.Graph, held: Mapping[ir.Edge, _Parts], writes: frozenset[str]
) -> dict[str, _Parts]:
    """Of what each node is computed; of a write, what is written."""
    parts: dict[str, _Parts] = {}
    for name in graph.order:
        node = graph.nodes[name]
        found = parts[name] = _Parts()
        for edge in node.inputs[name in writes :]:
            found.add(held.get(edge) or parts.get(edge[0]) or _Parts())
        if node.op in COMPUTE:
            found.products |= found.plain
            found.plain = 0
    return parts
