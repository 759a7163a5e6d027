"""What may differ between two runs of a function on the same arguments, and the remedy.

Variables are restored by the caller. What the main graph takes from elsewhere is
recorded and handed in. Inside loops and branches, generators with seeds of their own
begin with the same seeds on both sides; what else is drawn there cannot be paired.

Nothing is run here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.graph.generators import is_random, repeating
from amp.graph_rewrite.ops.op_table import facts

_PARALLEL = "parallel_iterations"


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What a function takes from elsewhere, and what it changes there.

    Attributes:
      tensors: recorded once and handed to every copy: edge and DataType number.
      dropped: nodes left out of copies, since they change something but variables.
      unpaired: nodes that may give something else in each run, and stay.
    """

    tensors: tuple[tuple[ir.Edge, int], ...]
    dropped: frozenset[str]
    unpaired: tuple[str, ...]


def taken(module: ir.Module, variables: frozenset[str]) -> Taken:
    """Finds what a function takes from elsewhere.

    Args:
      module: in float32, calls inlined.
      variables: the arguments that are handles of variables.
    """
    graph, lookup = module.main, op_schema.lookup_of(module)
    tensors: list[tuple[ir.Edge, int]] = []
    dropped, unpaired = set(), []
    for node in graph.nodes.values():
        call = calls.call_of(node, module.functions)
        if call is not None:
            unpaired += [*_unpaired_in(node, module)]
        elif not _repeats(node, graph, variables, lookup):
            outs = [*_outputs(node, lookup)]
            if any(number in ir.HANDLES for _, number in outs):
                unpaired.append(f"{node.name} ({node.op})")
            elif outs:
                tensors += [out for out in outs if out[0] in _read(graph)]
            else:
                dropped.add(node.name)
    return Taken(tuple(tensors), frozenset(dropped), tuple(unpaired))


def _read(graph: ir.Graph) -> set[ir.Edge]:
    return {*graph.readers, *(result.edge for result in graph.results)}


def _outputs(node: ir.Node, lookup: op_schema.Lookup) -> Iterator[tuple[ir.Edge, int]]:
    known = lookup(node.op)
    for index, slot in enumerate(() if known is None else known.signature(node).outs):
        yield (node.name, index), slot.type


def _repeats(
    node: ir.Node, graph: ir.Graph, variables: frozenset[str], lookup: op_schema.Lookup
) -> bool:
    """Whether a node does the same in every run, once the variables are restored.

    A stateful node does if all state that it works on is a variable's, or was made by
    the graph itself (a TensorArray, a stack, an iterator made inside). What reads
    floating tensors has to run on both sides: their errors go through it.
    """
    if not op_schema.is_stateful(node.op) or facts(node.op).reads_state:
        return True
    known = lookup(node.op)
    signature = op_schema.UNKNOWN if known is None else known.signature(node)
    if any(slot.type == ir.FLOAT for slot in signature.ins):
        return True
    states = [
        edge[0]
        for edge, slot in zip(node.inputs, signature.ins, strict=False)
        if slot.type in ir.HANDLES
    ]
    if not states:
        return any(slot.type in ir.HANDLES for slot in signature.outs)
    return all(name in variables or name in graph.nodes for name in states)


def _unpaired_in(call: ir.Node, module: ir.Module) -> Iterator[str]:
    """What the functions of a call draw that neither seeds nor variables give."""
    for graph in _reached(call, module):
        for node in graph.nodes.values():
            if calls.call_of(node, module.functions) is not None or is_random(node):
                continue
            if op_schema.is_stateful(node.op) and _draws(node):
                yield f"{node.name} ({node.op}) in {call.name}"


def _draws(node: ir.Node) -> bool:
    """Whether a stateful node in a function gives what the next run may not give.

    Of those that work on a handle only iterators do: mostly the handle is a variable's.
    """
    known = op_schema.schema(node.op)
    signature = op_schema.UNKNOWN if known is None else known.signature(node)
    if not signature.outs or any(slot.type == ir.FLOAT for slot in signature.ins):
        return False
    held = any(slot.type in ir.HANDLES for slot in (*signature.ins, *signature.outs))
    return not held or node.has("output_types")


def _reached(call: ir.Node, module: ir.Module) -> Iterator[ir.Graph]:
    pending, seen = [call], set()
    while pending:
        node = pending.pop()
        kind = calls.call_of(node, module.functions)
        for name in calls.callees_of(node, kind) if kind is not None else ():
            if name in module.functions and name not in seen:
                seen.add(name)
                graph = module.functions[name]
                yield graph
                pending += graph.nodes.values()


def seeded(module: ir.Module) -> ir.Module:
    """The module so that the generators in its loops and branches repeat themselves.

    A generator without seeds would begin anew in each run, so it gets some. Trips of a
    loop that run in parallel would draw in any order, so they run one by one. Functions
    get new names if any of them has a generator.
    """
    functions = module.functions
    nodes = (node for graph in module.graphs() for node in graph.nodes.values())
    if not any(map(is_random, nodes)):
        return module
    names = {name: f"{name}_seeded" for name in functions}
    made = {
        names[name]: _seeded(graph, names[name], names, module)
        for name, graph in functions.items()
    }
    return ir.Module(_seeded(module.main, module.main.name, names, module), made)


def _seeded(
    graph: ir.Graph, name: str, names: dict[str, str], module: ir.Module
) -> ir.Graph:
    nodes = {}
    for node in graph.nodes.values():
        call = calls.call_of(node, module.functions)
        if call is not None:
            node = calls.renamed(node, call, names)
            if call.loop:
                node = node.changed(updates={_PARALLEL: 1})
        nodes[node.name] = repeating(node)
    return dataclasses.replace(graph, name=name, nodes=nodes)
