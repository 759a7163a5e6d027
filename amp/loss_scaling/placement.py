"""Chooses where a scaler's variables are made: outside functions, and on which device.

Used by `scaler` and `state`; what the variables hold is not known here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def outside_functions(device: str) -> Iterator[None]:
    """Enters eager code, or the session graph that everything is built in.

    Device scopes around the call (a parameter server's, say) have no effect inside:
    what is built there is on `device`.

    A function being traced makes the variables created inside it its own, traces itself
    again for them, and forbids them after its first call. It does so through its graph,
    also under `tf.init_scope`; under an empty graph the variables are ordinary ones.
    """
    place = device or None
    with tf.init_scope():
        if not tf.executing_eagerly():
            graph = tf.compat.v1.get_default_graph()
            none = graph.colocate_with(None, True), tf.device(None)
            with none[0], none[1], tf.device(place):
                yield
            return
        eager_mode = tf.__internal__.eager_context.eager_mode
        with tf.Graph().as_default(), eager_mode(), tf.device(place):
            yield


def in_session(target: str, source: str) -> str:
    """Returns the device of a session graph's scaler.

    It stays in the task that computes the loss, because workers of one parameter server
    do not share scalers. Inside that task it stands where the variables do; if they are
    kept in another task, where the loss is computed.

    Args:
      target: device of the loss, "" where the program gave none.
      source: device of the first variable, likewise.
    """
    loss, variable = (tf.DeviceSpec.from_string(d) for d in (target, source))
    if variable.device_type is None or task(source) not in (None, task(target)):
        return str(loss.to_string())
    kind = {"device_type": variable.device_type, "device_index": variable.device_index}
    return str(loss.replace(**kind).to_string())


def task(device: str) -> str | None:
    """Returns the job, replica and task of a device's name; None if it has none."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_type=None, device_index=None).to_string() or None


def elsewhere(device: str) -> bool:
    """Whether a device belongs to another task of the cluster than this process."""
    with tf.device(None):
        here = tf.constant(0).device
    return task(device) not in (None, task(here))


def replicas() -> tf.distribute.Strategy | None:
    """Returns the strategy of whose replicas several are in this process, if any.

    The only one of a worker has a variable of its own: to make one of the strategy's,
    all workers have to take part.
    """
    strategy = tf.distribute.get_strategy()
    inside = not tf.distribute.in_cross_replica_context()
    if not inside or strategy.num_replicas_in_sync == 1:
        return None
    return strategy if len(strategy.extended.worker_devices) > 1 else None


def copies(
    strategy: tf.distribute.Strategy | None,
) -> contextlib.AbstractContextManager[None]:
    """A scope in which variables get a copy for each replica of a strategy."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


@functools.cache
def _number(kind: Any) -> Any:
    """A strategy's type of variables, whose copies are one number to `int`, `float`.

    TensorFlow's own variables are; those that have a copy for each replica are not.
    """

    def first(self: Any) -> Any:
        return self.distribute_strategy.experimental_local_results(self)[0].numpy()

    methods = {
        "__int__": lambda self: int(first(self)),
        "__float__": lambda self: float(first(self)),
    }
    return type(kind.__name__, (kind,), methods)


def variable(name: str, value: tf.Tensor) -> tf.Variable:
    """Returns a variable that a session's job does not find among its own.

    `int` and `float` take it, under every strategy.
    """
    if tf.executing_eagerly():
        made: Any = tf.Variable(value, trainable=False, name=name)
        if not hasattr(type(made), "__int__"):
            kind: Any = type(made)
            made.__class__ = _number(kind)
        return made
    return tf.compat.v1.Variable(
        value, trainable=False, name=name, collections=[], use_resource=True
    )
