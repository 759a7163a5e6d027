"""Functions in which a search outside of TensorFlow asks for a gradient at a point.

SciPy's optimizers and L-BFGS of other libraries do. The function sets the weights to
what it is given and returns loss and gradient. A line search compares losses that
differ by less than 16 bits tell apart, and takes the zeros that an overflow leaves for
a minimum. Only tells such a function from others; that it stays float32 is
`eligibility`'s rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from amp.graph_rewrite.candidates.unscaled import writers, writing
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import Kind, facts


def searched(module: ir.Module, behind: Mapping[str, frozenset[str]]) -> str:
    """Why a module must stay float32 as a search calls it, "" if it need not.

    So it is where its main graph sets a variable to what the caller gives, unscales a
    gradient of that variable's shape, and no variable of a gradient's shape is updated
    by one (the scaler's may be, behind a gradient in the loss). A step that sets a
    counter or a buffer is none, and neither is one that is given weights and trains
    them (as in federated learning).

    Args:
      module: as it is analyzed.
      behind: what is downstream of unscale markers (`unscale_markers.behind_markers`).
    """
    graph = module.main
    markers = [node for node in graph.nodes.values() if node.flag(ir.UNSCALE)]
    shapes = {graph.shape((marker.name, 0)) for marker in markers}
    if not markers or _trains(module, behind, shapes):
        return ""
    names = frozenset(graph.nodes)
    setters = [graph.nodes[name] for name in writers(module, {graph.name: names})]
    given = _given(graph) if setters else frozenset()
    for setter in setters:
        value = setter.inputs[-1]
        if value[0] in given and graph.shape(value) in shapes - {None}:
            return f"{setter.name} sets a weight to what a search outside gives"
    return ""


def _trains(
    module: ir.Module,
    behind: Mapping[str, frozenset[str]],
    shapes: Set[ir.Shape],
) -> bool:
    """Whether what is downstream of gradients updates a variable of such a shape."""
    return any(
        {graph.shape(value) for value in node.inputs[1:]} & {*shapes, None}
        for graph, nodes in writing(module, behind)
        for node in nodes
    )


def _given(graph: ir.Graph) -> frozenset[str]:
    """The arguments and nodes that come from what the caller gives, and constants.

    What reads a variable or an iterator does not.
    """
    given = {arg.name for arg in graph.args if arg.type not in ir.HANDLES}
    fixed: set[str] = set()
    for name in graph.order:
        node = graph.nodes[name]
        sources = {source for source, _ in node.inputs}
        if facts(node.op).kind is Kind.CONSTANT:
            fixed.add(name)
        elif sources and sources <= given | fixed:
            (fixed if sources <= fixed else given).add(name)
    return frozenset(given)
