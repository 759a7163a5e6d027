"""`Variant`: a function that is a step and also returns what is observed inside it.

Made for `step_probes`, and for sessions as tensors of their graph. When a step is
observed is not decided here, and none is run.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Container, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.framework import function_def_to_graph

from amp.graph_rewrite.graph import generators, ir, serde
from amp.graph_rewrite.normalize import step_probes
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.normalize.step_probes import Gradient, Observed
from amp.integration import fallback, source_lines
from amp.integration.observing.samples import Sample
from amp.integration.process import PROCESS
from amp.integration.runtime import definitions
from amp.loss_scaling import exponents

_OBSERVED = "amp_observed"  # a scope of ours in the twin of a session's graph
_TYPES = {ir.FLOAT: tf.float32, ir.HALF: tf.float16, ir.BFLOAT16: tf.bfloat16}


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """A function that was registered to observe a step.

    Attributes:
      name: to call.
      functions: all that were registered.
      sample: what a call observes, without a value.
    """

    name: bytes
    functions: tuple[str, ...]
    sample: Sample


def registered(original: bytes, which: bytes, counts: bool) -> Variant | None:
    """Makes the variant of a function; None if it takes no gradients that are scaled.

    Args:
      original: the function of the user's.
      which: it, or the twin of it that runs.
      counts: whether exponents are to be counted.

    Raises:
      AmpError: its definition is damaged.
    """
    context = context_lib.context()
    name = which.decode()
    module = inline(definitions.read(context, name))
    at = step_probes.holder(module)
    if at is None:
        return None
    found = () if counts else step_probes.tensors(module, at)
    seen: Sequence[Any] = at.gradients if counts else found
    edges = [(each.edge, each.type) for each in seen]
    number = ir.FLOAT if counts else ir.BOOL
    functions = {t: _observer(counts, t) for t in {t for _, t in edges}}
    what = Observed(edges, functions, number)
    variant = f"{name}{definitions.new_suffix()}_observed"
    made = step_probes.probed(module, at, what, variant)
    made = generators.drawing_apart(made, variant, others=made.functions)
    added = definitions.register(context, made)
    own = frozenset() if counts else _own(context, original)
    line = functools.partial(_line_in_function, original.decode())
    sample = Sample(name, at.gradients, own, found, None, line)
    return Variant(variant.encode(), tuple(added), sample)


def _own(context: Any, original: bytes) -> frozenset[str]:
    """The nodes whose results are 16-bit in the user's function."""
    module = inline(definitions.read(context, original.decode()))
    at = step_probes.holder(module)
    found = () if at is None else step_probes.tensors(module, at)
    return frozenset(each.edge[0] for each in found if each.type != ir.FLOAT)


def _observer(counts: bool, number: int) -> str:
    """The name of the function that observes a tensor of a type; made once."""
    key = (counts, number)
    if key not in PROCESS.observers:
        look = exponents.counted if counts else _not_finite
        with tf.init_scope(), tf.device(None):
            made = tf.function(look, autograph=False)
            spec = tf.TensorSpec(None, _TYPES[number])
            PROCESS.observers[key] = made.get_concrete_function(spec)
    return str(PROCESS.observers[key].function_def.signature.name)


def _not_finite(values: Any) -> Any:
    """Whether a tensor holds a NaN, and whether an infinity; bool, shape (2,)."""
    flat = tf.reshape(values, [-1])
    nan = tf.reduce_any(tf.math.is_nan(flat))
    return tf.stack([nan, tf.reduce_any(tf.math.is_inf(flat))])


def graph_of(name: str) -> Any:
    """A function, twin or original, as a graph for TensorBoard; None if it is gone."""
    context = context_lib.context()

    def read() -> Any:
        definition = context.get_function_def(name)
        return function_def_to_graph.function_def_to_graph(definition)

    return fallback.attempt_quietly(read, None)


def gradients_in(graph: Any) -> tuple[Gradient, ...]:
    """The gradients of a session's graph that are scaled.

    Args:
      graph: a `tf.Graph`.
    """
    at = step_probes.holder(serde.read_graph(graph.as_graph_def()))
    return () if at is None or at.call is not None else at.gradients


def observed_in(graph: Any, roots: Iterable[Any], user: Any) -> Sample | None:
    """What is observed in a session's run, as tensors that are added to its graph.

    Args:
      graph: a `tf.Graph`: the twin that the session runs.
      roots: the operations that the run asks for.
      user: the user's graph, which says what is 16-bit in the program itself.

    Returns:
      A sample whose `observed` is a tensor to fetch in the run; None if the run takes
      no gradients that are scaled.
    """
    module = executed_part(graph, roots)
    at = step_probes.holder(module)
    if at is None or at.call is not None:
        return None
    found = step_probes.tensors(module, at)
    flags = []
    with graph.as_default(), tf.control_dependencies(None), tf.name_scope(_OBSERVED):
        for each in found:
            tensor = graph.get_tensor_by_name(f"{each.edge[0]}:{each.edge[1]}")
            with tf.device(tensor.device or None):
                flags.append(_not_finite(tensor))
        observed = tf.stack(flags)
    own = frozenset(t.edge[0] for t in found if _is_low(user, t.edge))
    line = functools.partial(_line_in_graph, weakref.ref(user))
    return Sample("", at.gradients, own, found, observed, line)


def _line_in_function(function: str, node: str) -> str:
    found = functools.partial(source_lines.of_runtime().of, function, node)
    return fallback.attempt_quietly(found, "")


def _line_in_graph(graph: weakref.ReferenceType[Any], node: str) -> str:
    return fallback.attempt_quietly(lambda: source_lines.of_node(graph(), node), "")


def executed(roots: Iterable[Any], fed: Container[Any] = ()) -> set[str]:
    """The names of the operations that a session executes for some of them.

    Args:
      roots: the operations.
      fed: the references (`tensor.ref()`) of tensors that nothing need compute.
    """
    names: set[str] = set()
    waiting = list(roots)
    while waiting:
        operation = waiting.pop()
        if operation.name not in names:
            names.add(operation.name)
            inputs = (tensor for tensor in operation.inputs)
            waiting += [t.op for t in inputs if not fed or t.ref() not in fed]
            waiting += operation.control_inputs
    return names


def executed_part(graph: Any, roots: Iterable[Any], fed: Container[Any] = ()) -> Any:
    """The part of a graph that a run executes, as an `ir.Module`.

    Args:
      graph: a `tf.Graph`.
      roots, fed: as of `executed`.
    """
    names = executed(roots, fed)
    proto = graph.as_graph_def()
    kept = [node for node in proto.node if node.name in names]
    part = type(proto)(node=kept, library=proto.library, versions=proto.versions)
    return serde.read_graph(part)


def _is_low(graph: Any, edge: ir.Edge) -> bool:
    """Whether a tensor is 16-bit in a graph, which need not have it."""
    try:
        tensor = graph.get_tensor_by_name(f"{edge[0]}:{edge[1]}")
    except (KeyError, ValueError):
        return False
    return tensor.dtype in (tf.float16, tf.bfloat16)
