"""`fingerprint`: a name for what a function computes, the same in each run of a job.

Used to find what earlier runs found out about the function. Names do not enter, because
TensorFlow numbers them by what else the process has made; neither do values, of which
`values` makes another name.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping

from amp.graph_rewrite.graph import calls, ir

# Attributes that differ between runs of a job and say nothing about its speed: seeds,
# names of resources, a runtime's options, and the functions that are called, which
# enter by what they compute.
_LEFT_OUT = frozenset(
    {"seed", "seed2", "shared_name", "container", "config_proto", "config"}
)

_FEW = 16  # numbers of a constant that enter `values`
_SEPARATOR = "\x1f"  # between the parts of a digest; in no text
_BETWEEN = _SEPARATOR.encode()


def fingerprint(module: ir.Module, *further: str) -> str:
    """The fingerprint of a module's main graph and of what it calls, in hexadecimal.

    Each node's digest is of its op, attributes and types and of the digests of all that
    it reads or waits for, as in a Merkle tree; what goes around in a loop is left out
    where it comes back. The order of the nodes does not matter. What is read of a
    variable enters with its shape, which the variable's handle does not tell.

    Args:
      module: the function, with the shapes that it was traced with.
      further: what else has to be the same, such as the device.
    """
    known: dict[str, bytes] = {}
    return _digest([_of(module.main, module, known), *map(str.encode, further)]).hex()


def values(module: ir.Module) -> str:
    """A name for the numbers that a module's constants hold, as far as these are few.

    What is as fast with other numbers need not be as accurate: a factor of 1/255, the
    epsilon of a normalization. The order of the nodes enters; that of one trace stays.
    """
    found = (
        node.tensor()
        for graph in module.graphs()
        for node in graph.nodes.values()
        if node.op == "Const" and ir.FLOAT in node.types("dtype")
    )
    few = (each.tobytes() for each in found if each is not None and each.size <= _FEW)
    return _digest(few).hex()


def _digest(parts: Iterable[bytes]) -> bytes:
    """16 bytes for a sequence of digests and texts without control characters."""
    return hashlib.blake2b(_BETWEEN.join(parts), digest_size=16).digest()


def _of(graph: ir.Graph, module: ir.Module, known: dict[str, bytes]) -> bytes:
    if graph.name in known:
        return known[graph.name]
    known[graph.name] = b"recursive"
    digests: dict[str, bytes] = {}
    handles = {(arg.name, 0) for arg in graph.args if arg.type == ir.RESOURCE}
    for number, arg in enumerate(graph.args):
        parts = (number, arg.type, graph.shape((arg.name, 0)))
        digests[arg.name] = _digest([repr(parts).encode()])
    for name in graph.order:
        node = graph.nodes[name]
        inputs = [_edge(edge, digests) for edge in node.inputs]
        controls = sorted(digests.get(control, b"") for control in node.controls)
        own = _own(node, graph, module, known)
        if not handles.isdisjoint(node.inputs):
            own.append(repr(graph.shape((name, 0))).encode())
        digests[name] = _digest([*own, b"inputs", *inputs, b"controls", *controls])
    results = [_edge(result.edge, digests) for result in graph.results]
    nodes = sorted(digests[name] for name in graph.order)
    flags = repr(sorted(graph.flags)).encode()
    known[graph.name] = _digest([flags, *results, *nodes])
    return known[graph.name]


def _edge(edge: ir.Edge, digests: Mapping[str, bytes]) -> bytes:
    return digests.get(edge[0], b"") + edge[1].to_bytes(4, "little")


def _own(
    node: ir.Node, graph: ir.Graph, module: ir.Module, known: dict[str, bytes]
) -> list[bytes]:
    """What a node is, apart from what it reads: texts and digests."""
    if node.op == "Const":
        return [_constant(node.types("dtype"), graph.shape((node.name, 0)))]
    parts = [node.op.encode(), node.device.encode()]
    call = calls.call_of(node, module.functions)
    if call is not None:
        named = calls.callees_of(node, call)
        called = [module.functions[name] for name in named if name in module.functions]
        parts[0] = b"call" if node.op in module.functions else parts[0]
        parts += [_of(graph, module, known) for graph in called]
    texts = node.attrs.texts() if node.attrs is not None else {}
    own = [
        f"{attr}={text}"
        for attr, text in texts.items()
        if attr not in _LEFT_OUT and not ("func" in text and node.functions(attr))
    ]
    return [*parts, _SEPARATOR.join(own).encode()] if own else parts


@functools.lru_cache(maxsize=4096)
def _constant(types: tuple[int, ...], shape: ir.Shape) -> bytes:
    return repr(("Const", types, shape)).encode()
