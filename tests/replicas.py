"""One process of jobs under a strategy: `replicas.py mirrored` or `worker TASK PORTS`.

Run by test_distribution.py. Prints what it found, by job, as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import amp
from amp.integration import workers

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
    jobs = JOBS + (IN_ONE_PROCESS if role == "mirrored" else BETWEEN_WORKERS)
    found = {job.__name__: job(strategy) for job in jobs}
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
    factor = tf.where(tf.equal(replica, bad), np.inf, 1.0)
    return tf.reduce_mean(tf.matmul(tf.ones([2, 4]), w)) * factor


def trained(strategy: Any, w: Any, step: Any, slots: list[Any], bad: int = 1) -> Found:
    """Runs `step` (the replica that overflows) in all replicas, six times."""
    run = tf.function(lambda bad: strategy.run(step, args=(bad,)))
    return watched(strategy, w, run, slots, bad)


def watched(strategy: Any, w: Any, run: Any, slots: list[Any], bad: int = 1) -> Found:
    before = set(map(id, amp.loss_scaling.current().states))
    reports = len(amp.reports())
    found: Found = {"weights": [], "scales": [], "skipped": [], "slots": []}
    with amp.mixed_precision_scope(dtype="float16", loss_scale=RULE, **POLICY):
        for i in range(STEPS):
            run(tf.constant(bad if i == BAD else -1))
            (scaler,) = [
                s for s in amp.loss_scaling.current().states if id(s) not in before
            ]
            found["weights"].append(copies(strategy, w))
            found["scales"].append(copies(strategy, scaler.scale))
            found["skipped"].append(copies(strategy, scaler.skipped_steps))
            found["slots"].append([copies(strategy, slot) for slot in slots])
    found["low"] = max((r.nodes_low for r in amp.reports()[reports:]), default=0)
    return found


def keras_optimizer(strategy: Any, bad: int = 1) -> Found:
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        optimizer.apply(tape.gradient(loss, [w]), [w])

    return trained(strategy, w, step, [optimizer.iterations.value], bad)


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


def gradient_in_a_function(strategy: Any, bad: int = 1) -> Found:
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

    return trained(strategy, w, step, [optimizer.iterations.value], bad)


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


def reduced_by_the_program(strategy: Any) -> Found:
    """The program means gradients, and the optimizer sums the means."""
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        context = tf.distribute.get_replica_context()
        grads = context.all_reduce("mean", tape.gradient(loss, [w]))
        optimizer.apply(grads, [w])

    return trained(strategy, w, step, [optimizer.iterations.value])


def step_by_step(strategy: Any) -> Found:
    """No function: what replicas do is run at once."""
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        optimizer.apply(tape.gradient(loss, [w]), [w])

    def run(bad: tf.Tensor) -> None:
        strategy.run(step, args=(bad,))

    return watched(strategy, w, run, [optimizer.iterations.value])


def fit(strategy: Any) -> Found:
    """Two epochs of six batches; in each one batch is infinite for replica 1."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse")
    x = np.random.default_rng(0).normal(size=[STEPS * 8, 4]).astype(np.float32)
    y, clean = x.sum(axis=1, keepdims=True), x.copy()
    x[BAD * 8 + 4] = np.inf
    found: Found = {"variables": [], "scales": []}

    def see(batch: int, logs: Any) -> None:
        (scaler,) = amp.loss_scaling.current().states[before:]
        found["scales"].append(copies(strategy, scaler.scale))
        variables = [*model.variables, *model.optimizer.variables]
        found["variables"].append([copies(strategy, v.value) for v in variables])

    def error() -> float:
        w, b = (copies(strategy, v.value)[0] for v in model.weights)
        return float(np.mean((clean @ w + b - y) ** 2))

    before, first = len(amp.loss_scaling.current().states), error()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=see)
    with amp.mixed_precision_scope(dtype="float16", loss_scale=RULE, **POLICY):
        model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[callback])
    return {**found, "errors": [first, error()]}


def alone(strategy: Any) -> list[Found]:
    """Strategies of one replica, which overflows."""
    del strategy
    return [
        keras_optimizer(tf.distribute.OneDeviceStrategy("CPU:0"), bad=0),
        keras_optimizer(tf.distribute.MirroredStrategy(["CPU:0"]), bad=0),
        gradient_in_a_function(tf.distribute.MirroredStrategy(["CPU:1"]), bad=0),
    ]


def checkpoint(strategy: Any) -> Found:
    """The state of the last job's scaler: saved, changed, and restored."""
    scaler = amp.loss_scaling.current().states[-1]
    for each in (scaler.scale, scaler.good_steps):
        each.assign(2)
    state = tf.train.Checkpoint(loss_scale=amp.loss_scaling.current())
    with tempfile.TemporaryDirectory() as directory:
        path = state.save(f"{directory}/state")
        for each in (scaler.scale, scaler.good_steps):
            each.assign(1)
        state.restore(path).assert_consumed()
    variables = (scaler.scale, scaler.good_steps)
    return {"restored": [copies(strategy, each) for each in variables]}


def session(strategy: Any) -> Found:
    """A session graph: a fixed scale, and zeros where a replica overflowed."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), strategy.scope():
        w = v1.get_variable("w", initializer=tf.ones([4, 1]))
        optimizer = v1.train.GradientDescentOptimizer(RATE)
        bad = v1.placeholder(tf.int32, [])

        def step(bad: tf.Tensor) -> Any:
            loss = loss_of(w, bad)
            return optimizer.minimize(loss, var_list=[w])

        with amp.mixed_precision_scope(dtype="float16", loss_scale=RULE, **POLICY):
            run = tf.group(
                strategy.experimental_local_results(strategy.run(step, (bad,)))
            )
            with v1.Session() as running:
                running.run(v1.global_variables_initializer())
                for i in range(STEPS):
                    running.run(run, {bad: 1 if i == BAD else -1})
                values = strategy.experimental_local_results(w)
                return {"weights": [running.run(v).tolist() for v in values]}


def one_gradient(strategy: Any, rule: Any) -> str:
    """What went wrong; the job has a variable of its own, and no update."""
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(w, tf.constant(-1))
        return tape.gradient(loss, [w])[0]

    try:
        with amp.mixed_precision_scope(dtype="float16", loss_scale=rule, **POLICY):
            tf.function(lambda: strategy.run(step))()
    except Exception as e:  # AutoGraph's, which tells ours
        return str(e)
    return ""


def workers_of_two_rules(strategy: Any) -> str:
    task = strategy.cluster_resolver.task_id
    return one_gradient(strategy, (SCALE, 2 * SCALE)[task])


def worker_without_a_scale(strategy: Any) -> str:
    workers.PATIENCE = 0.5
    task = strategy.cluster_resolver.task_id
    return one_gradient(strategy, (SCALE, "none")[task])


JOBS = (
    keras_optimizer,
    v1_optimizer,
    by_hand,
    gradient_in_a_function,
    reduced_by_the_program,
    step_by_step,
    without_a_scale,
)
IN_ONE_PROCESS = (fit, checkpoint, alone, session)
BETWEEN_WORKERS = (workers_of_two_rules, worker_without_a_scale)

if __name__ == "__main__":
    main(*sys.argv[1:])
