"""Roots: the tensors whose sizes no argument tells, and a step that tells them.

A batch that an iterator gives inside the function, the result of `tf.where`. The step
does what the original does and also returns the shapes of the roots; from these the
sizes of all that is computed from them are inferred. Nothing is run here.
"""

from __future__ import annotations

import dataclasses

from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.normalize.sizes import Sized
from amp.graph_rewrite.ops.op_table import Role, facts

_SHAPE = "amp_size"  # of the names of the nodes that a telling step has more


def roots(sized: Sized) -> tuple[ir.Edge, ...]:
    """The roots of the main graph on which the size of a product or a call depends.

    Args:
      sized: a module with sizes; those of the roots are assumed.
    """
    graph, functions = sized.module.main, sized.module.functions
    made = tuple(edge for edge in sized.assumed if edge[0] in graph.nodes)
    if not made:
        return ()
    leads: set[str] = set()
    for name in reversed(graph.order):
        node = graph.nodes[name]
        ends = facts(node.op).role is Role.COMPUTE
        if (
            ends
            or calls.call_of(node, functions) is not None
            or any(reader in leads for reader in _readers(graph, name))
        ):
            leads.add(name)
    return tuple(e for e in made if not leads.isdisjoint(_readers(graph, e[0])))


def _readers(graph: ir.Graph, name: str) -> list[str]:
    node, found = graph.nodes[name], []
    known = op_schema.schema(node.op)
    outs = () if known is None else known.signature(node).outs
    for index in range(len(outs)):
        found += [reader for reader, _ in graph.readers.get((name, index), ())]
    return found


def telling(module: ir.Module, edges: tuple[ir.Edge, ...], name: str) -> ir.Module:
    """The module, whose main function also returns the shapes of some tensors.

    Args:
      module: the function, with calls inlined.
      edges: the tensors, each of a node's.
      name: of the new main function.
    """
    main, lookup = module.main, op_schema.lookup_of(module)
    nodes, results = {**main.nodes}, [*main.results]
    for number, edge in enumerate(edges):
        own = f"{_SHAPE}_{number}"
        while own in nodes:
            own += "_"
        maker = nodes[edge[0]]
        known = lookup(maker.op)
        assert known is not None
        given = known.signature(maker).outs[edge[1]].type
        types: dict[str, ir.Value] = {
            "T": ir.Type(given),
            "out_type": ir.Type(ir.INT32),
        }
        nodes[own] = ir.Node(own, "Shape", (edge,), (), maker.device, None, types)
        results.append(ir.Result(own, ir.INT32, (own, 0)))
    made = dataclasses.replace(main, name=name, nodes=nodes, results=tuple(results))
    return ir.Module(made, module.functions)
