"""Training by workers whose gradients travel in 16 bits; no test lives here."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from replica_steps import BAD, POLICY, RATE, RULE, STEPS, Found, copies, loss_of

import amp

LARGE, SMALL = 16384, 4


def types(run: Any, *arguments: Any) -> list[str]:
    """The 16-bit types of the all-reduces in a function."""
    library = run.get_concrete_function(*arguments).graph.as_graph_def().library
    nodes = [n for function in library.function for n in function.node_def]
    nodes += run.get_concrete_function(*arguments).graph.as_graph_def().node
    reduces = (n for n in nodes if n.op.startswith("CollectiveReduce"))
    found = {tf.as_dtype(n.attr["T"].type).name for n in reduces}
    return sorted(found - {"float32"})


def wire(strategy: Any) -> Found:
    """One step from zero at rate one, so that the weights are the summed gradients."""
    return {name: _sums(strategy, name == "on") for name in ("off", "on")}


def _sums(strategy: Any, on: bool) -> Found:
    rng = np.random.default_rng(0)
    given = [rng.normal(size=[2, n]).astype(np.float32) for n in (LARGE, SMALL)]
    with strategy.scope():
        weights = [tf.Variable(tf.zeros([n])) for n in (LARGE, SMALL)]
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(weights)

    def step() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        each = [tf.constant(g)[context.replica_id_in_sync_group] for g in given]
        with tf.GradientTape() as tape:
            pairs = zip(weights, each, strict=True)
            loss = tf.add_n([tf.reduce_sum(w * g) for w, g in pairs])
        optimizer.apply(tape.gradient(loss, weights), weights)
        return context.all_reduce("sum", tf.fill([LARGE], 1 + 2**-23))

    run = tf.function(lambda: strategy.run(step))
    with amp.mixed_precision_scope(dtype="bfloat16", wire=on, **POLICY):
        metric = np.unique(copies(strategy, run())[0])
        found = types(run)
    errors = [
        float(np.max(np.abs(-np.float64(copies(strategy, w)[0]) - g.sum(0)) / total))
        for w, g in zip(weights, map(np.float64, given), strict=True)
        for total in [np.abs(g).sum(0)]
    ]
    ends = [float(metric.min()), float(metric.max())]
    return {"large": errors[0], "small": errors[1], "metric": ends, "types": found}


def wire_overflow(strategy: Any) -> Found:
    """As the other jobs, with a weight so large that it travels in 16 bits."""
    with strategy.scope():
        w = tf.Variable(tf.ones([4, LARGE]))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad) * LARGE
        optimizer.apply(tape.gradient(loss, [w]), [w])

    run = tf.function(lambda bad: strategy.run(step, args=(bad,)))
    found: Found = {"ends": [], "scales": []}
    policy = {"dtype": "float16", "loss_scale": RULE, "wire": True, **POLICY}
    with amp.mixed_precision_scope(**policy):
        for i in range(STEPS):
            run(tf.constant(1 if i == BAD else -1))
            scale = amp.loss_scaling.current().states[-1].scale
            found["scales"].append(copies(strategy, scale)[0])
            values = np.asarray(copies(strategy, w)[0])
            found["ends"].append([float(values.min()), float(values.max())])
        found["types"] = types(run, tf.constant(-1))
    return found
