"""Overflow leaves the whole update out, once, wherever gradient and optimizer are."""

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration import active
from amp.integration.install import install
from amp.loss_scaling import (
    ConstantLossScale,
    DynamicLossScale,
    NoLossScale,
    provenance,
    state,
    update,
)

pytestmark = pytest.mark.kernels

keras = pytest.importorskip("keras")
v1 = tf.compat.v1

KERAS = {
    "adam": lambda: keras.optimizers.Adam(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(
        0.1, use_ema=True, ema_overwrite_frequency=2
    ),
    "accumulating": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
}
SESSION = {
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
}
MODES = {
    "eager": lambda step: step,
    "function": tf.function,
    "xla": lambda step: tf.function(step, jit_compile=True),
}


@pytest.fixture(autouse=True)
def _installed():
    install()


@pytest.fixture
def scope(monkeypatch):
    def enter(rule):
        monkeypatch.setattr(active, "active_loss_scale", lambda: rule)

    enter(DynamicLossScale(initial=8.0, growth_interval=2))
    return enter


def gradient(variables, factor):
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(tf.convert_to_tensor(v) ** 2) for v in variables)
        loss *= factor
    return tape.gradient(loss, variables)


def bits(variables):
    return [tf.convert_to_tensor(v).numpy().tobytes() for v in variables]


def scaler_of(variable):
    (found,) = state.serving([variable])
    return found[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KERAS)
def test_keras_update_is_left_out_whole(scope, name, mode):
    optimizer, w = KERAS[name](), tf.Variable([1.0, -2.0])
    b = tf.Variable(0.5)

    def step(factor):
        optimizer.apply(gradient([w, b], factor), [w, b])

    step = MODES[mode](step)
    step(tf.constant(1.0))
    scaler = scaler_of(w)
    everything = [w, b, *optimizer.variables]
    before = bits(everything)
    for bad in (np.inf, np.nan):
        step(tf.constant(bad))
        assert bits(everything) == before
    assert scaler.skipped_steps.numpy() == 2
    assert scaler.scale.numpy() == 2.0
    assert not scaler.overflow.numpy().any()
    step(tf.constant(1.0))
    step(tf.constant(1.0))
    assert bits([w, b]) != before[:2]
    assert optimizer.iterations.numpy() == 3 // (2 if name == "accumulating" else 1)
    assert scaler.scale.numpy() == 4.0


def test_a_skipped_first_step_builds_the_optimizer_only(scope):
    optimizer, w = keras.optimizers.Adam(0.1), tf.Variable([1.0])
    step = tf.function(lambda f: optimizer.apply(gradient([w], f), [w]))
    step(tf.constant(np.inf))
    assert optimizer.built
    assert optimizer.iterations.numpy() == 0
    assert w.numpy() == 1.0
    step(tf.constant(1.0))
    np.testing.assert_allclose(w.numpy(), 0.9, rtol=1e-6)


def test_optimizer_variables_keep_their_names(scope):
    def paths():
        optimizer, w = keras.optimizers.Adam(0.1, name="mine"), tf.Variable([1.0])
        optimizer.apply(gradient([w], 1.0), [w])
        return [v.path for v in optimizer.variables]

    with_plugin = paths()
    scope(None)
    assert with_plugin == paths()


def test_fit_that_runs_eagerly_leaves_out_an_update_that_overflows():
    dense = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input([4]), dense])
    model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
    seen = [bits(model.variables)]

    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(bits(self.model.trainable_variables))

    x, y = np.ones([3, 4], "float32"), np.float32([1.0, 1e35, 1.0])  # scaled: infinite
    with amp.mixed_precision_scope(dtype="float16", emulate=True):
        model.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[Notes()])
    same = [a == b for a, b in zip(seen, seen[1:], strict=False)]
    assert same == [False, True, False]


def multi_optimizer(kind=keras.optimizers.Adam):
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip("a Keras without MultiOptimizer")
    one, other = kind(0.1, name="one"), keras.optimizers.SGD(0.1, name="other")
    inner = keras.optimizers.OptimizerMap(one, {"b": other})
    return keras.optimizers.MultiOptimizer(inner)


@pytest.mark.parametrize("mode", MODES)
def test_an_update_by_several_optimizers_is_one(scope, mode):
    optimizer = multi_optimizer()
    w, b = (keras.Variable([1.0], name="w"), keras.Variable([1.0], name="b"))

    def step(factor):
        grads = gradient([w.value, b.value], factor)
        optimizer.apply_gradients(zip(grads, [w, b], strict=True))

    step = MODES[mode](step)
    step(tf.constant(np.inf))
    assert optimizer.built
    step(tf.constant(1.0))
    everything = [w, b, *optimizer.variables]
    before = bits(everything)
    step(tf.constant(np.inf))
    assert bits(everything) == before
    assert optimizer.iterations.numpy() == 1
    assert scaler_of(w.value).skipped_steps.numpy() == 2
    step(tf.constant(1.0))
    assert all(a != b for a, b in zip(before[:2], bits([w, b]), strict=True))


def test_variables_of_several_optimizers_keep_their_paths(scope):
    def paths():
        optimizer = multi_optimizer()
        w, b = (keras.Variable([1.0], name="w"), keras.Variable([1.0], name="b"))
        optimizer.apply(gradient([w.value, b.value], 1.0), [w, b])
        return [v.path.replace(optimizer.name, "") for v in optimizer.variables]

    with_plugin = paths()
    scope(None)
    assert with_plugin == paths()


def test_what_one_of_several_optimizers_keeps_is_read_outside(scope):
    class Kept(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            self.norm = tf.norm(gradient)
            super().update_step(gradient, variable, learning_rate)

    optimizer = multi_optimizer(Kept)
    w, b = (keras.Variable([1.0], name="w"), keras.Variable([1.0], name="b"))

    @tf.function(autograph=False)
    def step(factor):
        optimizer.apply(gradient([w.value, b.value], factor), [w, b])
        return optimizer.optimizers[1].norm

    assert step(tf.constant(1.0)).numpy() == 2.0
    assert step(tf.constant(np.inf)).numpy() == 0.0


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("name", SESSION)
def test_v1_update_is_left_out_whole_in_tf2(scope, name, mode):
    optimizer, w = SESSION[name](), tf.Variable([1.0, -2.0])
    counter = tf.Variable(0, dtype=tf.int64)

    def step(factor):
        grads = gradient([w], factor)
        optimizer.apply_gradients(zip(grads, [w], strict=True), global_step=counter)

    step = MODES[mode](step)
    step(tf.constant(1.0))
    everything = [w, counter, *optimizer.variables()]
    before = bits(everything)
    step(tf.constant(np.inf))
    assert bits(everything) == before
    step(tf.constant(1.0))
    assert counter.numpy() == 2
    assert bits([w]) != before[:1]


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("name", SESSION)
def test_v1_update_is_left_out_whole_in_a_session(scope, name, resource, control_flow):
    if control_flow == "v1":
        v1.disable_control_flow_v2()
    try:
        _check_session(name, resource)
    finally:
        v1.enable_control_flow_v2()


def _check_session(name, resource):
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", initializer=[1.0, -2.0], use_resource=resource)
        factor = v1.placeholder(tf.float32, [])
        counter = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(w**2) * factor
        optimizer = SESSION[name]()
        train = optimizer.minimize(loss, global_step=counter, name="train")
        assert isinstance(train, tf.Operation)
        assert train.name == "train"
        assert graph.get_collection("train_op") == [train]
        theirs = v1.global_variables()
        (scaler,) = state.current().states
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {factor: 1.0})
            before = session.run(theirs)
            for bad in (np.inf, np.nan):
                session.run(train, {factor: bad})
                after = session.run(theirs)
                same = [np.array_equal(*p) for p in zip(before, after, strict=True)]
                assert all(same)
            assert np.isfinite(session.run(w)).all()
            session.run(train, {factor: 1.0})
            assert session.run(counter) == 2
            assert not np.array_equal(session.run(w), before[0])
            assert session.run(scaler.scale) == 2.0


def test_monitored_session_initialises_saves_and_restores(scope, tmp_path):
    for steps, scale in ((2, 16.0), (4, 32.0)):
        with tf.Graph().as_default():
            w = v1.get_variable("w", initializer=[1.0])
            counter = v1.train.get_or_create_global_step()
            train = v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(w**2), counter)
            hooks = [v1.train.StopAtStepHook(last_step=steps)]
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=hooks
            ) as session:
                while not session.should_stop():
                    session.run(train)
        saved = tf.train.load_checkpoint(str(tmp_path))
        assert saved.get_tensor("amp_loss_scale_0/scale") == scale


def test_towers_of_a_session_scale_apart_and_skip_together(scope):
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=[1.0])
        factors = v1.placeholder(tf.float32, [2])
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        towers = [
            optimizer.compute_gradients(tf.reduce_sum(w**2) * factors[i])
            for i in range(2)
        ]
        grads = [tf.add_n([g for g, _ in pairs]) for pairs in zip(*towers, strict=True)]
        train = optimizer.apply_gradients([(grads[0], w)])
        scales = [scaler.scale for scaler in state.current().states]
        session.run(v1.global_variables_initializer())
        session.run(train, {factors: [1.0, np.inf]})
        assert session.run(w) == 1.0
        assert session.run(scales) == [8.0, 4.0]
        session.run(train, {factors: [1.0, 1.0]})
        np.testing.assert_allclose(session.run(w), 0.6, rtol=1e-6)


@pytest.mark.parametrize("monitored", [False, True])
def test_a_session_checkpoint_without_scalers_restores(scope, tmp_path, monitored):
    def build():
        w = v1.get_variable("w", initializer=[1.0])
        counter = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(w**2)
        return w, v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, counter)

    scope(None)
    with tf.Graph().as_default(), v1.Session() as session:
        w, train = build()
        session.run(v1.global_variables_initializer())
        session.run(train)
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), 1)
        expected = session.run(w)
    scope(DynamicLossScale(initial=8.0))
    with tf.Graph().as_default():
        w, train = build()
        (scaler,) = state.current().states
        if monitored:
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), save_checkpoint_secs=None
            ) as session:
                found, scale = session.run([w, scaler.scale])
                session.run(train)
        else:
            with v1.Session() as session:
                path = v1.train.latest_checkpoint(str(tmp_path))
                v1.train.Saver().restore(session, path)
                found, scale = session.run([w, scaler.scale])
                session.run(train)
    assert found == expected
    assert scale == 8.0


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
def test_gradients_in_a_session_loop(scope, control_flow):
    if control_flow == "v1":
        v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=[1.0], use_resource=True)
            factors = tf.constant([1.0, np.inf, 2.0])

            def body(i, total):
                loss = tf.reduce_sum(w**2) * factors[i]
                return i + 1, total + v1.gradients(loss, [w])[0]

            done = tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros([1])))
            (scaler,) = state.current().states
            session.run(v1.global_variables_initializer())
            assert session.run(done[1]) == 6.0
            # Iterations run side by side: the scale may be any of theirs, but no
            # overflow is lost.
            assert session.run(scaler.overflow).tolist() == [1]
    finally:
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
@pytest.mark.parametrize("how", ["function", "map", "cond", "while"])
def test_a_gradient_on_its_way_to_a_session_update_may_be_changed(
    scope, how, control_flow
):
    """The run that overflows is left out, and not the next one, whatever is between."""

    def changed(gradient):
        if how == "function":
            return tf.function(lambda g: g * 0.5)(gradient)
        if how == "map":
            return tf.map_fn(lambda row: row * 0.5, gradient)
        if how == "cond":
            return tf.cond(
                tf.size(gradient) > 1, lambda: gradient * 0.5, lambda: gradient
            )
        large = lambda g: tf.norm(g) > 1e9  # noqa: E731
        return tf.while_loop(large, lambda g: (g * 0.5,), [gradient])[0]

    if control_flow == "v1":
        v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=np.ones([8, 8], np.float32))
            factor = v1.placeholder(tf.float32, [])
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            ((grad, _),) = optimizer.compute_gradients(tf.reduce_sum(w**2) * factor)
            train = optimizer.apply_gradients([(changed(grad), w)])
            session.run(v1.global_variables_initializer())
            moved = []
            for overflows in [0, 1, 0, 0, 1, 0, 1, 0]:
                before = session.run(w)
                session.run(train, {factor: np.inf if overflows else 1e-3})
                moved.append(int(np.any(session.run(w) != before)))
            assert moved == [1, 0, 1, 1, 0, 1, 0, 1]
    finally:
        v1.enable_control_flow_v2()


def test_optimizers_of_one_call_in_one_run_keep_each_others_flags(scope):
    """A session runs their updates at the same time."""
    scope(DynamicLossScale(initial=1.0, growth_interval=10**6))
    with tf.Graph().as_default(), v1.Session() as session:
        ws = [v1.get_variable(f"w{i}", initializer=np.ones(4, "f")) for i in range(24)]
        factor = v1.placeholder(tf.float32, [])
        grads = v1.gradients(sum(tf.reduce_sum(w**2) for w in ws) * factor, ws)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        train = [
            optimizer.apply_gradients([pair]) for pair in zip(grads, ws, strict=True)
        ]
        (scaler,) = state.current().scalers
        session.run(v1.global_variables_initializer())
        seen = set()
        for overflows in [0, 1] * 60:
            session.run(train, {factor: np.inf if overflows else 1e-3})
            flags = session.run([scaler.overflow, scaler.left_out])
            seen.add((overflows, *(tuple(each.tolist()) for each in flags)))
    none, every = (0,) * 24, (1,) * 24
    assert seen == {(0, none, none), (1, none, every)}


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
@pytest.mark.parametrize("how", ["while", "cond"])
def test_an_update_that_a_session_leaves_out_in_a_loop_is_no_reason_for_the_next(
    scope, how, control_flow
):
    """Its flag is down once it is left out, and stays down."""

    def step(i=0):
        pairs = optimizer.compute_gradients(tf.reduce_sum(w**2) * factor)
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.add(i, 1)

    if control_flow == "v1":
        v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=np.ones(4, "f"))
            factor = v1.placeholder(tf.float32, [])
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            if how == "while":
                train = tf.while_loop(lambda i: i < 1, step, [tf.constant(0)])
            else:
                train = tf.cond(factor > 0, step, lambda: tf.constant(0))
            (scaler,) = state.current().scalers
            given = v1.placeholder(tf.float32, [4])
            other = optimizer.apply_gradients([(given, w)])
            session.run(v1.global_variables_initializer())
            for _ in range(20):
                session.run(train, {factor: np.inf})
                assert not session.run(scaler.overflow).any()
                before = session.run(w)
                session.run(other, {given: np.ones(4, "f")})
                assert (session.run(w) != before).all()
    finally:
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
@pytest.mark.parametrize("how", ["map", "while", "cond"])
def test_a_loss_may_have_gradients_in_its_loops(scope, how, control_flow):
    """As in meta-learning: an inner step by weights, in a loop over tasks."""

    def task(factor):
        (inner,) = v1.gradients(tf.reduce_sum(w**2) * factor, [w])
        return tf.reduce_sum((w - 0.1 * inner) ** 2)

    if control_flow == "v1":
        v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=[1.0])
            factors = v1.placeholder(tf.float32, [2])
            if how == "map":
                loss = tf.reduce_sum(tf.map_fn(task, factors))
            elif how == "while":
                loss = tf.while_loop(
                    lambda i, _: i < 2,
                    lambda i, total: (i + 1, total + task(factors[i])),
                    (0, tf.zeros([])),
                )[1]
            else:
                one = tf.cond(factors[0] > 1e9, lambda: w[0], lambda: task(factors[0]))
                loss = one + task(factors[1])
            train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            session.run(v1.global_variables_initializer())
            session.run(train, {factors: [1.0, 1.0]})
            # Of each task (w - 0.2 w)^2, by w.
            np.testing.assert_allclose(session.run(w), 1 - 0.1 * 2 * 1.28, rtol=1e-6)
            before = session.run(w)
            session.run(train, {factors: [1.0, np.inf]})
            assert session.run(w) == before
    finally:
        v1.enable_control_flow_v2()


class Trainer(tf.Module):
    """A user's module whose training step is saved with it."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def train(self, x):
        with tf.GradientTape() as tape:
            loss = self.w * x
        self.w.assign_sub(0.125 * tape.gradient(loss, self.w))
        return loss

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def serve(self, x):
        return self.w * x


def test_a_training_step_can_be_saved(scope, tmp_path):
    trainer = Trainer()
    trainer.train(tf.constant(1.0))
    tf.saved_model.save(trainer, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.train(tf.constant(2.0)).numpy() == 1.75
    assert loaded.w.numpy() == 0.625


def test_an_inference_export_holds_no_scaler(scope, tmp_path):
    trainer = Trainer()
    trainer.train(tf.constant(1.0))
    export = tf.Module()
    export.w, export.serve = trainer.w, trainer.serve
    tf.saved_model.save(export, str(tmp_path), signatures=trainer.serve)
    names = tf.train.list_variables(str(tmp_path / "variables" / "variables"))
    assert not [name for name, _ in names if "amp" in name]


def test_gradient_and_optimizer_in_different_functions(scope):
    optimizer, w = keras.optimizers.SGD(0.1, momentum=0.9), tf.Variable([1.0])
    take = tf.function(lambda f: gradient([w], f), jit_compile=True)
    apply = tf.function(lambda g: optimizer.apply(g, [w]))

    def step(factor):
        grads, _ = tf.clip_by_global_norm(take(tf.constant(factor)), 1.0)
        apply(grads)

    step(np.inf)
    assert (w.numpy(), optimizer.iterations.numpy()) == (1.0, 0)
    step(1.0)
    assert w.numpy() < 1.0
    assert optimizer.iterations.numpy() == 1


def test_any_overflow_of_an_accumulation_counts(scope):
    optimizer, w = keras.optimizers.SGD(0.1), tf.Variable([1.0])
    take = tf.function(lambda f: gradient([w], f)[0])
    for factors, steps in (([1.0, np.inf, 1.0], 0), ([1.0, 1.0, 1.0], 1)):
        total = sum(take(tf.constant(f)) for f in factors)
        optimizer.apply([total], [w])
        assert optimizer.iterations.numpy() == steps
    assert scaler_of(w).skipped_steps.numpy() == 1


def test_every_optimizer_of_one_gradient_call_skips(scope):
    v, w = tf.Variable([1.0]), tf.Variable([1.0])
    first, second = keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.1)

    def step(factor):
        grads = gradient([v, w], tf.constant(factor))
        first.apply(grads[:1], [v])
        second.apply(grads[1:], [w])

    for factor, steps in ((1.0, 1), (np.inf, 1), (1.0, 2)):
        step(factor)
        assert first.iterations.numpy() == second.iterations.numpy() == steps


def test_other_variables_are_not_concerned(scope):
    v, w = tf.Variable([1.0]), tf.Variable([1.0])
    optimizer = keras.optimizers.SGD(0.1)
    gradient([v], tf.constant(np.inf))
    optimizer.apply(gradient([w], tf.constant(1.0)), [w])
    assert optimizer.iterations.numpy() == 1


def test_update_by_hand_sees_zeros(scope):
    w = tf.Variable([1.0, 2.0])

    @tf.function
    def step(factor):
        w.assign_sub(0.1 * gradient([w], factor)[0])

    step(tf.constant(np.nan))
    assert w.numpy().tolist() == [1.0, 2.0]
    step(tf.constant(1.0))
    np.testing.assert_allclose(w.numpy(), [0.8, 1.6], rtol=1e-6)


def test_constant_scale_skips_and_stays(scope):
    scope(ConstantLossScale(16.0))
    optimizer, w = keras.optimizers.SGD(0.1), tf.Variable([1.0])
    for factor in (np.inf, 1.0):
        optimizer.apply(gradient([w], tf.constant(factor)), [w])
    scaler = scaler_of(w)
    assert optimizer.iterations.numpy() == 1
    assert (scaler.scale.numpy(), scaler.skipped_steps.numpy()) == (16.0, 1)


@pytest.mark.parametrize("rule", [None, NoLossScale()])
def test_without_scaling_the_update_is_called_plainly(scope, rule):
    scope(rule)
    optimizer, w = keras.optimizers.SGD(0.1), tf.Variable([1.0])

    @tf.function
    def step():
        optimizer.apply(gradient([w], 1.0), [w])

    step()
    graph = step.get_concrete_function().graph.as_graph_def()
    assert not [n for n in graph.node if n.op == "If"]
    kept = [n for n in graph.node if "_amp_keep" in n.attr]
    assert bool(kept) == (rule is not None)


def test_the_update_is_marked_inside_its_branch(scope):
    optimizer, w = keras.optimizers.Adam(0.1), tf.Variable([1.0])

    @tf.function
    def step():
        optimizer.apply(gradient([w], 1.0), [w])

    library = step.get_concrete_function().graph.as_graph_def().library
    nodes = [n for f in library.function for n in f.node_def if "_amp_keep" in n.attr]
    assert {"Sqrt", "Mul", "AssignSubVariableOp"} <= {node.op for node in nodes}
    assert {node.attr["_amp_keep"].s for node in nodes} == {b"optimizer"}


def test_wrapping_optimizers_skip_once(scope):
    inner, w = keras.optimizers.SGD(0.1), tf.Variable([1.0])
    outer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
    outer.build([w])

    @tf.function
    def step(factor):
        outer.apply(gradient([w], outer.scale_loss(factor)), [w])

    for factor, steps in ((1.0, 1), (np.inf, 1), (1.0, 2)):
        step(tf.constant(factor))
        assert inner.iterations.numpy() == steps
    np.testing.assert_allclose(w.numpy(), 0.64, rtol=1e-6)


def test_synchronous_replicas_are_never_skipped(scope, monkeypatch):
    # The queue thread is cancelled when its session closes, and says so.
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=[1.0])
        factor = v1.placeholder(tf.float32, [])
        counter = v1.train.get_or_create_global_step()
        wrapped = v1.train.SyncReplicasOptimizer(
            v1.train.GradientDescentOptimizer(0.1),
            replicas_to_aggregate=1,
            total_num_replicas=1,
        )
        train = wrapped.minimize(tf.reduce_sum(w**2) * factor, global_step=counter)
        hook = wrapped.make_session_run_hook(is_chief=True)
        with v1.train.MonitoredTrainingSession(
            hooks=[hook], stop_grace_period_secs=1
        ) as session:
            for value in (1.0, np.inf, 1.0, 1.0, 1.0, 1.0):
                session.run(train, {factor: value})
            found, steps = session.run([w, counter])
        for thread in threading.enumerate():
            if thread.name.startswith("QueueRunner"):
                thread.join(timeout=5)
    # Tokens let a replica run ahead of the update, by a step that is then stale.
    assert steps >= 3
    assert 0 < found[0] < 0.8


class Counting:
    """In place of a scaler: counts how often its scale moves."""

    def __init__(self):
        self.moves = 0

    def move(self, finite):
        self.moves += 1
        return []


@pytest.mark.parametrize(
    ("moved", "moves"),
    [((True, True), 0), ((True, False), 1), ((False, True), 1), ((False, False), 1)],
)
def test_a_scale_moves_once_unless_it_has_in_every_replica(moved, moves):
    scaler = Counting()
    each = [[update.Concern(scaler, [], (), before)] for before in moved]
    replicas = update.Replicas(agree=tf.identity, gather=lambda own: each)
    everyone, _ = update._agreed(each[0], [tf.constant(False)], replicas)
    assert (scaler.moves, len(everyone)) == (moves, 1)


def test_what_replicas_agree_on_in_a_branch_is_not_counted_behind_it():
    with tf.Graph().as_default():
        call = provenance.Call(Counting(), tf.constant(True))
    concern = update.Concern(call.scaler, [], (call,))
    replicas = update.Replicas(agree=tf.identity)
    with tf.Graph().as_default():  # that of the branch
        update._agreed([concern], [tf.constant(False)], replicas)
        assert not call.counted
    with call.finite.graph.as_default():
        update._agreed([concern], [tf.constant(False)], replicas)
        assert call.counted


def test_a_failing_update_is_still_the_optimizers_error(scope):
    w = tf.Variable([1.0])
    gradient([w], tf.constant(1.0))
    with pytest.raises(ValueError, match="No gradients provided"):
        v1.train.AdamOptimizer().apply_gradients([(None, w)])
    with pytest.raises(ValueError, match="No variables provided"):
        v1.train.AdamOptimizer().apply_gradients([])
    assert keras.optimizers.SGD().apply([]) is None
    with pytest.raises(ValueError, match="must already be built"):
        keras.optimizers.SGD().apply([tf.constant(1.0)])


@pytest.mark.parametrize("jit", [False, True])
def test_fit_skips_and_goes_on(scope, jit):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=jit)
    x = np.ones([8, 2], np.float32)
    x[2:4] = np.inf
    before = model.get_weights()
    model.fit(x, np.ones([8, 1]), batch_size=2, shuffle=False, verbose=0)
    assert model.optimizer.iterations.numpy() == 3
    after = model.get_weights()
    assert all(np.isfinite(a).all() for a in after)
    assert not np.array_equal(before[0], after[0])
    scaler = scaler_of(model.trainable_variables[0].value)
    assert scaler.skipped_steps.numpy() == 1


def test_keras_loss_scaling_trains_in_16_bits_as_the_one_scaler() -> None:
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("f")

    def train(**fields: Any) -> tuple[list[float], float]:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(1)])
        inner = keras.optimizers.SGD(1e-2)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**15)
        model.compile(optimizer, "mse")
        with amp.mixed_precision_scope(dtype="float16", emulate=True, **fields):
            history = model.fit(x, 300 * x[:, :1], epochs=16, verbose=0)
        return history.history["loss"], float(optimizer.dynamic_scale)

    losses, keras_scale = train(assignment="all", strict=True)
    assert losses[-1] < 0.9 * losses[0]
    assert keras_scale < 2.0**15  # 300 x 2^15 is more than float16 holds
    without, _ = train(assignment="all", strict=True, loss_scale="none")
    assert without[-1] < 0.9 * without[0]
