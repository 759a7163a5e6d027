"""Finds sums that cancel to less than the rounding of their terms.

The gradient of a bias before a normalisation is 0 but for float32's own roundings, and
so are other sums whose terms cancel: no 16-bit type gives any digit of them, and it is
no fault of a twin's that they differ. They are noise, and nothing is judged by them.

Nothing is run here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from amp.graph_rewrite.comparison.pair import Watched
from amp.graph_rewrite.comparison.tensor_errors import Array
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.ops.op_table import Role, facts

_TOTAL = "amp_total"


def sums(watched: Iterable[Watched]) -> list[Watched]:
    """Those of some tensors that are sums of products or of elements."""
    return [each for each in watched if adds_up(each.op) and not each.edge[1]]


def adds_up(op: str) -> bool:
    """Whether an op adds up products or elements, and does nothing else."""
    return facts(op).role is Role.COMPUTE or facts(op).sums


def with_totals(module: ir.Module, names: Sequence[str]) -> ir.Module:
    """A side with nodes beside some sums that add up the absolute values instead."""
    nodes, lookup = dict(module.main.nodes), op_schema.lookup_of(module)
    for name in names:
        made = sized(nodes[name], name, module.main.nodes[name].inputs, lookup)
        nodes.update({node.name: node for node in made})
    return ir.Module(module.main.with_nodes(nodes), module.functions)


def total(name: str) -> ir.Edge:
    """Where the node beside a sum has its result."""
    return (f"{name}/{_TOTAL}", 0)


def sized(
    node: ir.Node,
    name: str,
    edges: Sequence[ir.Edge],
    lookup: op_schema.Lookup,
) -> Iterator[ir.Node]:
    """The nodes that compute a sum of absolute values.

    Args:
      node: the sum, in float32.
      name: of the node beside which they stand.
      edges: what to read instead of its inputs.
      lookup: of schemas.
    """
    known = lookup(node.op)
    ins = () if known is None else known.signature(node).ins
    inputs = list(edges)
    for index, slot in enumerate(ins):
        if slot.type == ir.FLOAT:
            size = f"{name}/{_TOTAL}_{index}"
            attrs: dict[str, ir.Value] = {"T": ir.Type(ir.FLOAT)}
            edge = (edges[index],)
            yield ir.Node(size, "Abs", edge, (), node.device, None, attrs)
            inputs[index] = (size, 0)
    made = dataclasses.replace(node, name=total(name)[0], pristine=False)
    yield dataclasses.replace(made, inputs=tuple(inputs))


def is_noise(exact: Array, terms: Array, unit: float) -> bool:
    """Whether a sum in float32 is less than the rounding of its terms to 16 bits.

    Args:
      exact: the sum.
      terms: the sum of the absolute values.
      unit: the unit roundoff of the 16-bit type.
    """
    return float(np.linalg.norm(exact)) <= unit * float(np.linalg.norm(terms))


def with_readers(
    noise: frozenset[ir.Edge], watched: Sequence[Watched], graph: ir.Graph
) -> frozenset[ir.Edge]:
    """Noise, and what is it in another shape, or unscaled."""
    found = set(noise)
    for each in watched:
        node = graph.nodes.get(each.edge[0])
        if node is not None and _hands_on(node):
            found |= {each.edge} if any(e in found for e in node.inputs) else set()
    return frozenset(found)


def _hands_on(node: ir.Node) -> bool:
    return node.flag(ir.UNSCALE) or facts(node.op).role is Role.MOVE
