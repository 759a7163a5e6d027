"""The function adapter: under a policy a function's twin is called in its place.

Knows the private names behind `tf.function`, eager calls and tracing, in one place;
what a twin is and when it runs is not decided here.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import cancellation, execute
from tensorflow.python.eager import context as context_lib
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    function_context,
)

from amp.errors import TensorFlowError
from amp.integration.functions import definitions
from amp.integration.functions import twins as twins_lib
from amp.integration.functions.twins import FunctionCall, Twins
from amp.loss_scaling.scale import LossScale, NoLossScale

_HOOKS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (context_lib.Context, "call_function", ("name", "tensor_inputs", "num_outputs")),
    (context_lib.Context, "remove_function", ("name",)),
    (context_lib.Context, "get_function_def", ("name",)),
    (context_lib.Context, "add_function_def", ("fdef",)),
    (atomic_function, "from_func_graph", ("name", "graph", "attrs")),
    (function_context, "make_function_context", ("scope_type",)),
)

# Graphs, then functions, that a scope was entered in while they were traced.
_marked_graphs: weakref.WeakKeyDictionary[Any, Twins] = weakref.WeakKeyDictionary()
_marked: dict[bytes, Twins] = {}


def mark(graph: Any, twins: Twins) -> None:
    """Notes that a scope was entered while `graph` was being traced."""
    while graph is not None:
        _marked_graphs[graph] = twins
        graph = getattr(graph, "outer_graph", None)


def marked(graph: Any) -> Twins | None:
    """The twins of the scope that was entered while `graph` was being built."""
    return _marked_graphs.get(graph) if _marked_graphs else None


_originals: dict[str, Callable[..., Any]] = {}


def install(
    active_twins: Callable[[], Twins | None],
    active_loss_scale: Callable[[], LossScale | None],
) -> None:
    """Puts the hooks in place, once.

    Args:
      active_twins: the twins to call through now, None for none.
      active_loss_scale: the rule gradients are traced with now, None for none.

    Raises:
      TensorFlowError: a private name is missing or takes other parameters.
    """
    if _originals:
        return
    for owner, name, parameters in _HOOKS:
        _check_hook(owner, name, parameters)
    for owner, name, _ in _HOOKS:
        _originals[name] = getattr(owner, name)
    context_lib.Context.call_function = _call_function(active_twins)
    context_lib.Context.remove_function = _remove_function
    atomic_function.from_func_graph = _from_func_graph
    function_context.make_function_context = _make_function_context(active_loss_scale)


def _check_hook(owner: Any, name: str, parameters: tuple[str, ...]) -> None:
    found = getattr(owner, name, None)
    has = tuple(inspect.signature(found).parameters) if callable(found) else ()
    if not set(parameters) <= set(has):
        raise TensorFlowError(
            f"TensorFlow {tf.__version__} has no {name}({', '.join(parameters)})",
            where=f"{owner.__name__}.{name}",
            allowed="TensorFlow 2.18 to 2.21, whose names are known",
            remedy="install a supported TensorFlow, or a newer version of this package",
        )


def _call_function(active_twins: Callable[[], Twins | None]) -> Callable[..., Any]:
    original = _originals["call_function"]

    def call_function(
        self: Any, name: bytes, tensor_inputs: Any, num_outputs: int
    ) -> Any:
        twins = active_twins()
        if twins is None:
            twins = _marked.get(name) if _marked else None
            if twins is None:
                return original(self, name, tensor_inputs, num_outputs)
        twin = twins.proven.get(name)
        try:
            if twin is not None:
                return original(self, twin, tensor_inputs, num_outputs)
            call = FunctionCall(
                run=lambda which: original(self, which, tensor_inputs, num_outputs),
                starts=lambda which: starts(self, which, tensor_inputs, num_outputs),
            )
            return twins.call(call, self, name)
        except tf.errors.OpError as e:
            # By the original's name TensorFlow finds the user's source lines.
            e._message = definitions.without_suffix(e.message)
            raise

    return call_function


def starts(context: Any, name: bytes, inputs: Any, num_outputs: int) -> bool:
    """Whether TensorFlow can start a function; nothing of it runs.

    The call is cancelled before it is made. TensorFlow places the nodes and makes their
    kernels before it looks at that.

    Args:
      context: TensorFlow's eager context.
      name: of a registered function that XLA does not compile whole.
      inputs, num_outputs: as of `Context.call_function`.
    """
    cancelled = cancellation.CancellationManager()
    cancelled.start_cancel()
    options = context.function_call_options.as_attrs()
    try:
        execute.execute_with_cancellation(
            name.decode(),
            num_outputs=num_outputs,
            inputs=inputs,
            attrs=tuple(itertools.chain.from_iterable(options.items())),
            ctx=context,
            cancellation_manager=cancelled,
        )
    except tf.errors.CancelledError:
        return True
    except tf.errors.OpError:
        return False
    return True


def _remove_function(self: Any, name: bytes) -> None:
    key = name if isinstance(name, bytes) else str(name).encode()
    for twins in twins_lib.every():
        for made in twins.forget(key):
            _originals["remove_function"](self, made)
    _marked.pop(key, None)
    definitions.forget(key.decode())
    _originals["remove_function"](self, name)


def _from_func_graph(name: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
    made = _originals["from_func_graph"](name, graph, *args, **kwargs)
    definitions.remember(made.name.decode(), graph)
    twins = _mark_of(made, graph) if _marked_graphs else None
    if twins is not None:
        _marked[made.name] = twins
    return made


def _mark_of(made: Any, graph: Any) -> Twins | None:
    """The mark of a function's graph, of a function it calls, or of what it captures.

    A backward function captures the activations of the graph it is the gradient of.
    """
    sources = [graph, *(getattr(tensor, "graph", None) for tensor in _captured(graph))]
    found = [_marked_graphs.get(source) for source in sources if source is not None]
    found += [_marked.get(child.name) for child in made.children]
    return next((twins for twins in found if twins is not None), None)


def _captured(graph: Any) -> list[Any]:
    captured = getattr(graph, "external_captures", ())
    return [t for t in captured if not isinstance(t, tf.__internal__.EagerTensor)]


def _make_function_context(
    active_loss_scale: Callable[[], LossScale | None],
) -> Callable[..., Any]:
    original = _originals["make_function_context"]

    def make_function_context(scope_type: Any = None) -> Any:
        made = original(scope_type)
        rule = active_loss_scale()
        if rule is None or isinstance(rule, NoLossScale):
            return made
        return made._replace(context=(made.context, rule))

    return make_function_context
