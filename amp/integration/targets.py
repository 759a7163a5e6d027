"""Finds what a command line names: files, modules, and the graphs in files.

Nothing found is executed, and TensorFlow is imported only when a graph is read.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from amp.errors import GraphError


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
        remedy="check the path; for a module, amp run -m MODULE",
    )


def require_module(name: str) -> None:
    """Checks that Python finds a module.

    Raises:
      GraphError: it does not.
    """
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise GraphError(
            f"there is no module {name!r}",
            where="amp run -m MODULE",
            allowed="a module that Python finds from the current directory",
            remedy="check the name; for a file, amp run FILE",
        )


def read(path: Path) -> Any:
    """The GraphDef in a file, or the one with the serving functions of a SavedModel.

    Raises:
      GraphError: the file holds something else.
    """
    import tensorflow as tf
    from google.protobuf import (  # type: ignore[import-untyped]
        message,
        message_factory,
        text_format,
    )

    if path.is_dir():
        path = require(path / "saved_model.pb")
    kind = tf.compat.v1.GraphDef
    if path.name == "saved_model.pb":
        pool = kind.DESCRIPTOR.file.pool
        saved = pool.FindMessageTypeByName("tensorflow.SavedModel")
        kind = message_factory.GetMessageClass(saved)
    proto = kind()
    try:
        if path.suffix == ".pbtxt":
            text_format.Parse(path.read_text(), proto)
        else:
            proto.ParseFromString(path.read_bytes())
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError) as e:
        raise GraphError(
            f"this is no {kind.DESCRIPTOR.name}: {e}",
            where=str(path),
            allowed="a GraphDef (.pb, .pbtxt) or the directory of a SavedModel",
            remedy="write it with tf.io.write_graph or tf.saved_model.save",
        ) from e
    return proto if isinstance(proto, tf.compat.v1.GraphDef) else _serving(proto)


def _serving(saved: Any) -> Any:
    tagged = [
        graph for graph in saved.meta_graphs if "serve" in graph.meta_info_def.tags
    ]
    return (tagged or list(saved.meta_graphs))[0].graph_def
