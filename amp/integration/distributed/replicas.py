"""Replicas of a strategy: whether there are several, agreeing, updating together.

Knows how strategies run replicas; what is agreed on or updated is not known here.

`MirroredStrategy` traces its replicas one after another, as far as the next place where
they meet (`merge_call`). They can meet only in the function that the strategy runs, not
in a function, branch or loop inside it. Under XLA on GPUs they have collectives, and
meet anywhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_KINDS = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def several() -> bool:
    """Whether what is built now runs in each of several replicas."""
    strategy = tf.distribute.get_strategy()
    inside = not tf.distribute.in_cross_replica_context()
    return inside and strategy.num_replicas_in_sync > 1 and isinstance(strategy, _KINDS)


def cannot_agree() -> bool:
    """Whether there are several replicas that cannot agree.

    Those of a session graph and of strategies that keep one copy of a variable for all,
    and what is built outside replicas.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return False
    with tf.init_scope():
        eager = tf.executing_eagerly()
    return not (eager and several())


def merges() -> bool:
    """Whether what is built now is one of several replicas', which meet to update."""
    return (
        several() and not tf.__internal__.distribute.strategy_supports_no_merge_call()
    )


def can_meet() -> bool:
    """Whether replicas can meet in the graph that is being built."""
    if not merges():
        return True
    graph = getattr(threading.current_thread(), "graph", None)
    return graph is None or graph is tf.compat.v1.get_default_graph()


def one_process() -> bool:
    """Whether this process traces all replicas of the strategy, and they meet."""
    workers = isinstance(
        tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy
    )
    return merges() and not workers


def agree(finite: tf.Tensor) -> tf.Tensor:
    """Returns whether a flag holds in every replica; all have to call it.

    Args:
      finite: this replica's, bool, shape ().
    """
    if not several():
        return finite
    context = tf.distribute.get_replica_context()
    # Float: every all-reduce has it, and counts so small are exact.
    bad = tf.cast(tf.logical_not(finite), tf.float32)
    return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, bad), 0.0)


def gather(value: Any) -> list[Any]:
    """Returns what each replica of this process gives, in their order; builds nothing.

    All replicas have to call it. Those of other processes, and under XLA on GPUs, where
    replicas do not meet while they are traced, each see their own only.

    Args:
      value: any object of Python's.
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
    """`tf.cond` on a flag that is the same in all replicas, which may meet in branches.

    Called by every replica; a branch is built by each of them.
    """
    context = tf.distribute.get_replica_context()
    return context.merge_call(_cond, args=(pred, true_fn, false_fn))


def _cond(strategy: Any, pred: Any, true_fn: Any, false_fn: Any) -> Any:
    def branch(fn: Any) -> Callable[[], Any]:
        return lambda: _first(strategy, _each(strategy, fn))

    return tf.cond(_first(strategy, pred), branch(true_fn), branch(false_fn))


def together(
    call: Callable[[], Any],
    scope: Callable[[], contextlib.AbstractContextManager[None]],
) -> Any:
    """Returns what `call` gives in this replica, built inside one scope for all."""

    def merged(strategy: Any, call: Any) -> Any:
        with scope():
            return _each(strategy, call)

    return tf.distribute.get_replica_context().merge_call(merged, args=(call,))


def alone(call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns `call` so that a strategy's only replica may make it in a branch.

    To merge, replicas meet in the graph that they began in; one has no one to meet.
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
