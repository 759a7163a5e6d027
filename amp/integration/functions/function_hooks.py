"""The hooks for functions: under a policy, a function's twin is called in its place.

TensorFlow comes here whenever eager Python calls a function, and when a function is
traced or deleted. How a twin is made, and whether it or the original runs, is decided
in `twins`, not here. The names that are hooked are rows of `integration.hooks`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import cancellation, execute

from amp.integration import active, as_written, fallback, source_lines, wrapping
from amp.integration.functions import twins as twins_lib
from amp.integration.functions.twins import Twins
from amp.integration.process import PROCESS
from amp.integration.runtime import definitions, failures
from amp.integration.runtime.function_call import FunctionCall
from amp.loss_scaling import traced_updates
from amp.loss_scaling.outer_graphs import outward
from amp.loss_scaling.scale import NoLossScale


def mark(graph: Any, twins: Twins) -> None:
    """Records that a scope was entered while `graph` was being traced.

    The function then runs by the scope's policy wherever it is called (`_note`).

    Args:
      graph: a function's graph; the graphs around it are marked too.
      twins: the twins of the scope's policy.
    """
    for each in outward(graph):
        PROCESS.marked_graphs[each] = twins


def marked(graph: Any) -> Twins | None:
    """The twins of the scope that was entered while `graph` was being built."""
    return PROCESS.marked_graphs.get(graph) if PROCESS.marked_graphs else None


_UNKNOWN: Iterator[bytes] = iter(())


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
        if device:
            twins = twins.on(device, self, name)
            if twins is None:
                return original(self, name, *args, **kwargs)
        twin = next(twins.proven.given.get(name, _UNKNOWN), None)
        error: tf.errors.OpError | None = None
        try:
            if twin is not None:
                try:
                    return original(self, twin, *args, **kwargs)
                except tf.errors.ResourceExhaustedError as e:
                    if twin == name or not failures.out_of_memory(e):
                        raise
                    twin, error = None, e  # float32 might have fitted
            call = _made_by_user(arguments(self, name, *args, **kwargs), original)
            if error is not None:
                return twins.call_again(call, self, name, error)
            return twins.call(call, self, name)
        except tf.errors.OpError as e:
            gone = isinstance(e, tf.errors.NotFoundError)
            if gone and twin is not None and not self.has_function(twin):
                # Another thread has found out meanwhile that float32 is faster. Any
                # other error is of a twin that has run.
                return original(self, name, *args, **kwargs)
            e._message = _of_original(e, name)
            raise

    return call_function


_PLACES = fallback.Part("an error does not show the user's source line")


def _of_original(error: tf.errors.OpError, name: bytes) -> str:
    """The message of an error, from which TensorFlow finds the user's source lines.

    Args:
      error: of a function that ran in the place of the original, or of the original.
      name: the original.
    """
    message = definitions.without_suffix(error.message)
    if isinstance(error, tf.errors.OutOfRangeError):  # ends every epoch, and is caught
        return message
    lines = source_lines.of_runtime()

    def placed() -> str:
        return lines.in_message(name.decode(), message)

    return fallback.attempt(_PLACES, placed, lambda: message)


def _made_by_user(
    given: wrapping.Arguments, original: wrapping.Function
) -> FunctionCall:
    """The call with these arguments of `Context.call_function`, which is hooked."""
    return FunctionCall(
        run=lambda which: given.replaced("name", which).call(original),
        record=lambda which, more: _recorded(given, which, more),
        starts=lambda which, error, more: _starts(
            _with_more(given.replaced("name", which), more), error
        ),
        inputs=given.get("tensor_inputs"),
        replaced=lambda inputs: _made_by_user(
            given.replaced("tensor_inputs", inputs), original
        ),
    )


def _with_more(given: wrapping.Arguments, more: int) -> wrapping.Arguments:
    """The call of a function that has further outputs."""
    return given.replaced("num_outputs", given.get("num_outputs") + more)


def _recorded(given: wrapping.Arguments, which: bytes, more: int) -> Any:
    """Calls a function that runs once, with the user's arguments."""
    return execute.execute(
        which.decode(),
        num_outputs=given.get("num_outputs") + more,
        inputs=given.get("tensor_inputs"),
        attrs=as_written.options(),
        ctx=given.get("self"),
    )


# In the error of a worker that lacks a kernel for a function; nothing of it has run.
_NO_KERNEL = "No OpKernel was registered"


def _starts(given: wrapping.Arguments, error: tf.errors.OpError) -> bool:
    """Whether TensorFlow could start the function of a call that failed.

    Args:
      given: the arguments of that call of `Context.call_function`.
      error: what it raised.

    In this process `starts` finds out. A function on another worker cannot be tested in
    that way, because a cancelled call is not sent. But a worker makes all kernels of a
    function before it runs any, and has an error of its own for a missing kernel.
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
    """Whether TensorFlow can place the nodes of a function and make their kernels.

    Nothing of the function runs: the call is cancelled before it is made, and
    TensorFlow notices that only after making the kernels.

    Args:
      context: TensorFlow's eager context.
      name: a registered function that XLA does not compile as a whole.
      inputs, num_outputs: the arguments of `Context.call_function`.
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
    """Drops all records of a function that TensorFlow removes.

    Returns:
      The names of the functions that were made for it, to be removed too.
    """
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
    """Records a new function's graph, and whether a scope was entered in it."""
    definitions.remember(made.name.decode(), graph)
    twins = _mark_of(made, graph) if PROCESS.marked_graphs else None
    if twins is not None:
        PROCESS.marked[made.name] = twins


def _mark_of(made: Any, graph: Any) -> Twins | None:
    """The twins that a function was marked with, None if it was not.

    The mark may be on its own graph, on a function that it calls, or on the graph of a
    tensor that it captures: a backward function captures activations of the forward
    function and so gets its mark.
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
