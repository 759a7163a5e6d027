"""Attributes on the nodes being built: how the rewriter is told what is what.

Nothing else; which nodes are marked is decided where they are built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_TRUE = tf.compat.v1.AttrValue(b=True)


@contextlib.contextmanager
def attribute_scope(name: str) -> Iterator[None]:
    """Sets the boolean attribute `name` on what the default graph builds inside.

    Graphs of branches and loop bodies begun inside are graphs of their own: enter the
    scope in them again. Eager code is left alone.
    """
    if tf.executing_eagerly():
        yield
        return
    graph: Any = tf.compat.v1.get_default_graph()
    with graph._attr_scope({name: _TRUE}):
        yield
