"""Parses the graphs that a command line names.

A file is parsed as a protobuf message and returned as one: no graph is imported into
TensorFlow here, and none is run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import message, text_format  # type: ignore[import-untyped]

from amp.errors import GraphError
from amp.graph_rewrite.graph import op_schema, serde
from amp.integration.files import named_files


def read(path: Path) -> Any:
    """The GraphDef in a file, or the one of a SavedModel that serves.

    Raises:
      GraphError: the file holds something else, or nothing.
    """
    if named_files.is_saved_model(path):
        return meta_graph(read_model(path), None, path).graph_def
    graph = _parsed(named_files.require(path), tf.compat.v1.GraphDef())
    if not graph.node:
        raise _no_graph("there is no node in it", path)
    return graph


def read_model(path: Path) -> Any:
    """The SavedModel message of a directory.

    Raises:
      GraphError: there is none.
    """
    file = named_files.file_of_model(path)
    saved = _parsed(file, serde.saved_model_type()())
    if not saved.meta_graphs:
        raise _no_graph("there is no graph in it", file)
    return saved


def meta_graph(saved: Any, tags: Sequence[str] | None, path: Path) -> Any:
    """The graph of a SavedModel with just these tags; by default the one that serves.

    Raises:
      GraphError: no graph has them.
    """
    found = [set(graph.meta_info_def.tags) for graph in saved.meta_graphs]
    if tags is None:
        serving = [g for g in saved.meta_graphs if "serve" in g.meta_info_def.tags]
        return (serving or list(saved.meta_graphs))[0]
    if set(tags) in found:
        return saved.meta_graphs[found.index(set(tags))]
    raise GraphError(
        f"no graph has the tags {','.join(tags)!r}",
        where=f"--tags, {path}",
        allowed="; ".join(",".join(sorted(tags)) or "(none)" for tags in found),
        remedy="name all the tags of one graph, separated by commas",
    )


def require_ops(graph: Any, path: Path) -> None:
    """Checks that all ops of a GraphDef and of its functions are registered.

    Raises:
      GraphError: one is not.
    """
    functions = {f.signature.name for f in graph.library.function}
    in_functions = (f.node_def for f in graph.library.function)
    for node in itertools.chain(graph.node, *in_functions):
        if node.op not in functions and op_schema.schema(node.op) is None:
            raise GraphError(
                f"the op {node.op!r} of node {node.name!r} is not registered",
                where=str(path),
                allowed="ops of TensorFlow, and of libraries that were loaded",
                remedy="--library FILE.so loads the library that has it",
            )


def _parsed(path: Path, proto: Any) -> Any:
    try:
        if path.suffix in named_files.TEXT:
            text_format.Parse(path.read_text(encoding="utf-8"), proto)
        else:
            proto.ParseFromString(path.read_bytes())
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError) as e:
        raise _no_graph(f"this is no {proto.DESCRIPTOR.name}: {e}", path) from e
    except OSError as e:
        raise _no_graph(f"this cannot be read: {e}", path) from e
    return proto


def _no_graph(found: str, path: Path) -> GraphError:
    return GraphError(
        found,
        where=str(path),
        allowed="a GraphDef (.pb, .pbtxt) or the directory of a SavedModel",
        remedy="write it with tf.io.write_graph or tf.saved_model.save",
    )
