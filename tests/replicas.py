"""One process of jobs under a strategy: `replicas.py mirrored` or `worker TASK PORTS`.

Run by test_distribution.py. Prints what it found, by job, as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import amp

STEPS = 6
BAD = 2  # the step at which the loss of replica 1 overflows
RATE = 0.125
SCALE = 8.0
GROWTH = 3
RULE = amp.loss_scaling.DynamicLossScale(initial=SCALE, growth_interval=GROWTH)
POLICY = {"emulate": True, "assignment": "all", "strict": True}
Found = dict[str, Any]


def main(role: str, *rest: str) -> None:
    warnings.simplefilter("error", category=RuntimeWarning)
    strategy = mirrored() if role == "mirrored" else multi_worker(int(rest[0]), rest[1])
    found = {job.__name__: job(strategy) for job in JOBS}
    print(json.dumps(found), flush=True)


def mirrored() -> tf.distribute.Strategy:
    (cpu,) = tf.config.list_physical_devices("CPU")
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, halves)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def multi_worker(task: int, ports: str) -> tf.distribute.Strategy:
    addresses = [f"127.0.0.1:{port}" for port in ports.split(",")]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": task}}
    )
    return tf.distribute.MultiWorkerMirroredStrategy()


def copies(strategy: Any, value: Any) -> list[Any]:
    """What each replica of this process has."""
    values = strategy.experimental_local_results(value)
    return [np.asarray(value).tolist() for value in values]


def loss_of(w: Any, bad: tf.Tensor) -> tf.Tensor:
    """The mean of a row of ones times w; infinite in the replica `bad`."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    factor = tf.where(replica == bad, np.inf, 1.0)
    return tf.reduce_mean(tf.matmul(tf.ones([2, 4]), w)) * factor


def trained(strategy: Any, w: Any, step: Any, slots: list[Any]) -> Found:
    """Runs `step` (the replica that overflows) in all replicas, six times."""
    before = set(map(id, amp.loss_scaling.current().states))
    run = tf.function(lambda bad: strategy.run(step, args=(bad,)))
    found: Found = {"weights": [], "scales": [], "skipped": [], "slots": []}
    with amp.mixed_precision_scope(dtype="float16", loss_scale=RULE, **POLICY):
        for i in range(STEPS):
            run(tf.constant(1 if i == BAD else -1))
            (scaler,) = [
                s for s in amp.loss_scaling.current().states if id(s) not in before
            ]
            found["weights"].append(copies(strategy, w))
            found["scales"].append(copies(strategy, scaler.scale))
            found["skipped"].append(copies(strategy, scaler.skipped_steps))
            found["slots"].append([copies(strategy, slot) for slot in slots])
    found["low"] = max(report.nodes_low for report in amp.reports())
    return found


def keras_optimizer(strategy: Any) -> Found:
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        optimizer.apply(tape.gradient(loss, [w]), [w])

    return trained(strategy, w, step, [optimizer.iterations.value])


def v1_optimizer(strategy: Any) -> Found:
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        taken = tf.Variable(0, trainable=False, dtype=tf.int64)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(RATE)

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        pairs = zip(tape.gradient(loss, [w]), [w], strict=True)
        optimizer.apply_gradients(pairs, global_step=taken)

    return trained(strategy, w, step, [taken])


def by_hand(strategy: Any) -> Found:
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]), aggregation=tf.VariableAggregation.MEAN)

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        context = tf.distribute.get_replica_context()
        (grad,) = context.all_reduce("sum", tape.gradient(loss, [w]))
        w.assign_sub(RATE * grad)

    return trained(strategy, w, step, [])


def gradient_in_a_function(strategy: Any) -> Found:
    """Replicas cannot meet where this gradient is taken."""
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    @tf.function
    def grads(bad: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        return tape.gradient(loss, [w])

    def step(bad: tf.Tensor) -> None:
        optimizer.apply(grads(bad), [w])

    return trained(strategy, w, step, [optimizer.iterations.value])


def without_a_scale(strategy: Any) -> Found:
    """What follows an update is not marked as the optimizer's."""
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, tf.constant(-1))
        optimizer.apply(tape.gradient(loss, [w]), [w])
        return tf.identity(loss, name="after")

    run = tf.function(lambda: strategy.run(step))
    with amp.mixed_precision_scope(dtype="bfloat16", **POLICY):
        run()
    nodes = run.get_concrete_function().graph.get_operations()
    after = [op for op in nodes if op.name.endswith("after")]
    kept = [op for op in after if "_amp_keep" in op.node_def.attr]
    return {"after": len(after), "kept": len(kept), "weights": copies(strategy, w)}


JOBS = (
    keras_optimizer,
    v1_optimizer,
    by_hand,
    gradient_in_a_function,
    without_a_scale,
)

if __name__ == "__main__":
    main(*sys.argv[1:])
