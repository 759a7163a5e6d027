"""The function adapter: under a policy a function's twin is called in its place.

Behind `tf.function`, eager calls and tracing; what a twin is and when it runs is not
decided here. The names that are hooked are rows of `integration.hooks`.
"""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import cancellation, execute

from amp.integration import active, fallback, wrapping
from amp.integration.functions import definitions
from amp.integration.functions import twins as twins_lib
from amp.integration.functions.twins import FunctionCall, Twins
from amp.integration.process import PROCESS
from amp.loss_scaling import traced_updates
from amp.loss_scaling.scale import NoLossScale


def mark(graph: Any, twins: Twins) -> None:
    """Notes that a scope was entered while `graph` was being traced."""
    while graph is not None:
        PROCESS.marked_graphs[graph] = twins
        graph = getattr(graph, "outer_graph", None)


def marked(graph: Any) -> Twins | None:
    """The twins of the scope that was entered while `graph` was being built."""
    return PROCESS.marked_graphs.get(graph) if PROCESS.marked_graphs else None


def _call_function(original: wrapping.Function) -> wrapping.Function:
    active_twins = active.active_twins
    arguments = wrapping.reader("Context.call_function", original)

    def call_function(self: Any, name: bytes, *args: Any, **kwargs: Any) -> Any:
        twins = active_twins()
        if twins is None:
            twins = PROCESS.marked.get(name) if PROCESS.marked else None
            if twins is None or active.is_kept():
                return original(self, name, *args, **kwargs)
        device = self.device_name  # "" outside device scopes
        if device and twins.devices.is_other(device):
            twins.devices.tell(self, name, device)
            return original(self, name, *args, **kwargs)
        twin = twins.proven.get(name)
        try:
            if twin is not None:
                return original(self, twin, *args, **kwargs)
            call = FunctionCall(
                run=lambda which: original(self, which, *args, **kwargs),
                starts=lambda which, error: _starts(
                    arguments(self, which, *args, **kwargs), error
                ),
            )
            return twins.call(call, self, name)
        except tf.errors.OpError as e:
            # By the original's name TensorFlow finds the user's source lines.
            e._message = definitions.without_suffix(e.message)
            raise

    return call_function


# What a worker says of a function before any of it has run.
_NO_KERNEL = "No OpKernel was registered"


def _starts(given: wrapping.Arguments, error: tf.errors.OpError) -> bool:
    """`starts`, of the arguments of a call of `Context.call_function` that failed.

    Another process cannot be asked: a call of it that is cancelled is not even sent. A
    worker makes all kernels of a function first, and only for them says that there is
    none, so there the error itself tells.
    """
    context = given.get("self")
    if _elsewhere(context):
        return _NO_KERNEL not in error.message
    inputs, count = given.get("tensor_inputs"), given.get("num_outputs")
    return starts(context, given.get("name"), inputs, count)


def _elsewhere(context: Any) -> bool:
    """Whether functions that are called now run in another process."""
    device = tf.DeviceSpec.from_string(context.device_name or "")
    own = tf.DeviceSpec.from_string(context.host_address_space())
    task = (device.job, device.task)
    return device.job is not None and task != (own.job, own.task)


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


def _remove_function(original: wrapping.Function) -> wrapping.Function:
    part = fallback.Part("what was made for a function that is gone is kept")

    def remove_function(self: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        key = name if isinstance(name, bytes) else str(name).encode()
        nothing: list[str] = []
        for each in fallback.attempt(part, lambda: _forget(key), lambda: nothing):
            original(self, each)
        return original(self, name, *args, **kwargs)

    return remove_function


def _forget(key: bytes) -> list[str]:
    """Drops what is known of a function that is going; what was made for it."""
    PROCESS.marked.pop(key, None)
    definitions.forget(key.decode())
    return [made for twins in twins_lib.every() for made in twins.forget(key)]


def _from_func_graph(original: wrapping.Function) -> wrapping.Function:
    arguments = wrapping.reader("atomic_function.from_func_graph", original)
    part = fallback.Part("a function runs as it was, unless called in a scope")

    def from_func_graph(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        graph = arguments(*args, **kwargs).get("graph")
        fallback.attempt(part, lambda: _note(made, graph), lambda: None)
        return made

    return from_func_graph


def _note(made: Any, graph: Any) -> None:
    """Notes what a function was traced as, and whether a scope was entered in it."""
    definitions.remember(made.name.decode(), graph)
    twins = _mark_of(made, graph) if PROCESS.marked_graphs else None
    if twins is not None:
        PROCESS.marked[made.name] = twins


def _mark_of(made: Any, graph: Any) -> Twins | None:
    """The mark of a function's graph, of a function it calls, or of what it captures.

    A backward function captures the activations of the graph it is the gradient of.
    """
    sources = [graph, *(getattr(tensor, "graph", None) for tensor in _captured(graph))]
    found = [marked(source) for source in sources if source is not None]
    found += [PROCESS.marked.get(child.name) for child in made.children]
    return next((twins for twins in found if twins is not None), None)


def _captured(graph: Any) -> list[Any]:
    captured = getattr(graph, "external_captures", ())
    return [t for t in captured if not isinstance(t, tf.__internal__.EagerTensor)]


def _make_function_context(original: wrapping.Function) -> wrapping.Function:
    active_loss_scale = active.active_loss_scale
    generation = traced_updates.generation

    def make_function_context(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        rule, current = active_loss_scale(), generation()
        if isinstance(rule, NoLossScale):
            rule = None
        if rule is None and not current:
            return made
        return made._replace(context=(made.context, rule, current))

    return make_function_context


HOOKS: dict[str, wrapping.Decorate] = {
    "Context.call_function": _call_function,
    "Context.remove_function": _remove_function,
    "atomic_function.from_func_graph": _from_func_graph,
    "function_context.make_function_context": _make_function_context,
}
