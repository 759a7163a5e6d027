"""Finds and parses the graphs that a command line names.

A file is parsed as a protobuf message and returned as one: no graph is imported into
TensorFlow here, and none is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import message, text_format  # type: ignore[import-untyped]

from amp.errors import GraphError
from amp.graph_rewrite.graph import serde

TEXT = (".pbtxt", ".pbtext", ".textproto")
MODELS = ("saved_model.pb", "saved_model.pbtxt")


def require(path: Path) -> Path:
    """The path, if something is there.

    Raises:
      GraphError: nothing is there.
    """
    if path.exists():
        return path
    raise GraphError(
        "there is no such file",
        where=str(path),
        allowed="a file or directory that exists",
        remedy="check the path",
    )


def is_saved_model(path: Path) -> bool:
    """Whether a path is that of a SavedModel: a directory, or the file in it."""
    return path.is_dir() or path.name in MODELS


def holds_model(directory: Path) -> bool:
    """Whether a directory is that of a SavedModel."""
    return any((directory / name).is_file() for name in MODELS)


def file_of_model(path: Path) -> Path:
    """The file of a SavedModel.

    Raises:
      GraphError: the directory holds none.
    """
    if not path.is_dir():
        return require(path)
    for name in MODELS:
        if (path / name).is_file():
            return path / name
    raise GraphError(
        "there is no such file",
        where=str(path / MODELS[0]),
        allowed="the directory of a SavedModel, which holds one of "
        + ", ".join(MODELS),
        remedy="name the directory that tf.saved_model.save or model.export wrote",
    )


def read(path: Path) -> Any:
    """The GraphDef in a file, or the one of a SavedModel that serves.

    Raises:
      GraphError: the file holds something else, or nothing.
    """
    if is_saved_model(path):
        return meta_graph(read_model(path), None, path).graph_def
    graph = _parsed(require(path), tf.compat.v1.GraphDef())
    if not graph.node:
        raise _no_graph("there is no node in it", path)
    return graph


def read_model(path: Path) -> Any:
    """The SavedModel message of a directory.

    Raises:
      GraphError: there is none.
    """
    file = file_of_model(path)
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


def only(flag: str, kind: str, path: Path) -> GraphError:
    """The error for a flag that does not fit what is read."""
    return GraphError(
        f"{flag} was given",
        where=str(path),
        allowed=f"{flag} for {kind}",
        remedy=f"leave {flag} out",
    )


def _parsed(path: Path, proto: Any) -> Any:
    try:
        if path.suffix in TEXT:
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
