"""How the nodes of loss scaling are named, apart from the user's.

A program with sessions finds tensors by their names, which TensorFlow numbers in the
order in which they are built. No node is built here.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

# The trailing slash makes it the same scope wherever it is entered.
_SCOPE = "amp_loss_scaling/"
_SCALER = "amp_loss_scale_"


def scaler(index: int) -> str:
    """The scope of a scaler's variables, the same wherever a gradient is taken."""
    return f"{_SCALER}{index}/"


def ours(name: str) -> bool:
    """Whether a node of a session's graph, or a scope, is one of loss scaling."""
    return name.startswith((_SCOPE, _SCALER))


def apart() -> contextlib.AbstractContextManager[Any]:
    """A scope; nodes that are built in it take no name that the user's may have.

    Nobody finds the nodes of a function by their names.
    """
    if tf.executing_eagerly() or tf.inside_function():
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[Any] = tf.name_scope(_SCOPE)
    return scope
