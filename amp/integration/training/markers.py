"""Sets attributes on nodes while they are built, by which the rewriter knows them.

Which nodes get which attribute is decided by the callers, not here. docs/design.md
lists the attributes (`_amp_*`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.graph import ir
from amp.integration.distributed import replicas
from amp.integration.process import PROCESS

_TRUE = tf.compat.v1.AttrValue(b=True)


@contextlib.contextmanager
def attribute_scope(*names: str, text: str = "") -> Iterator[None]:
    """A scope; nodes that are built in it get the attributes named.

    They are boolean attributes, or strings if there is a text.

    It is a scope of the current graph. Branches and loop bodies have graphs of their
    own, in which it has to be entered again. In eager code it has no effect. A replica
    that enters it does so for itself, and for what is built where replicas meet.
    """
    if tf.executing_eagerly():
        yield
        return
    graph: Any = tf.compat.v1.get_default_graph()
    value = tf.compat.v1.AttrValue(s=text.encode()) if text else _TRUE
    with contextlib.ExitStack() as scopes:
        for name in names:
            scopes.enter_context(_entered(graph, name, value))
        yield


@contextlib.contextmanager
def _entered(graph: Any, name: str, value: Any) -> Iterator[None]:
    known = PROCESS.marks.setdefault(graph, {})
    marks = known.setdefault(name, _Marks())
    if not marks.entered:
        marks.leaving.enter_context(graph._attr_scope({name: marks}))
    scope = _Scope(replicas.own_number(), value)
    marks.entered.append(scope)
    try:
        yield
    finally:
        marks.entered.remove(scope)
        if not marks.entered:
            marks.leaving.close()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Scope:
    """A scope that was entered: by which replica, None outside of one."""

    replica: int | None
    value: Any


@dataclasses.dataclass(slots=True)
class _Marks:
    """What a graph calls for each node, to know its value of one attribute.

    The graph has one scope of the attribute, from the first that is entered to the last
    that is left. Replicas build a graph by turns, so their scopes need not be nested,
    and if they were the graph's own, each would bring back what it found of another's.

    Attributes:
      entered: the scopes, the innermost last.
      leaving: leaves the graph's own.
    """

    entered: list[_Scope] = dataclasses.field(default_factory=list)
    leaving: contextlib.ExitStack = dataclasses.field(
        default_factory=contextlib.ExitStack
    )

    def __call__(self, node: Any) -> Any:
        here = replicas.own_number()
        for scope in reversed(self.entered):
            if here is None or scope.replica in (None, here):
                return scope.value
        return None


def optimizer_scope() -> contextlib.AbstractContextManager[None]:
    """A scope whose nodes stay float32, and are known as those of an optimizer."""
    return attribute_scope(ir.KEEP, ir.OPTIMIZER)
