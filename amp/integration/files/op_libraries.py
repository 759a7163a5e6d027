"""Loads libraries of custom ops, for graphs in files that have such ops.

Nothing is known of what is in a library; no graph is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from amp.errors import GraphError
from amp.integration.files import named_files


def load(paths: Iterable[Path]) -> None:
    """Loads libraries, as `tf.load_op_library` does.

    Raises:
      GraphError: no such file, or one that this TensorFlow cannot load.
    """
    for path in paths:
        file = named_files.require(path).resolve()  # a bare name would be searched for
        try:
            tf.load_op_library(str(file))
        except (tf.errors.OpError, RuntimeError) as e:
            raise GraphError(
                f"this library cannot be loaded: {e}",
                where=f"--library {path}",
                allowed="libraries of ops, as tf.load_op_library takes them",
                remedy=f"build it for TensorFlow {tf.__version__}",
            ) from e
