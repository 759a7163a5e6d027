"""Signatures of a SavedModel: their tensors, and the part of the graph that each runs.

Used by `saved_models` and `explained_files`. Works on the protobuf messages; nothing is
rewritten or executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amp.errors import GraphError
from amp.integration.files import graphs


def tensors(info: Any) -> Iterator[str]:
    """The tensors that one input or output of a signature consists of."""
    match info.WhichOneof("encoding"):
        case "name":
            yield info.name
        case "coo_sparse":
            sparse = info.coo_sparse
            yield sparse.values_tensor_name
            yield sparse.indices_tensor_name
            yield sparse.dense_shape_tensor_name
        case "composite_tensor":
            for component in info.composite_tensor.components:
                yield from tensors(component)


def _names(meta: Any) -> list[str]:
    return sorted(n for n in meta.signature_def if not n.startswith("__saved_model"))


def graph(meta: Any, name: str, where: str) -> tuple[Any, list[str]]:
    """The part of a graph that a signature runs, and the tensors that it gives.

    Raises:
      GraphError: there is no such signature.
    """
    known = _names(meta)
    if name not in known:
        raise GraphError(
            f"there is no signature {name!r}",
            where=f"--signature, {where}",
            allowed=", ".join(known) or "none: this graph has no signatures",
            remedy="name one of these",
        )
    outputs = meta.signature_def[name].outputs.values()
    given = [tensor for info in outputs for tensor in tensors(info)]
    nodes = {node.name: node for node in meta.graph_def.node}
    pending, wanted = [graphs.node_of(tensor) for tensor in given], set()
    while pending:
        node = pending.pop()
        if node not in wanted and node in nodes:
            wanted.add(node)
            pending += map(graphs.node_of, nodes[node].input)
    part = type(meta.graph_def)()
    part.CopyFrom(meta.graph_def)
    del part.node[:]
    part.node.extend(n for n in meta.graph_def.node if n.name in wanted)
    return part, given


def part_of(meta: Any, name: str, part: Any) -> str:
    """Says which part of a graph a signature runs, and what is not looked at.

    Args:
      meta: the MetaGraphDef.
      name: of the signature.
      part: what `graph` returned for it.
    """
    others = [each for each in _names(meta) if each != name]
    left = f"; not in it: {', '.join(others)}" if others else ""
    count, total = _count(part), _count(meta.graph_def)
    return f"signature {name} alone, {count} of the graph's {total} nodes{left}"


def _count(proto: Any) -> int:
    """The nodes of a GraphDef and of the functions that it calls."""
    functions = {f.signature.name: f.node_def for f in proto.library.function}
    found: set[str] = set()
    count, pending = 0, [proto.node]
    while pending:
        nodes = pending.pop()
        count += len(nodes)
        for node in nodes:
            values = node.attr.values()
            names = [v.func.name for v in values if v.HasField("func")]
            names += [f.name for v in values for f in v.list.func]
            for each in names:
                if each in functions and each not in found:
                    found.add(each)
                    pending.append(functions[each])
    return count
