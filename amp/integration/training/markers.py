"""Sets attributes on nodes while they are built, by which the rewriter knows them.

Which nodes get which attribute is decided by the callers, not here. docs/design.md
lists the attributes (`_amp_*`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.graph import ir

_TRUE = tf.compat.v1.AttrValue(b=True)


@contextlib.contextmanager
def attribute_scope(*names: str, text: str = "") -> Iterator[None]:
    """A scope; nodes that are built in it get the attributes named.

    They are boolean attributes, or strings if there is a text.

    It is a scope of the current graph. Branches and loop bodies have graphs of their
    own, in which it has to be entered again. In eager code it has no effect.
    """
    if tf.executing_eagerly():
        yield
        return
    graph: Any = tf.compat.v1.get_default_graph()
    value = tf.compat.v1.AttrValue(s=text.encode()) if text else _TRUE
    with graph._attr_scope(dict.fromkeys(names, value)):
        yield


def optimizer_scope() -> contextlib.AbstractContextManager[None]:
    """A scope whose nodes stay float32, and are known as those of an optimizer."""
    return attribute_scope(ir.KEEP, ir.OPTIMIZER)
