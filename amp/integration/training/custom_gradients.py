"""The hooks for gradients that Python gives, by which they meet no loss scale.

Those of `tf.custom_gradient`, and in a graph of `gradient_override_map` and of
functions that Python computes (`tf.py_function`), which may have one inside. What is
unscaled for them is decided in `loss_scaling`: eagerly all that comes in
(`eager_backward`), in graphs where the function is certain to bend it
(`graph_backward`). Here too the second gradient of what was unscaled is marked, and the
gradient of a check for infinities lets those of a scale pass. No arithmetic is here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import cond_v2, while_v2

from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.ops.op_table import ROWS, Kind
from amp.integration import active, fallback, wrapping
from amp.integration.training import markers
from amp.loss_scaling import called_backward, eager_backward, graph_backward
from amp.loss_scaling.eager_backward import Backward, Passing, passing
from amp.loss_scaling.outer_graphs import outward
from amp.loss_scaling.scale import DynamicLossScale


def _with(without_scale: Callable[[Backward], Backward]) -> wrapping.Decorate:
    """Returns what makes a hook for one of the two forms of the decorator."""

    def hook(original: wrapping.Function) -> wrapping.Function:
        def decorated(f: Any, args: Any, kwargs: Any) -> Any:
            @functools.wraps(f)
            def forward(*inputs: Any, **named: Any) -> Any:
                result, backward = f(*inputs, **named)
                return result, without_scale(backward)

            return original(forward, args, kwargs)

        return decorated

    return hook


def _brought(tensor: tf.Tensor) -> tf.Tensor | None:
    """A tensor as one of the graph being built, if this is of a branch or loop body.

    A graph of a function is not inside of the one in which the function is called.
    """
    inner: list[Any] = []
    for graph in outward(tf.compat.v1.get_default_graph()):
        if graph is tensor.graph:
            break
        if not isinstance(graph, _BODIES):
            return None
        inner.append(graph)
    else:
        return None
    for body in reversed(inner):
        tensor = body.capture(tensor)
    return tensor


def _apart() -> Any:
    """The graph of a function's gradient, if it is being built; else None."""
    around = outward(tf.compat.v1.get_default_graph())
    graph = next(each for each in around if not isinstance(each, _BODIES))
    name = graph.name if isinstance(graph, FuncGraph) else ""
    return graph if name.startswith(concrete_function._BACKWARD_PREFIX) else None


def _functions(operation: Any) -> tuple[calls.Call, list[Any]] | None:
    """See `homogeneity.Functions`."""
    call = calls.CALLS.get(operation.type)
    if call is None:
        return None
    attributes = operation.node_def.attr
    graphs = [g for name in call.attrs for g in _named(operation, attributes[name])]
    return None if None in graphs else (call, graphs)


def _bodies(operation: Any) -> list[Any]:
    """The graphs of the functions that an operation calls or has for branches."""
    attributes = operation.node_def.attr.values()
    graphs = (graph for each in attributes for graph in _named(operation, each))
    return [graph for graph in graphs if graph is not None]


def _named(operation: Any, attribute: Any) -> list[Any]:
    """The graphs of the functions that an attribute names; None for an unknown one."""
    functions = [attribute.func, *attribute.list.func]
    names = [function.name for function in functions if function.name]
    found = (operation.graph._get_function(name) for name in names)
    return [getattr(each, "graph", None) for each in found]


def undone(now: Passing) -> bool:
    """Whether a gradient call is to be one without its scale, and is so now."""
    return called_backward.undone(now, _bodies, _EDITING.redirect)


_BODIES = (cond_v2._CondGradFuncGraph, while_v2._WhileBodyGradFuncGraph)
_EDITING = graph_backward.Editing(
    brought=_brought,
    apart=_apart,
    recorded=record.should_record_backprop,
    redirect=lambda operation, index, tensor: operation._update_input(index, tensor),
    functions=_functions,
    attempt=lambda call: fallback.attempt_quietly(call, None),
)
_in_graph = functools.partial(graph_backward.without_scale, editing=_EDITING)

_OVERRIDDEN = "_gradient_op_type"  # of an operation: the name of its gradient


def _override(original: wrapping.Function) -> wrapping.Function:
    def found(op: Any) -> Any:
        gradient = original(op)
        if gradient is None:
            return gradient
        attributes = op.node_def.attr
        if attributes[ir.UNSCALE].b and _apart() is not None:
            return functools.partial(_second, gradient)
        if attributes[_OVERRIDDEN].s:
            return functools.partial(_overridden, gradient)
        return gradient

    return found


def _overridden(gradient: Backward, op: Any, *grads: Any) -> Any:
    return _in_graph(functools.partial(gradient, op))(*grads)


def _second(gradient: Backward, op: Any, *grads: Any) -> Any:
    """The gradient of what unscales one, in a graph of its own, behind a marker.

    That graph reads gradients that were scaled once, as arguments: in float16, products
    of them overflow, and nobody's scale would end it.
    """
    with markers.attribute_scope(ir.UNSCALE):
        marked = [tf.identity(grad) for grad in grads]
    return gradient(op, *marked)


def _python(original: wrapping.Function) -> wrapping.Function:
    """Of what computes the gradient of a `tf.py_function`, in which any may be."""

    def called(
        func: Any, inp: Any, Tout: Any, *args: Any, is_grad_func: Any = False, **kw: Any
    ) -> Any:
        def calling(*inputs: Any) -> Any:
            return original(func, inputs, Tout, *args, is_grad_func=True, **kw)

        if is_grad_func:
            return _in_graph(calling)(*inp)
        return original(func, inp, Tout, *args, is_grad_func=is_grad_func, **kw)

    return called


# Looked up for every operation of an eager gradient.
_GUARDS = frozenset(op for op, row in ROWS.items() if row.kind is Kind.GUARD)


def _looked_up(original: wrapping.Function) -> wrapping.Function:
    def found(self: Any, name: Any) -> Any:
        gradient = original(self, name)
        if name in _GUARDS and self is ops.gradient_registry:
            return functools.partial(_watched, gradient)
        return gradient

    return found


def _watched(gradient: Backward, op: Any, grad: Any) -> Any:
    """The gradient of a check for NaN and infinity, which checks the gradient too.

    Not one with a dynamic scale, which finds its way by overflows: the update is left
    out then, and what is not finite without a scale either is told (`standstill`).
    """
    dynamic = isinstance(active.active_loss_scale(), DynamicLossScale)
    apart = not tf.executing_eagerly() and _apart() is not None
    return grad if dynamic and (passing() or apart) else gradient(op, grad)


HOOKS: dict[str, wrapping.Decorate] = {
    "custom_gradient._eager_mode_decorator": _with(eager_backward.without_scale),
    "custom_gradient._graph_mode_decorator": _with(_in_graph),
    "ops.get_gradient_function": _override,
    "script_ops._internal_py_func": _python,
    "Registry.lookup": _looked_up,
}
