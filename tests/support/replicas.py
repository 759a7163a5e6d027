"""One process of jobs under a strategy: `replicas.py mirrored` or `worker TASK PORTS`.

Run by test_replicas.py. Prints what it found, by job, as one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from replica_steps import (
    BAD,
    JOBS,
    POLICY,
    RATE,
    RULE,
    SCALE,
    STEPS,
    Found,
    built_by_one,
    copies,
    gradient_in_a_function,
    keras_optimizer,
    loss_of,
    trained,
    v1_optimizer,
)
from wire_steps import wire, wire_overflow

import amp
from amp import messages
from amp.integration.distributed import workers


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


def weights_file(strategy: Any) -> Found:
    """A model's weights, loaded before its gradient is taken: the scale they had."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/of.weights.h5"
        before, after = (_model(strategy) for _ in range(2))
        _overflow(strategy, before)
        before.save_weights(path)
        after.load_weights(path)
        _overflow(strategy, after)
        scaler = amp.loss_scaling.current().states[-1]
        found = {"made": copies(strategy, scaler.scale)}
        after.load_weights(path)
        return {**found, "loaded": copies(strategy, scaler.scale)}


def _model(strategy: Any) -> Any:
    with strategy.scope():
        return keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])


def _overflow(strategy: Any, model: Any) -> None:
    weight = model.weights[0].value
    with strategy.scope():
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([weight])

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(weight, tf.constant(1))
        optimizer.apply([tape.gradient(loss, weight)], [weight])

    with amp.mixed_precision_scope(dtype="float16", loss_scale=RULE, **POLICY):
        tf.function(lambda: strategy.run(step))()


def alone(strategy: Any) -> list[Found]:
    """Strategies of one replica, which overflows."""
    del strategy
    return [
        keras_optimizer(tf.distribute.OneDeviceStrategy("CPU:0"), bad=0),
        keras_optimizer(tf.distribute.MirroredStrategy(["CPU:0"]), bad=0),
        gradient_in_a_function(tf.distribute.MirroredStrategy(["CPU:1"]), bad=0),
        v1_optimizer(tf.distribute.MirroredStrategy(["CPU:1"]), bad=0),
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


def moving_average(strategy: Any) -> Found:
    """One that the program keeps behind its optimizer."""
    with strategy.scope():
        w, average = tf.Variable(1.0), tf.train.ExponentialMovingAverage(0.5)
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])
        average.apply([w])

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(tf.fill([4, 1], w), bad)
        optimizer.apply(tape.gradient(loss, [w]), [w])
        average.apply([w])

    return trained(strategy, w, step, [average.average(w)])


def nothing_scaled(strategy: Any) -> Found:
    """An update without a gradient of ours, with and without a loss scale around it."""
    with strategy.scope():
        w = tf.Variable(1.0)
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    return _sums(strategy, lambda: optimizer.apply([1.0], [w]))


def scaled(strategy: Any) -> Found:
    """An update by a gradient, with and without a loss scale."""
    with strategy.scope():
        w = tf.Variable(1.0)
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = w * w
        optimizer.apply(tape.gradient(loss, [w]), [w])

    return _sums(strategy, step)


def _sums(strategy: Any, step: Callable[[], Any]) -> Found:
    """How often replicas sum by collectives, with a loss scale and without."""

    def sums() -> int:
        run = tf.function(lambda: strategy.run(step))
        graph = run.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
        return sum("Reduce" in node.op and "Collective" in node.op for node in nodes)

    with amp.mixed_precision_scope(dtype="float16", loss_scale=RULE, **POLICY):
        within = sums()
    return {"sums": [within, sums()]}


def one_copy(strategy: Any) -> Found:
    """A strategy whose replicas share each variable: zeros, and a fixed scale."""
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]), aggregation=tf.VariableAggregation.MEAN)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(RATE)

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    run = tf.function(lambda bad: strategy.run(step, args=(bad,)))
    messages.forget()  # what another job of this process was told
    with (
        told() as said,
        amp.mixed_precision_scope(dtype="float16", loss_scale=RULE, **POLICY),
    ):
        for i in range(STEPS):
            run(tf.constant(1 if i == BAD else -1))
    fixed = [text for text in said if "the loss scale stays at" in text]
    return {"weights": copies(strategy, w), "fixed": fixed}


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """What the user is told by the logger meanwhile."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("amp")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


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
    """What went wrong; the job has a variable of its own, and one update."""
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, tf.constant(-1))
        optimizer.apply(tape.gradient(loss, [w]), [w])

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


IN_ONE_PROCESS = (
    fit,
    checkpoint,
    weights_file,
    alone,
    moving_average,
    nothing_scaled,
    scaled,
    one_copy,
    session,
    built_by_one,
)
BETWEEN_WORKERS = (wire, wire_overflow, workers_of_two_rules, worker_without_a_scale)

if __name__ == "__main__":
    main(*sys.argv[1:])
