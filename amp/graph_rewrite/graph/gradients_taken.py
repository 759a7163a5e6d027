"""Whether gradients are taken in a module, or of it.

By markers of the loss scale, by name scopes, ops, and the attributes that TensorFlow
gives functions. A gradient that a program writes by hand is not known as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from amp.graph_rewrite.graph import gradient_scopes, ir

# Attributes that TensorFlow gives a function whose gradient it takes from outside, and
# the function that computes this gradient.
DIFFERENTIATED, GRADIENT = "backward_function_name", "forward_function_name"
# The derivative of an op: ReluGrad, Conv2DBackpropFilter.
_OP = re.compile(r"(?:Grad|BackpropFilter)(?:V\d)?$")


def is_gradient(node: ir.Node) -> bool:
    """Whether a node computes a gradient, by its name scope or its op."""
    return gradient_scopes.depth(node.name) > 0 or bool(_OP.search(node.op))


def is_trained(graphs: Iterable[ir.Graph]) -> bool:
    """Whether any of the graphs takes a gradient, or a gradient of it is taken."""
    return any(map(_takes_or_gives, graphs))


def _takes_or_gives(graph: ir.Graph) -> bool:
    if DIFFERENTIATED in graph.attributes or GRADIENT in graph.attributes:
        return True
    nodes = graph.nodes.values()
    return any(node.flag(ir.UNSCALE) or is_gradient(node) for node in nodes)
