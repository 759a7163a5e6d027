"""The replicas of a `tf.distribute` strategy: how they agree and build nodes together.

`MirroredStrategy` traces its replicas by turns, each up to the next `merge_call`, where
they *meet*: one function is called for all of them. They can meet only in the function
that the strategy runs, not in a function, branch or loop inside it. Under XLA on GPUs
replicas do not meet; they use collectives, which may be anywhere.

What replicas agree on or build is not known here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_KINDS = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def several() -> bool:
    """Whether the code that runs now is that of one of several replicas."""
    strategy = tf.distribute.get_strategy()
    inside = not tf.distribute.in_cross_replica_context()
    return inside and strategy.num_replicas_in_sync > 1 and isinstance(strategy, _KINDS)


def cannot_agree() -> bool:
    """Whether a strategy has several replicas, but they cannot agree here.

    They cannot in a session graph, under strategies that have one copy of a variable
    for all replicas, and in code outside of replicas.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return False
    return not (ever_agree() and several())


def ever_agree() -> bool:
    """Whether replicas of the current strategy, if it has several, agree in its steps.

    They do not in a session graph, and under strategies that have one copy of a
    variable for all replicas.
    """
    with tf.init_scope():
        eager = tf.executing_eagerly()
    return eager and isinstance(tf.distribute.get_strategy(), _KINDS)


def merges() -> bool:
    """Whether there are several replicas, and they meet (`merge_call`) to update."""
    return (
        several() and not tf.__internal__.distribute.strategy_supports_no_merge_call()
    )


def can_meet() -> bool:
    """Whether replicas can agree in the graph that is being built.

    Those that meet can do so only in the graph of the function that the strategy runs.
    """
    if not merges():
        return True
    graph = getattr(threading.current_thread(), "graph", None)
    return graph is None or graph is tf.compat.v1.get_default_graph()


def own_number() -> int | None:
    """The number, in this process, of the replica whose thread this is.

    None outside of replicas, and where they meet. Unlike TensorFlow's number of a
    replica, to ask for it builds no node.
    """
    return getattr(threading.current_thread(), "replica_id", None)


def one_process() -> bool:
    """Whether replicas meet, and all of them are traced by this process."""
    workers = isinstance(
        tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy
    )
    return merges() and not workers


def agree(finite: tf.Tensor) -> tf.Tensor:
    """Returns whether a flag is true in every replica. All replicas have to call it.

    Args:
      finite: the flag in this replica, bool, shape ().
    """
    if not several():
        return finite
    context = tf.distribute.get_replica_context()
    if one_process() and can_meet():
        # Not by a collective: TensorFlow numbers them by strategy, and keeps for the
        # process what a number stood for. With one more, the collectives of a second
        # strategy's equal model would no longer be those of the first.
        together: tf.Tensor = context.merge_call(_all, args=(finite,))
        return together
    # Float: every all-reduce has it, and counts so small are exact.
    bad = tf.cast(tf.logical_not(finite), tf.float32)
    return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, bad), 0.0)


def _all(strategy: Any, flags: Any) -> tf.Tensor:
    return tf.reduce_all(tf.stack(strategy.experimental_local_results(flags)))


def gather(value: Any) -> list[Any]:
    """Returns the objects that the replicas of this process pass, in their order.

    All replicas have to call it. No node is built. Under XLA on GPUs, where replicas do
    not meet, each gets only its own object.

    Args:
      value: any Python object.
    """
    if not merges():
        return [value]

    def merged(strategy: Any, given: Any) -> Callable[[], list[Any]]:
        values = [each() for each in strategy.experimental_local_results(given)]
        return lambda: values

    context = tf.distribute.get_replica_context()
    # In functions, because TensorFlow takes lists and tuples apart.
    gathered: Callable[[], list[Any]] = context.merge_call(
        merged, args=(lambda: value,)
    )
    return gathered()


def cond(
    pred: tf.Tensor, true_fn: Callable[[], Any], false_fn: Callable[[], Any]
) -> Any:
    """`tf.cond` for replicas that meet in its branches. All replicas have to call it.

    Args:
      pred: a flag that is the same in all replicas, bool, shape ().
      true_fn, false_fn: as of `tf.cond`; each replica's is called in its branch.
    """
    context = tf.distribute.get_replica_context()
    return context.merge_call(_cond, args=(pred, true_fn, false_fn))


def _cond(strategy: Any, pred: Any, true_fn: Any, false_fn: Any) -> Any:
    def branch(fn: Any) -> Callable[[], Any]:
        return lambda: _first(strategy, _each(strategy, fn))

    return tf.cond(_first(strategy, pred), branch(true_fn), branch(false_fn))


def alone(call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns `call` in a form that a strategy's only replica may call in a branch.

    A `merge_call` in a branch fails, because replicas meet only in the graph that they
    began in. A replica without others need not meet any, so it gets a context of its
    own for the call.
    """
    strategy = tf.distribute.get_strategy()
    inside = not tf.distribute.in_cross_replica_context()
    if not tf.distribute.has_strategy() or not inside:
        return call
    if strategy.num_replicas_in_sync > 1:
        return call

    def unmerged() -> Any:
        with tf.distribute.ReplicaContext(strategy, 0):
            return call()

    return unmerged


def _each(strategy: Any, fn: Any) -> Any:
    """Calls each replica's function in it."""
    return strategy.extended.call_for_each_replica(lambda fn: fn(), args=(fn,))


def _first(strategy: Any, value: Any) -> Any:
    return strategy.experimental_local_results(value)[0]
