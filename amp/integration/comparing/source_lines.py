"""Finds the user's source line of a node, as TensorFlow noted it at tracing.

No graph is changed. Of a node that was loaded from a file no line is known.
"""

from __future__ import annotations

import functools
import linecache
import pathlib
import sys
import sysconfig
from typing import Any

from amp.graph_rewrite.graph import ir
from amp.integration.process import PROCESS

_HERE = pathlib.Path(__file__).parent
_GRADIENTS = "gradient_tape/"
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "amp")


def line_of_edge(traced: Any, graph: ir.Graph, edge: ir.Edge) -> str:
    """The line that makes a tensor, or for an argument the first that reads it.

    Args:
      traced: the graph of the function as traced.
      graph: the same in float32, calls inlined.
      edge: of that graph.
    """
    if edge[0] in graph.nodes:
        return line_of(traced, _forward(edge[0], graph)) or line_of(traced, edge[0])
    readers = (name for name, _ in graph.readers.get(edge, ()))
    return next((line for line in (line_of(traced, n) for n in readers) if line), "")


def _forward(name: str, graph: ir.Graph) -> str:
    """The node that a node of a gradient is of: its own line is that of the tape's."""
    before, scope, rest = name.partition(_GRADIENTS)
    parts = rest.split("/") if scope else []
    starts = (before + "/".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((start for start in starts if start in graph.nodes), name)


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
    for frame in reversed((operation is not None and operation.traceback) or ()):
        if pathlib.Path(frame.filename).parent == _HERE:
            return ""  # what is left is who called amp.compare, and built nothing
        if not _is_library(frame.filename):
            text = frame.line or linecache.getline(frame.filename, frame.lineno)
            file = pathlib.Path(frame.filename).name
            return f"{file}:{frame.lineno}  {text.strip()}".rstrip()
    return ""


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


@functools.cache
def _is_library(file: str) -> bool:
    """Whether a file is TensorFlow's, Keras', this package's or Python's own."""
    path = pathlib.Path(file)
    for name in _LIBRARIES:
        found = getattr(sys.modules.get(name), "__file__", None)
        if found and pathlib.Path(found).parent in path.parents:
            return True
    own = pathlib.Path(sysconfig.get_paths()["stdlib"])
    in_packages = {"site-packages", "dist-packages"} & set(path.parts)
    return file.startswith("<") or (own in path.parents and not in_packages)
