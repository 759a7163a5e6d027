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
def attribute_scope(name: str, text: str = "") -> Iterator[None]:
    """A scope; nodes that are built in it get the attribute named.

    It is a boolean attribute, or a string if there is a text.

    It is a scope of the current graph. Branches and loop bodies have graphs of their
    own, in which it has to be entered again. In eager code it has no effect. A replica
    that enters it does so for itself, and for what is built where replicas meet.
    """
    if tf.executing_eagerly():
        yield
        return
    graph: Any = tf.compat.v1.get_default_graph()
    value = tf.compat.v1.AttrValue(s=text.encode()) if text else _TRUE
    marks = PROCESS.marks.setdefault(graph, {}).setdefault(name, _Marks())
    with marks.inside(graph, name, _Scope(replicas.own_number(), value)):
        yield


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Scope:
    """A scope that was entered: by which replica, None outside of one."""

    replica: int | None
    value: Any


@dataclasses.dataclass(slots=True)
class _Marks:
    """The scopes of one attribute that a graph is in, and what it calls for each node.

    Replicas build a graph by turns, so their scopes need not be nested, and if they
    were the graph's own, each would bring back what it found of another's. From the
    first that a replica enters to the last that is left the graph asks for each node.
    Where there are none it has the value itself.

    Attributes:
      entered: the scopes, the innermost last.
      asked: how many scopes there are since the graph began to ask.
      leaving: has the graph ask no more.
    """

    entered: list[_Scope] = dataclasses.field(default_factory=list)
    asked: int = 0
    leaving: contextlib.ExitStack = dataclasses.field(
        default_factory=contextlib.ExitStack
    )

    @contextlib.contextmanager
    def inside(self, graph: Any, name: str, scope: _Scope) -> Iterator[None]:
        """Has nodes of a graph get the attribute as a scope says."""
        self.entered.append(scope)
        try:
            if scope.replica is None and not self.asked:
                with graph._attr_scope({name: scope.value}):
                    yield
            else:
                with self._asking(graph, name):
                    yield
        finally:
            self.entered.remove(scope)

    @contextlib.contextmanager
    def _asking(self, graph: Any, name: str) -> Iterator[None]:
        if not self.asked:
            self.leaving.enter_context(graph._attr_scope({name: self}))
        self.asked += 1
        try:
            yield
        finally:
            self.asked -= 1
            if not self.asked:
                self.leaving.close()

    def __call__(self, node: Any) -> Any:
        here = replicas.own_number()
        for scope in reversed(self.entered):
            if here is None or scope.replica in (None, here):
                return scope.value
        return None


def unguarded_scope() -> contextlib.AbstractContextManager[None]:
    """A scope whose nodes stay float32, as those of a gradient that is not scaled."""
    return attribute_scope(ir.KEEP, text=ir.UNGUARDED)


def optimizer_scope() -> contextlib.AbstractContextManager[None]:
    """A scope whose nodes stay float32, and are known as those of an optimizer.

    One attribute says both: each takes 14 us a node, which TensorFlow builds in 100
    (EPYC of family 26).
    """
    return attribute_scope(ir.KEEP, text=ir.OPTIMIZER)
