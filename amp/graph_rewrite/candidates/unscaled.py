"""Training steps whose gradients were taken without the loss scale that is asked for.

Only tells such a graph from others; that it stays float32 is `eligibility`'s rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from amp.graph_rewrite.graph import (
    gradient_scopes,
    ir,
    op_schema,
    unscale_markers,
)
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.loss_scaling.scale import NoLossScale
from amp.policy import Policy

# The derivative of an op: ReluGrad, Conv2DBackpropFilter.
_OP = re.compile(r"(?:Grad|BackpropFilter)(?:V\d)?$")


def unscaled(module: ir.Module, policy: Policy) -> str:
    """Why a module must stay float32 for want of a loss scale, "" if it need not.

    So it is where the policy's rule scales, and the module updates variables by
    gradients, but has no marker of the unscaling: it was traced, built or saved
    before a scope could scale it. A forward pass that updates its statistics has
    no gradient in it, and a backward pass that TensorFlow calls has no update.

    Args:
      module: as it is analyzed.
      policy: settled.
    """
    if isinstance(policy.loss_scale, NoLossScale):
        return ""
    nodes = [node for graph in module.graphs() for node in graph.nodes.values()]
    if any(node.flag(ir.UNSCALE) for node in nodes):
        return ""
    behind = unscale_markers.downstream(module, _is_gradient)
    if not any(behind.values()):
        return ""
    writer = next(writers(module, behind), "")
    return writer and f"{writer} updates a variable by gradients without a loss scale"


def _is_gradient(node: ir.Node) -> bool:
    return gradient_scopes.depth(node.name) > 0 or bool(_OP.search(node.op))


def writers(module: ir.Module, among: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yields those of some nodes that update a variable.

    Args:
      module: as it is analyzed.
      among: names of nodes, by function; none of a function that is not in it.
    """
    lookup = op_schema.lookup_of(module)
    for graph in module.graphs():
        for node in map(graph.nodes.__getitem__, sorted(among.get(graph.name, ()))):
            schema = lookup(node.op) if facts(node.op).kind is Kind.WRITE else None
            ins = () if schema is None else schema.signature(node).ins
            if ins and (ins[0].type == ir.RESOURCE or ins[0].type > ir.REF_OFFSET):
                yield node.name
