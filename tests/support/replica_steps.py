"""Training by replicas, one of which overflows once; no test lives here."""

from __future__ import annotations

import functools
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
    found["numbers"] = []
    with amp.mixed_precision_scope(dtype="float16", loss_scale=RULE, **POLICY):
        for i in range(STEPS):
            run(tf.constant(bad if i == BAD else -1))
            (scaler,) = [
                s for s in amp.loss_scaling.current().states if id(s) not in before
            ]
            found["weights"].append(copies(strategy, w))
            found["scales"].append(copies(strategy, scaler.scale))
            found["skipped"].append(copies(strategy, scaler.skipped_steps))
            numbers = [int(scaler.skipped_steps), float(scaler.scale)]
            found["numbers"].append([*numbers, float(amp.loss_scaling.current().scale)])
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


def v1_optimizer(strategy: Any, bad: int = 1) -> Found:
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        taken = tf.Variable(0, trainable=False, dtype=tf.int64)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(RATE)

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        pairs = zip(tape.gradient(loss, [w]), [w], strict=True)
        optimizer.apply_gradients(pairs, global_step=taken)

    return trained(strategy, w, step, [taken], bad)


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


def summed_one_by_one(strategy: Any) -> Found:
    """The gradients of one call, each in a sum of its own."""
    with strategy.scope():
        w, *others = [
            tf.Variable(tf.ones([4, 1]), aggregation=tf.VariableAggregation.MEAN)
            for _ in range(4)
        ]

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = sum(loss_of(each, bad) for each in (w, *others))
        context = tf.distribute.get_replica_context()
        grads = tape.gradient(loss, [w, *others])
        for each, grad in zip([w, *others], grads, strict=True):
            each.assign_sub(RATE * context.all_reduce("sum", grad))

    return trained(strategy, w, step, [])


def norm_summed(strategy: Any) -> Found:
    """Replicas sum the norm of the gradients, which then go to two optimizers."""
    with strategy.scope():
        w, other = tf.Variable(tf.ones([4, 1])), tf.Variable(tf.ones([4, 1]))
        optimizers = [keras.optimizers.SGD(RATE) for _ in range(2)]
        for optimizer, variable in zip(optimizers, (w, other), strict=True):
            optimizer.build([variable])

    def step(bad: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad) + loss_of(other, bad)
        grads = tape.gradient(loss, [w, other])
        context = tf.distribute.get_replica_context()
        norm = context.all_reduce("mean", tf.linalg.global_norm(grads))
        for optimizer, grad, v in zip(optimizers, grads, (w, other), strict=True):
            optimizer.apply([grad], [v])
        return norm

    return trained(strategy, w, step, [optimizers[0].iterations.value])


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


def kept_around_a_sum(strategy: Any) -> Found:
    """Replicas enter the scope by turns; what each builds in it is marked, no more."""

    def step() -> None:
        value = tf.ones([2])
        with amp.keep_float32():
            value = tf.identity(value, name="inside")
            value = tf.distribute.get_replica_context().all_reduce("sum", value)
            value = tf.identity(value, name="inside")
        value = tf.identity(value, name="outside")
        value = tf.distribute.get_replica_context().all_reduce("sum", value)
        return tf.identity(value, name="outside")

    run = tf.function(lambda: strategy.run(step))
    nodes = run.get_concrete_function().graph.get_operations()
    found: Found = {"inside": [], "outside": []}
    for op in nodes:
        name = op.name.split("/")[-1].split("_")[0]
        if name in found:
            found[name].append("_amp_keep" in op.node_def.attr)
    return found


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


def _by_one(strategy: Any, step_of: Any) -> Found:
    """Trains by a step of which a gradient is taken in one replica only, in each."""
    found: Found = {"weights": [], "taken": [], "scales": []}
    for one in (0, 1):
        with strategy.scope():
            w = tf.Variable(tf.ones([4, 1]))
            optimizer = keras.optimizers.SGD(RATE)
            optimizer.build([w])
        before = set(map(id, amp.loss_scaling.current().states))
        step = functools.partial(step_of, w, optimizer, one)
        run = tf.function(lambda bad, step=step: strategy.run(step, args=(bad,)))
        with amp.mixed_precision_scope(dtype="float16", loss_scale=RULE, **POLICY):
            for i in range(STEPS):
                run(tf.constant(one if i == BAD else -1))
        made = [s for s in amp.loss_scaling.current().states if id(s) not in before]
        found["weights"].append(copies(strategy, w))
        found["taken"].append(copies(strategy, optimizer.iterations.value))
        found["scales"].append([copies(strategy, s.scale) for s in made])
    return found


def looked_at_by_one(strategy: Any) -> Found:
    """One replica looks at a gradient, as for a log; all take one for the update."""

    def step(w: Any, optimizer: Any, one: int, bad: tf.Tensor) -> None:
        context = tf.distribute.get_replica_context()
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_of(w, bad)
        if context.replica_id_in_sync_group == one:
            tf.norm(tape.gradient(loss, w))
        optimizer.apply(tape.gradient(loss, [w]), [w])

    return _by_one(strategy, step)


def given_by_one(strategy: Any) -> Found:
    """One replica has a gradient for the update, the others have zeros."""

    def step(w: Any, optimizer: Any, one: int, bad: tf.Tensor) -> None:
        context = tf.distribute.get_replica_context()
        grads = [tf.zeros([4, 1])]
        if context.replica_id_in_sync_group == one:
            with tf.GradientTape() as tape:
                loss = loss_of(w, bad)
            grads = tape.gradient(loss, [w])
        optimizer.apply(grads, [w])

    return _by_one(strategy, step)


def built_by_one(strategy: Any) -> Found:
    """As `given_by_one`, but what takes the gradient is built in that replica only."""

    def step(w: Any, optimizer: Any, one: int, bad: tf.Tensor) -> None:
        context = tf.distribute.get_replica_context()
        grads = [tf.zeros([4, 1])]
        if tf.get_static_value(context.replica_id_in_sync_group) == one:
            with tf.GradientTape() as tape:
                loss = loss_of(w, bad)
            grads = tape.gradient(loss, [w])
        optimizer.apply(grads, [w])

    return _by_one(strategy, step)


def scaled_by_hand(strategy: Any) -> Found:
    """The program scales the loss; the optimizer is hooked as ever."""
    with strategy.scope():
        w = tf.Variable(tf.ones([4, 1]))
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build([w])

    def step(bad: tf.Tensor) -> None:
        scaler = amp.loss_scaling.scaler_for([w])
        with tf.GradientTape() as tape:
            scaled = amp.loss_scaling.scale_loss(loss_of(w, bad), scaler)
        grads, finite = amp.loss_scaling.unscale(tape.gradient(scaled, [w]), scaler)
        optimizer.apply(grads, [w])
        scaler.update(finite)

    return trained(strategy, w, step, [optimizer.iterations.value])


def own_optimizer(strategy: Any) -> Found:
    """The update is the program's own; replicas sum what is not finite yet."""
    with strategy.scope():
        mean = tf.VariableAggregation.MEAN
        w = tf.Variable(tf.ones([4, 1]), aggregation=mean)
        steps = tf.Variable(0.0, trainable=False, aggregation=mean)

    def step(bad: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(w, bad)
        grads = tape.gradient(loss, [w])

        def update() -> None:
            context = tf.distribute.get_replica_context()
            (grad,) = context.all_reduce("sum", grads)
            w.assign_sub(RATE * grad)
            steps.assign_add(1.0)

        amp.loss_scaling.apply_if_finite(update, grads, [w])

    return trained(strategy, w, step, [steps])


JOBS = (
    keras_optimizer,
    scaled_by_hand,
    own_optimizer,
    v1_optimizer,
    by_hand,
    summed_one_by_one,
    norm_summed,
    gradient_in_a_function,
    reduced_by_the_program,
    step_by_step,
    without_a_scale,
    kept_around_a_sum,
    looked_at_by_one,
    given_by_one,
)
