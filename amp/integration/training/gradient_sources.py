"""Finds the variables by which a gradient is taken, and the line that takes it.

Used by `gradient_hooks` and others of this folder. The sources of a gradient call may
be variables of TensorFlow or Keras, resource handles, or tensors that were read from a
variable. No node is built and nothing is changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.util import tf_stack

from amp.errors import LossScaleError
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.loss_scaling.outer_graphs import outward
from amp.loss_scaling.state import CallSite

_LIBRARIES = ("tensorflow", "amp")
_HERE = os.path.abspath(__file__).partition(os.path.join("integration", ""))[0]
_FOLDERS = (os.path.join(os.path.dirname(str(tf.__file__)), ""), _HERE)
_GENERATED = "__autograph_generated_file"
_READS = (Kind.READ_VARIABLE, Kind.IDENTITY)


def call_site() -> CallSite:
    """Returns file and line of the innermost stack frame of the user's program.

    That is a frame outside of TensorFlow and this package. If there is none, it is the
    innermost frame of all.
    """
    innermost = frame = sys._getframe(1)
    walk: FrameType | None = frame
    while walk is not None:
        package = str(walk.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _LIBRARIES:
            return _written(walk.f_code.co_filename, walk.f_lineno)
        walk = walk.f_back
    return innermost.f_code.co_filename, innermost.f_lineno


def _written(file: str, line: int) -> CallSite:
    """Returns the line that the user wrote, of one that may be AutoGraph's."""
    if not os.path.basename(file).startswith(_GENERATED):
        return file, line
    frames = reversed(list(tf_stack.extract_stack()))
    theirs = (f for f in frames if not f.filename.startswith(_FOLDERS))
    found = next(theirs, None)
    return (file, line) if found is None else (found.filename, found.lineno)


def variable(source: Any) -> tf.Variable | None:
    """Returns the TensorFlow variable that an object (Keras' too) stands for."""
    if isinstance(source, tf.Variable):
        # What one replica holds of a mirrored variable stands for the whole of it.
        container: Any = getattr(source, "_distributed_container", tuple)()
        return container if isinstance(container, tf.Variable) else source
    if isinstance(source, tf.Tensor):
        return None
    value = getattr(source, "value", None)
    return variable(value) if isinstance(value, tf.Variable) else None


def given(variables: Any, where: str) -> list[tf.Variable]:
    """Returns the TensorFlow variables that a user gave to a function of ours.

    Args:
      variables: a structure of variables of TensorFlow or Keras.
      where: the function and its parameter, for the error.

    Raises:
      LossScaleError: something else among them, or none.
    """
    flat = tf.nest.flatten(variables)
    found = [variable(each) for each in flat]
    known = [each for each in found if each is not None]
    if known and len(known) == len(found):
        return known
    strange = [type(g).__name__ for g, v in zip(flat, found, strict=True) if v is None]
    raise LossScaleError(
        f"{', '.join(strange) or 'nothing'} where variables are needed",
        where=where,
        allowed="variables of TensorFlow or Keras, at least one",
        remedy="give the variables by which the gradient is taken, built already "
        "(model.trainable_variables)",
    )


def overwritten(source: Any) -> bool:
    """Whether Keras assigns a variable's gradient to the variable.

    Keras' float8 layers pass new values of their scales and histories in that way.
    """
    return getattr(source, "overwrite_with_gradient", False) is True


def composite(source: Any) -> bool:
    """Whether a source is made of several tensors (ragged, sparse, slices)."""
    kind = tf.__internal__.CompositeTensor
    return isinstance(source, kind) and not isinstance(source, tf.Variable)


def arguments(sources: Sequence[Any]) -> bool:
    """Whether all sources are arguments of the function being traced.

    A program may keep its weights in tensors that it passes to functions. Gradients by
    such arguments may be used for an update, which is to be float32.
    """
    if tf.executing_eagerly() or not sources:
        return False
    return all(
        isinstance(source, tf.Tensor)
        and not isinstance(source, tf.__internal__.EagerTensor)
        and facts(source.op.type).kind is Kind.PLACEHOLDER
        and tf.inside_function()
        for source in sources
    )


def owners(
    sources: Sequence[Any], watched: Sequence[tf.Variable]
) -> list[tf.Variable | None]:
    """Returns the trainable variable that each source is or stands for, else None.

    Args:
      sources: variables, resource handles, reference tensors, or reads of variables.
      watched: variables that handles may belong to, besides those that the graph knows.
    """
    found: list[tf.Variable | None] = []
    by_handle: dict[int, tf.Variable] | None = None
    for source in sources:
        meant = variable(source)
        if meant is None and isinstance(source, tf.Tensor):
            if by_handle is None:
                by_handle = {id(h): v for v in _known(watched) for h in _handles(v)}
            meant = _behind(source, by_handle)
        found.append(meant if meant is not None and meant.trainable else None)
    return found


def each_once(variables: Sequence[tf.Variable | None]) -> list[tf.Variable]:
    """Returns the variables in order, each once."""
    return list({id(v): v for v in variables if v is not None}.values())


def _behind(source: tf.Tensor, by_handle: dict[int, tf.Variable]) -> tf.Variable | None:
    for tensor in _origins(source):
        if id(tensor) in by_handle:
            return by_handle[id(tensor)]
    return None


def _origins(tensor: Any) -> Iterator[Any]:
    """Yields a tensor, then what it is a read or a capture of, and so on."""
    while tensor is not None:
        yield tensor
        if isinstance(tensor, tf.__internal__.EagerTensor):
            return
        captured = _captured(tensor)
        if captured is not None:
            tensor = captured
        elif facts(tensor.op.type).kind in _READS and tensor.op.inputs:
            tensor = tensor.op.inputs[0]
        else:
            return


def _captured(tensor: Any) -> Any:
    for outer, inner in getattr(tensor.graph, "captures", ()):
        if inner is tensor:
            return outer
    return None


def _known(watched: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Returns `watched`, and the variables of the current graph and those around it."""
    known = list(watched)
    if tf.executing_eagerly():
        return known
    for graph in outward(tf.compat.v1.get_default_graph()):
        known += getattr(graph, "_watched_variables", ())
        for collection in ("variables", "trainable_variables", "local_variables"):
            items = graph.get_collection(collection)
            known += [item for item in items if isinstance(item, tf.Variable)]
    return known


def _handles(variable: Any) -> Iterator[Any]:
    handle = getattr(variable, "handle", None)
    if handle is not None:
        yield handle
    else:
        yield variable._ref()
        yield variable._snapshot
