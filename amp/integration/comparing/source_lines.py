"""Finds the user's source line of a node, as TensorFlow noted it at tracing.

No graph is changed. Of a node that was loaded from a file no line is known. Which line
of a stack trace is the user's is said in `integration.source_lines`, for all.
"""

from __future__ import annotations

import linecache
import pathlib
from typing import Any

from amp.graph_rewrite.graph import ir
from amp.integration import keras_layers, source_lines
from amp.integration.process import PROCESS

_HERE = pathlib.Path(__file__).parent


def line_of_edge(traced: Any, graph: ir.Graph, edge: ir.Edge) -> str:
    """The line that makes a tensor, or for an argument the first that reads it.

    Args:
      traced: the graph of the function as traced.
      graph: the same in float32, calls inlined.
      edge: of that graph.
    """
    if edge[0] in graph.nodes:
        forward = keras_layers.forward(edge[0], graph.nodes)
        return line_of(traced, forward) or line_of(traced, edge[0])
    readers = (name for name, _ in graph.readers.get(edge, ()))
    return next((line for line in (line_of(traced, n) for n in readers) if line), "")


def line_of(graph: Any, name: str) -> str:
    """The line that built a node: "train.py:31  hidden = tf.matmul(x, w)".

    Args:
      graph: the traced graph of the function.
      name: of the node, in the function with its calls inlined, so that the nodes of
        the call `a` are named `a/...`.

    Returns:
      "" if it is not known.
    """
    operation = _operation(graph, name)
    frames: list[Any] = []
    for frame in (operation is not None and operation.traceback) or ():
        # Who called amp.compare has built nothing.
        here = pathlib.Path(frame.filename).parent == _HERE
        frames = [] if here else [*frames, frame]
    found = source_lines.of_frames((each.filename, each.lineno) for each in frames)
    if not found:
        return ""
    file, _, number = found.rpartition(":")
    text = linecache.getline(file, int(number)).strip()
    return f"{pathlib.Path(file).name}:{number}  {text}".rstrip()


def _operation(graph: Any, name: str) -> Any:
    """The operation of a name, in the graph or in that of a function it calls."""
    known = {operation.name: operation for operation in graph.get_operations()}
    if name in known:
        return known[name]
    parts = name.split("/")
    for count in range(len(parts) - 1, 0, -1):
        call = known.get("/".join(parts[:count]))
        called = None if call is None else _called(call)
        if called is not None:
            return _operation(called, "/".join(parts[count:]))
    return None


def _called(call: Any) -> Any:
    """The traced graph of the function that an operation calls, if it still lives."""
    attr = call.node_def.attr
    reference = PROCESS.traced.get(attr["f"].func.name) if "f" in attr else None
    return None if reference is None else reference()
