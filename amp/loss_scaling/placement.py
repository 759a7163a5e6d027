"""Where a scaler's variables are made: outside of functions, and on which device.

Used by `scaler` and `state`. What the variables mean is not known here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from amp.loss_scaling import branches


@dataclasses.dataclass(frozen=True, slots=True)
class ScalerSite:
    """Where a gradient is taken, and what its scaler is called.

    Args:
      device: the device on which the scaler's variables are kept.
      agreed: whether a gradient call's flag (all gradients finite) is already that of
        all replicas, as it is where there is only one. Otherwise replicas agree when
        they update, and the scale changes there.
      same: called with the rule as text before a scaler is made that other processes
        have to make too; raises if one of them has another rule.
      agree: returns whether a flag (bool, shape ()) is true in all replicas.
      name: what the scaler is called; "" for a name after its variables.
      line: the file and line of the gradient call, as `names.line` returns it.
      lasts: whether it lives until the last of its variables is deleted, because the
        program itself holds it. Otherwise until the first is: no gradient call finds it
        again then.
      make: makes a resource variable of a session graph; takes what
        `tf.compat.v1.Variable` takes.
    """

    device: str = ""
    agreed: bool = True
    same: Callable[[str], None] = lambda rule: None
    agree: Callable[[tf.Tensor], tf.Tensor] = lambda finite: finite
    name: str = ""
    line: str = ""
    lasts: bool = False
    make: Callable[..., tf.Variable] = functools.partial(
        tf.compat.v1.Variable, use_resource=True
    )


@contextlib.contextmanager
def outside_functions(device: str) -> Iterator[None]:
    """A scope outside of all functions: eager, or in the session graph being built.

    What is made in it is on `device`; device scopes around it (a parameter server's,
    say) have no effect.

    `tf.init_scope` alone does not do: a `tf.function` that is being traced notes every
    variable made meanwhile, also under `tf.init_scope`. It then traces a second time,
    and raises if that trace makes variables again. It notes them through the default
    graph, so here that is an empty graph.

    Args:
      device: name of a device, "" for TensorFlow's choice.
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
    """Returns the device on which a session graph's scaler is made.

    It is in the task that computes the loss, so that workers that share a parameter
    server have a scaler each. In that task it is on the device of the variables or, if
    these are in another task, on that of the loss.

    Args:
      target: the device of the loss, "" if the program gave none.
      source: the device of the first variable, "" if the program gave none.
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
    """Returns the current strategy if several of its replicas are in this process.

    Otherwise None. A worker with one replica makes an ordinary variable: to make one of
    the strategy's, all workers would have to do so at the same time.
    """
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        return None
    return strategy if len(strategy.extended.worker_devices) > 1 else None


def copies(
    strategy: tf.distribute.Strategy | None,
) -> contextlib.AbstractContextManager[None]:
    """A scope in which variables get a copy for each replica of a strategy."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


@functools.cache
def _number(kind: Any) -> Any:
    """A subclass of a strategy's variable class that has `int()` and `float()`.

    TensorFlow's ordinary variables have them; those of strategies do not. The value is
    that of the first copy.
    """

    def first(self: Any) -> Any:
        return self.distribute_strategy.experimental_local_results(self)[0].numpy()

    methods = {
        "__int__": lambda self: int(first(self)),
        "__float__": lambda self: float(first(self)),
    }
    return type(kind.__name__, (kind,), methods)


def variable(name: str, value: tf.Tensor, site: ScalerSite) -> tf.Variable:
    """Makes a variable that is in none of the graph's collections.

    So a program with sessions does not find it among its own variables. Nor does a
    `tf.variable_creator_scope` of the program see it made, if `site.make` asks none; a
    strategy does. Eagerly `outside_functions` sees to that. `int(variable)` and
    `float(variable)` work under every strategy.
    """
    if tf.executing_eagerly():
        made: Any = tf.Variable(value, trainable=False, name=name)
        if not hasattr(type(made), "__int__"):
            kind: Any = type(made)
            made.__class__ = _number(kind)
        return made
    make = ScalerSite().make if tf.distribute.has_strategy() else site.make
    return make(value, trainable=False, name=name, collections=[])


def initialised(
    known: tf.Tensor, last: tf.Variable, others: Sequence[tf.Variable]
) -> tf.Tensor:
    """Builds the initialisation of a scaler's variables in a session graph.

    The user's program does not know these variables and so runs no initialiser for
    them. The tensor returned, when evaluated, initialises them if they are not.

    Args:
      known: whether `last` is initialised.
      last: is initialised after the others: if it has a value, all have.
      others: the others.
    """

    def begin() -> tf.Tensor:
        with tf.control_dependencies([_begin(v) for v in others]):
            first = _begin(last)
        with tf.control_dependencies([first]):
            return tf.constant(True)

    return branches.cond(known, lambda: tf.constant(True), begin)


def _begin(variable: tf.Variable) -> Any:
    return variable.assign(variable.initial_value, read_value=False)
