"""The function adapter: at its first call under a policy a function gets a twin.

Knows the private names behind `tf.function`, eager calls and tracing, in one place; no
graph algorithm may enter: it reads definitions, calls `rewrite` once, and registers the
result beside the original, which is never touched.
"""

from __future__ import annotations

import inspect
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    function_context,
)

from amp.errors import PolicyError, TensorFlowError
from amp.graph_rewrite import ir, serde
from amp.graph_rewrite.device import Resolution
from amp.graph_rewrite.rewrite import rewrite
from amp.integration import definitions, feedback, reports
from amp.loss_scaling.scale import LossScale, NoLossScale
from amp.policy import Policy

# What TensorFlow says when it refuses a function before any of it has run. Only then
# may the original run instead: an error on the way may be the user's own, and a second
# run would update variables twice and take another batch.
_REFUSALS = (
    "No OpKernel was registered",
    "is not in the list of allowed values",
    "is neither a type of a primitive operation nor a name of a function",
    "Detected unsupported operations when trying to compile graph",
    "incompatible with expected",
    "Cannot assign a device for operation",
    "Could not satisfy device",
)


def _refused(error: tf.errors.OpError) -> bool:
    if isinstance(error, tf.errors.UnimplementedError):
        return True
    return any(text in error.message for text in _REFUSALS)


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
_every_twins: weakref.WeakSet[Twins] = weakref.WeakSet()


class Twins:
    """The twins made under one settled policy, by the name of their original.

    Args:
      settled: the policy, with every "auto" settled, and the device.
    """

    def __init__(self, settled: Resolution) -> None:
        self.settled = settled
        self.proven: dict[bytes, bytes] = {}  # those that have run
        self._twin: dict[bytes, bytes] = {}
        self._made: dict[bytes, list[str]] = {}
        self._lock = threading.RLock()
        self._unmatched = set(_policy(settled).keep)
        self._ran = False
        _every_twins.add(self)

    def first_call(
        self, call: Callable[[bytes], Any], context: Any, name: bytes
    ) -> Any:
        """Makes the twin and runs it; falls back to the original if it cannot run."""
        with self._lock:
            if name not in self._twin:
                self._twin[name] = self._make(context, name)
            twin = self._twin[name]
        if twin == name:
            self.proven[name] = name
            return call(name)
        try:
            outputs = call(twin)
        except tf.errors.OpError as e:
            if _policy(self.settled).strict or not _refused(e):
                raise
            self.proven[name] = name
            _warn(name.decode(), e)
            return call(name)
        self.proven[name] = twin
        return outputs

    def _make(self, context: Any, name: bytes) -> bytes:
        try:
            return self.add(context, name)
        except Exception as e:
            if _policy(self.settled).strict:
                raise
            _warn(name.decode(), e)
            return name

    def add(self, context: Any, name: bytes) -> bytes:
        """Rewrites a function and registers its twin; returns its name.

        The name is the original's where there is nothing to convert.

        Raises:
          AmpError: what the rewrite found wrong.
        """
        module = definitions.read(context, name.decode())
        timer = feedback.measuring(self.settled, name.decode())
        suffix = definitions.new_suffix()
        result = rewrite(module, self.settled, suffix=suffix, timer=timer)
        self._match(module)
        reports.add(result.report, _policy(self.settled).report)
        self._ran = True
        made = [graph for key, graph in result.graph.functions.items()
                if key not in module.functions]  # fmt: skip
        if result.graph.main is not module.main:
            made.append(result.graph.main)
        if not made:
            return name
        lookup = definitions.lookup_of(result.graph)
        for graph in made:
            context.add_function_def(serde.write_function(graph, lookup))
        self._made[name] = [graph.name for graph in made]
        return str(result.graph.main.name).encode()

    def made_for(self, name: bytes) -> list[str]:
        """The functions registered for one original."""
        return list(self._made.get(name, ()))

    def forget(self, context: Any, name: bytes) -> None:
        """Removes the twin of a function that is going."""
        self.proven.pop(name, None)
        self._twin.pop(name, None)
        for made in self._made.pop(name, ()):
            _originals["remove_function"](context, made)

    def _match(self, module: ir.Module) -> None:
        for pattern in list(self._unmatched):
            one = Policy(keep=(pattern,))
            if any(
                one.keeps(node) for graph in module.graphs() for node in graph.nodes
            ):
                self._unmatched.discard(pattern)

    def warn_unmatched(self) -> None:
        """Warns of `keep` patterns that matched no node of any function so far."""
        if self._unmatched and self._ran:
            patterns = ", ".join(sorted(self._unmatched))
            self._unmatched.clear()
            error = PolicyError(
                f"keep pattern {patterns} matched no node of the functions that ran",
                where="Policy(keep=...), AMP_KEEP",
                allowed="patterns (fnmatch) that match the name of at least one node",
                remedy="print(amp.reports()[-1].decisions) for the names there are",
            )
            warnings.warn(str(error), stacklevel=3)


def names_of_twins(name: bytes) -> list[str]:
    """The functions registered beside an original, under any policy."""
    return [made for twins in _every_twins for made in twins.made_for(name)]


def _policy(settled: Resolution) -> Policy:
    assert settled.policy is not None
    return settled.policy


def _warn(name: str, error: Exception) -> None:
    text = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"amp: function {name} runs in float32, as it was: its rewrite failed.\n"
        f"{text}\n"
        "Please report this with the function and the versions in use; AMP_STRICT=1 "
        "turns this warning into the error.",
        RuntimeWarning,
        stacklevel=2,
    )


def mark(graph: Any, twins: Twins) -> None:
    """Notes that a scope was entered while `graph` was being traced."""
    while graph is not None:
        _marked_graphs[graph] = twins
        graph = getattr(graph, "outer_graph", None)


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
            return twins.first_call(
                lambda which: original(self, which, tensor_inputs, num_outputs),
                self,
                name,
            )
        except tf.errors.OpError as e:
            # By the original's name TensorFlow finds the user's source lines.
            e._message = definitions.without_suffix(e.message)
            raise

    return call_function


def _remove_function(self: Any, name: bytes) -> None:
    key = name if isinstance(name, bytes) else str(name).encode()
    for twins in list(_every_twins):
        twins.forget(self, key)
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
