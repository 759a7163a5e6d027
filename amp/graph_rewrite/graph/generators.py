"""Generators of random numbers that start from their seeds in each new function.

What is to draw the same, and what is not, is not decided here.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Container, Mapping

from amp.graph_rewrite.graph import calls, ir, op_schema

_SEEDS = ("seed", "seed2")


def is_random(node: ir.Node) -> bool:
    """Whether a node is such a generator."""
    return all(node.has(attr) for attr in _SEEDS)


def repeating(node: ir.Node) -> ir.Node:
    """The node so that it draws the same numbers in every function made of it.

    A generator without seeds would begin with others, so it gets some, by its name.
    """
    if not is_random(node) or any(node.integer(attr, 0) for attr in _SEEDS):
        return node
    seed = zlib.crc32(node.name.encode()) >> 1
    return node.changed(updates={"seed": seed, "seed2": 1})


def drawing_apart(
    module: ir.Module,
    form: str,
    shared: Container[str] = (),
    others: Container[str] = (),
) -> ir.Module:
    """A module whose generators draw other numbers than those of its other forms.

    Where several forms of a step run by turns, each begins at its seeds: two steps
    would draw the same. What has no seeds draws at random in any case.

    Args:
      module: one of the forms.
      form: a name for it; the same one draws the same.
      shared: the names of nodes of the main graph that are one in all forms.
      others: the names of functions that other forms may call, too: what draws of
        these is called by another name.
    """
    if not any(map(_may_draw, module.graphs())):
        return module
    drawing = _drawing(module)
    ending = f"{zlib.crc32(form.encode()):08x}"
    names = {name: f"{name}_{ending}" if name in others else name for name in drawing}
    functions = {}
    for name, graph in module.functions.items():
        functions[name] = graph
        if name in names:
            graph, name = _graph_apart(graph, module, form, names), names[name]
            functions[name] = dataclasses.replace(graph, name=name)
    main = _graph_apart(module.main, module, form, names, shared)
    return ir.Module(main, functions)


def _may_draw(graph: ir.Graph) -> bool:
    return any(op_schema.attributes(op).issuperset(_SEEDS) for op in graph.ops)


def _drawing(module: ir.Module) -> list[str]:
    """The functions that draw by seeds, or call one that does."""
    callers: dict[str, list[str]] = {}
    pending = []
    for name, graph in module.functions.items():
        if _may_draw(graph) and any(map(_is_seeded, graph.nodes.values())):
            pending.append(name)
        for node, call in calls.calls(graph, module.functions):
            for callee in calls.callees_of(node, call):
                callers.setdefault(callee, []).append(name)
    found: dict[str, None] = {}
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = None
            pending += callers.get(name, ())
    return list(found)


def _graph_apart(
    graph: ir.Graph,
    module: ir.Module,
    form: str,
    names: Mapping[str, str],
    shared: Container[str] = (),
) -> ir.Graph:
    """A graph of a form, whose nodes call what draws by other names."""
    nodes = {}
    for name, node in graph.nodes.items():
        if name not in shared:
            call = calls.call_of(node, module.functions)
            if call is not None and names.keys() & calls.callees_of(node, call):
                node = calls.renamed(node, call, names)
            node = _apart(node, form)
        nodes[name] = node
    return graph.with_nodes(nodes)


def _is_seeded(node: ir.Node) -> bool:
    return is_random(node) and any(node.integer(attr, 0) for attr in _SEEDS)


def _apart(node: ir.Node, form: str) -> ir.Node:
    if not _is_seeded(node):
        return node
    seeds = [node.integer(attr, 0) for attr in _SEEDS]
    seed = zlib.crc32(f"{form} {seeds[-1]}".encode()) >> 1
    return node.changed(updates={_SEEDS[-1]: seed or 1})
