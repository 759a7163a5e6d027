"""Bypasses IdentityN, through which TensorFlow passes values with a custom gradient.

Changes structure only: no types, no cost.
"""

from __future__ import annotations

import dataclasses

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.variable_reads import redirected
from amp.graph_rewrite.ops.op_table import Kind, facts


def bypass(module: ir.Module, feeds: frozenset[str], differentiable: bool) -> ir.Module:
    """Makes readers of an IdentityN read its inputs instead.

    `tf.custom_gradient` passes all inputs and results of a function through an
    IdentityN (a swish, the gradients that Keras hands to an optimizer). It hands each
    on as it is, but all that are float32 would have to have one type, and it stands
    between casts and arithmetic. Its custom gradient has no effect where gradients were
    taken before. In a function it becomes a NoOp, since nothing else can see it; in a
    GraphDef it stays, since a session may fetch it by name.

    Args:
      module: the module, calls inlined.
      feeds: nodes of the main graph that the caller replaces by name.
      differentiable: whether gradients may be taken of the result; the IdentityN stays
        then.
    """
    if differentiable:
        return module
    main = _bypassed(module.main, feeds)
    functions = {
        name: _bypassed(graph, frozenset()) for name, graph in module.functions.items()
    }
    return ir.Module(main, functions)


def _bypassed(graph: ir.Graph, feeds: frozenset[str]) -> ir.Graph:
    same: dict[ir.Edge, ir.Edge] = {}
    passed: set[str] = set()
    for name in graph.order:
        node = graph.nodes[name]
        if _hands_on(node) and name not in feeds:
            passed.add(name)
            for index, edge in enumerate(node.inputs):
                same[name, index] = same.get(edge, edge)
    if not passed:
        return graph
    made = redirected(graph, same)
    if not graph.name:
        return made
    nodes = {
        name: _nothing(node, graph) if name in passed else node
        for name, node in made.nodes.items()
    }
    return dataclasses.replace(made, nodes=nodes)


def _hands_on(node: ir.Node) -> bool:
    bundle = facts(node.op).kind is Kind.BUNDLE
    return bundle and not node.controls and not node.flag(ir.UNSCALE)


def _nothing(node: ir.Node, graph: ir.Graph) -> ir.Node:
    """A NoOp that those wait for that waited for the IdentityN."""
    sources = (source for source, _ in node.inputs if source in graph.nodes)
    controls = tuple(dict.fromkeys(sources))
    return ir.Node(node.name, "NoOp", (), controls, node.device, None)
