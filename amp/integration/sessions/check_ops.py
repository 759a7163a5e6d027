"""The hook of `tf.compat.v1.add_check_numerics_ops`, which checks all of a graph.

It refuses graphs with a `tf.cond`, and an update that overflow may skip is one; and it
takes an overflow, by which dynamic loss scaling finds its scale, for an error. So it is
shown a graph without that. No check is built here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.graph import ir
from amp.integration import wrapping
from amp.loss_scaling import node_names


def _add_check_numerics_ops(original: wrapping.Function) -> wrapping.Function:
    def add_check_numerics_ops(*args: Any, **kwargs: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        with _showing(graph, checkable(graph.get_operations())):
            return original(*args, **kwargs)

    return add_check_numerics_ops


def checkable(operations: Sequence[Any]) -> list[Any]:
    """The operations of the job, whose results are finite unless something is wrong.

    Loss scaling's own are left out (its variables may have no value yet), what a scaled
    seed passes through, and the branches of an update that overflow may skip.

    Args:
      operations: of a graph, in the order in which they were built.
    """
    scaled: set[Any] = set()
    found = []
    for operation in operations:
        marks = operation.node_def.attr
        if ir.UNSCALE in marks:  # finite again: 0 after an overflow
            found.append(operation)
        elif ir.SEED in marks or any(each.op in scaled for each in operation.inputs):
            scaled.add(operation)
        elif not node_names.ours(operation.name) and not _skipped(operation):
            found.append(operation)
    return found


def _skipped(operation: Any) -> bool:
    """Whether it is in a branch of ours, or in a branch or loop within one."""
    context = operation._get_control_flow_context()
    while context is not None and context.outer_context is not None:
        context = context.outer_context
    return context is not None and node_names.ours(context.name)


@contextlib.contextmanager
def _showing(graph: Any, operations: list[Any]) -> Iterator[None]:
    """A scope in which a graph says that these are its operations."""
    graph.get_operations = lambda: operations
    try:
        yield
    finally:
        del graph.get_operations  # that of its class is seen again


HOOKS: dict[str, wrapping.Decorate] = {
    "numerics.add_check_numerics_ops": _add_check_numerics_ops,
}
