"""The function adapter: twins run in place of originals, and nothing else changes."""

from __future__ import annotations

import dataclasses
import gc
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import thorough
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.rewrite import Begun
from amp.integration.functions import twins as twins_lib
from amp.integration.runtime import twin_making

pytestmark = pytest.mark.kernels

# Every candidate is converted, and a failure of ours is an error, not a fallback.
ALL = {"dtype": "bfloat16", "assignment": "all", "strict": True}
# bfloat16 keeps 8 significant bits: one rounding is off by 2**-8 of a value at most.
# The small networks here round each value through fewer than 2**3 nodes in a row.
BFLOAT16 = 2.0**-8 * 2**3


def low_nodes() -> int:
    return sum(report.nodes_low for report in amp.reports())


def close(got: tf.Tensor, want: tf.Tensor) -> None:
    """Agreement within the format's bound, relative to the largest value."""
    got, want = np.asarray(got), np.asarray(want)
    assert np.abs(got - want).max() <= BFLOAT16 * np.abs(want).max()


@pytest.fixture
def weights() -> tf.Variable:
    return tf.Variable(tf.random.normal([64, 64]) / 8.0)


def dense(x: tf.Tensor, weights: tf.Variable) -> tf.Tensor:
    return tf.nn.tanh(tf.matmul(x, weights))  # smooth: a kink would break the bound


@pytest.mark.parametrize("jit", [False, True])
def test_inference_runs_its_twin_and_keeps_its_interface(weights, jit):
    fn = tf.function(lambda x: dense(x, weights), jit_compile=jit)
    x = tf.random.normal([32, 64])
    want = fn(x)
    with amp.mixed_precision_scope(**ALL):
        got = fn(x)
    assert got.dtype == tf.float32
    assert low_nodes() >= 2
    close(got, want)
    np.testing.assert_array_equal(fn(x), want)  # off again, at the next call


def test_a_twin_is_made_once_per_function_and_policy(weights):
    fn = tf.function(lambda x: dense(x, weights))
    for _ in range(3):
        with amp.mixed_precision_scope(**ALL):
            fn(tf.ones([32, 64]))
            fn(tf.ones([32, 64]))
    assert len(amp.reports()) == 1
    with amp.mixed_precision_scope(**{**ALL, "dtype": "float16", "loss_scale": "none"}):
        fn(tf.ones([32, 64]))
    assert [r.dtype for r in amp.reports()] == ["bfloat16", "float16"]


def test_what_the_user_sees_is_the_float32_graph(weights):
    fn = tf.function(lambda x: dense(x, weights))
    concrete = fn.get_concrete_function(tf.TensorSpec([32, 64]))
    before = concrete.graph.as_graph_def().SerializeToString(deterministic=True)
    definition = concrete.function_def.SerializeToString(deterministic=True)
    with amp.mixed_precision_scope(**ALL):
        fn(tf.ones([32, 64]))
        after = concrete.graph.as_graph_def().SerializeToString(deterministic=True)
        assert after == before
        again = concrete.function_def.SerializeToString(deterministic=True)
        assert again == definition
    assert low_nodes() > 0


def step_outside(fn, weights, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(fn(x)))
    return loss, tape.gradient(loss, weights)


@pytest.mark.parametrize("jit", [False, True])
def test_tape_outside_the_function(weights, jit):
    fn = tf.function(lambda x: dense(x, weights), jit_compile=jit)
    x = tf.random.normal([32, 64])
    want = step_outside(fn, weights, x)
    with amp.mixed_precision_scope(**ALL):
        got = step_outside(fn, weights, x)
    assert len(amp.reports()) == 2  # forward and backward
    assert all(report.nodes_low for report in amp.reports())
    close(got[0], want[0])
    close(got[1], want[1])


@pytest.mark.parametrize("jit", [False, True])
def test_tape_inside_the_function_and_nested_functions(weights, jit):
    inner = tf.function(lambda x: dense(x, weights), jit_compile=jit)
    fn = tf.function(lambda x: step_outside(inner, weights, x))
    x = tf.random.normal([32, 64])
    want = fn(x)
    with amp.mixed_precision_scope(**ALL):
        got = fn(x)
    assert len(amp.reports()) == 1
    assert low_nodes() >= 3
    close(got[0], want[0])
    close(got[1], want[1])


def test_loops_and_branches(weights):
    @tf.function
    def fn(x, flag):
        with tf.GradientTape() as tape:
            y = x
            for _ in tf.range(3):
                y = dense(y, weights)
            y = tf.cond(flag, lambda: tf.matmul(y, weights), lambda: tf.identity(y))
            z = tf.map_fn(lambda row: tf.linalg.matvec(weights, row), y)
            loss = tf.reduce_mean(tf.square(z))
        return loss, tape.gradient(loss, weights)

    x = tf.random.normal([32, 64])
    for flag in (tf.constant(True), tf.constant(False)):
        want = fn(x, flag)
        with amp.mixed_precision_scope(**ALL):
            got = fn(x, flag)
        close(got[0], want[0])
        close(got[1], want[1])
    (report,) = amp.reports()
    low_in = {
        d.node.partition("::")[0] for d in report.decisions if d.dtype == "bfloat16"
    }
    assert len(low_in) >= 4  # loop bodies and branches, forward and backward


@pytest.mark.parametrize("layer", thorough.but(("LSTM",), ("LSTM", "GRU", "SimpleRNN")))
@pytest.mark.parametrize("jit", [False, True])
def test_keras_recurrent_layers(layer, jit):
    model = keras.Sequential([getattr(keras.layers, layer)(16), keras.layers.Dense(4)])
    model.compile("sgd", "mse", jit_compile=jit)
    x, y = np.random.rand(64, 6, 8).astype("f"), np.random.rand(64, 4).astype("f")
    with amp.mixed_precision_scope(**ALL):
        history = model.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert low_nodes() > 0
    assert history[-1] < history[0]


@pytest.mark.parametrize("jit", thorough.but(("auto",), (True, False, "auto")))
@pytest.mark.parametrize("dtype", thorough.but(("float16",), ("bfloat16", "float16")))
def test_keras_fit_evaluate_predict(jit, dtype):
    x = np.random.rand(128, 8, 8, 3).astype("f")
    y = np.random.randint(0, 4, 128)

    def train():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.layers.Conv2D(8, 3),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(4),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], jit_compile=jit)
        history = model.fit(x, y, epochs=2, verbose=0, batch_size=32).history
        return (
            history["loss"],
            model.evaluate(x, y, verbose=0)[0],
            model.predict(x, verbose=0),
        )

    want = train()
    with amp.mixed_precision_scope(**{**ALL, "dtype": dtype}):
        got = train()
    assert low_nodes() > 0
    assert got[2].dtype == np.float32
    np.testing.assert_allclose(got[0], want[0], rtol=8 * BFLOAT16)  # 8 updates


def test_recompute_grad_and_custom_gradient(weights):
    @tf.custom_gradient
    def scaled(x):
        return x * 2.0, lambda g: g * 2.0

    @tf.function
    def fn(x):
        with tf.GradientTape() as tape:
            h = tf.recompute_grad(lambda v: dense(v, weights))(x)
            loss = tf.reduce_mean(tf.square(tf.matmul(scaled(h), weights)))
        return loss, tape.gradient(loss, weights)

    x = tf.random.normal([32, 64])
    want = fn(x)
    with amp.mixed_precision_scope(**ALL):
        got = fn(x)
    assert low_nodes() > 0
    close(got[0], want[0])
    close(got[1], want[1])


def test_a_loaded_saved_model_runs_its_twin(weights, tmp_path):
    module = tf.Module()
    module.weights = weights
    module.serve = tf.function(
        lambda x: dense(x, weights), input_signature=[tf.TensorSpec([None, 64])]
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    x = tf.random.normal([32, 64])
    want = loaded.serve(x)
    with amp.mixed_precision_scope(**ALL):
        close(loaded.serve(x), want)
        loaded.signatures["serving_default"](x)
    assert low_nodes() >= 4


def test_export_under_a_scope_holds_the_original(tmp_path):
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(8)])
    with amp.mixed_precision_scope(**ALL):
        model.predict(np.ones([4, 8], "f"), verbose=0)
        model.export(str(tmp_path / "export"), verbose=False)
        model.save(tmp_path / "model.keras")
    assert low_nodes() > 0
    text = (tmp_path / "export" / "saved_model.pb").read_bytes()
    assert b"amp_" not in text
    assert b"amp" not in (tmp_path / "model.keras").read_bytes().lower().replace(
        b"sample", b""
    )


def test_a_scope_inside_a_traced_function_covers_its_whole_graph(weights):
    @tf.function
    def fn(x):
        y = tf.matmul(x, weights)
        with amp.mixed_precision_scope(**ALL):
            return tf.matmul(y, weights)

    fn(tf.ones([32, 64]))
    (report,) = amp.reports()
    assert [d.op for d in report.decisions if d.dtype == "bfloat16"].count(
        "MatMul"
    ) == 2


def test_keep_float32_in_graphs_and_around_calls(weights):
    @tf.function
    def fn(x):
        with amp.keep_float32():
            y = tf.matmul(x, weights)
        return tf.matmul(y, weights)

    with amp.mixed_precision_scope(**ALL):
        with amp.keep_float32():
            fn(tf.ones([32, 64]))
        assert not amp.reports()
        fn(tf.ones([32, 64]))
    (report,) = amp.reports()
    rules = [(d.dtype, d.rule) for d in report.decisions if d.op == "MatMul"]
    assert sorted(rules) == [("bfloat16", "compute"), ("float32", "keep")]


def test_scopes_nest_and_are_per_thread(weights):
    fn = tf.function(lambda x: dense(x, weights))
    x = tf.random.normal([32, 64])
    seen = []
    with amp.mixed_precision_scope(**ALL):
        with amp.mixed_precision_scope(**{**ALL, "deny": ("MatMul",)}):
            fn(x)
        thread = threading.Thread(target=lambda: seen.append(fn(x)))
        thread.start()
        thread.join()
        assert [report.nodes_low for report in amp.reports()] == [0]
        fn(x)
    assert [bool(report.nodes_low) for report in amp.reports()] == [False, True]
    np.testing.assert_array_equal(seen[0], fn(x))


def test_enable_reaches_every_thread_until_disable(weights):
    fn = tf.function(lambda x: dense(x, weights))
    amp.enable(**ALL)
    thread = threading.Thread(target=lambda: fn(tf.ones([32, 64])))
    thread.start()
    thread.join()
    assert low_nodes() > 0
    amp.disable()
    other = tf.function(lambda x: dense(x, weights))
    other(tf.ones([32, 64]))
    assert len(amp.reports()) == 1


def test_a_twin_goes_when_its_original_goes(weights):
    with amp.mixed_precision_scope(**ALL):
        fn = tf.function(lambda x: dense(x, weights))
        fn(tf.ones([32, 64]))
        name = fn.get_concrete_function(tf.ones([32, 64])).name
        twins = [n for each in twins_lib.every() for n in each.made_for(name)]
        context = context_lib.context()
        assert twins
        assert all(context.has_function(twin) for twin in twins)
        del fn
        gc.collect()
    assert not any(context.has_function(twin) for twin in twins)


def test_a_failure_inside_a_rewrite_leaves_the_original_and_warns_once(
    weights, monkeypatch
):
    def broken(*args, **kwargs):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Begun, "prepared", broken)
    fn = tf.function(lambda x: dense(x, weights))
    x = tf.random.normal([32, 64])
    want = fn(x)
    policy = {**ALL, "strict": False}
    with amp.mixed_precision_scope(**policy):
        with pytest.warns(RuntimeWarning, match="a fault of ours"):
            got = fn(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fn(x)
    np.testing.assert_array_equal(got, want)
    with amp.mixed_precision_scope(**ALL), pytest.raises(RuntimeError, match="of ours"):
        tf.function(lambda x: dense(x, weights))(x)


def test_a_twin_that_tensorflow_cannot_run_gives_way_to_the_original(
    weights, monkeypatch
):
    fn = tf.function(lambda x: dense(x, weights))
    x = tf.random.normal([32, 64])
    want = fn(x)
    registered = twin_making.registered

    def misnamed(*args):
        made, rewrite = registered(*args)
        return dataclasses.replace(made, name=b"no_such_function"), rewrite

    monkeypatch.setattr(twin_making, "registered", misnamed)
    with amp.mixed_precision_scope(**{**ALL, "strict": False, "min_gain": 0.01}):
        with pytest.warns(RuntimeWarning, match="runs in float32, as it was"):
            got = fn(x)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(fn(x), want)


def test_the_users_own_error_comes_from_one_run(weights):
    runs = tf.Variable(0)

    @tf.function
    def fn(x, limit):
        runs.assign_add(1)
        y = tf.matmul(x, weights)
        tf.debugging.assert_less(tf.reduce_max(y), limit, message="not below")
        return y

    with amp.mixed_precision_scope(**{**ALL, "strict": False}):
        for count in (1, 2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="not below"):
                fn(tf.ones([4, 64]), -1e9)
            assert int(runs) == count
    assert low_nodes() > 0


def test_twins_of_two_policies_share_no_function(weights):
    @tf.function
    def fn(x):
        return tf.while_loop(
            lambda i, x: i < 2, lambda i, x: (i + 1, dense(x, weights)), [0, x]
        )

    def types(dtype):
        policy = amp.Policy(**{**ALL, "dtype": dtype, "loss_scale": "none"})
        graph = amp.twin(fn, tf.TensorSpec([4, 64]), policy=policy).graph
        library = graph.as_graph_def().library.function
        return {
            n.attr["T"].type for f in library for n in f.node_def if n.op == "MatMul"
        }

    assert types("float16") == {tf.float16.as_datatype_enum}
    assert types("bfloat16") == {tf.bfloat16.as_datatype_enum}


def test_xla_computes_products_in_sixteen_bits(weights):
    fn = tf.function(lambda x: dense(x, weights))
    twin = amp.twin(fn, tf.TensorSpec([32, 64]), policy=amp.Policy(**ALL))
    compiled = tf.function(lambda x: twin(x), jit_compile=True)
    hlo = compiled.experimental_get_compiler_ir(tf.ones([32, 64]))(stage="hlo")
    assert any("dot(" in line and "bf16" in line for line in hlo.splitlines())


def test_a_twin_is_a_concrete_function_that_can_be_exported(weights, tmp_path):
    fn = tf.function(lambda x: dense(x, weights))
    twin = amp.twin(fn, tf.TensorSpec([None, 64]), policy=amp.Policy(**ALL))
    x = tf.random.normal([32, 64])
    close(twin(x), fn(x))
    module = tf.Module()
    module.weights, module.serve = weights, twin
    tf.saved_model.save(module, str(tmp_path))
    np.testing.assert_array_equal(tf.saved_model.load(str(tmp_path)).serve(x), twin(x))


def test_dataset_functions_are_never_rewritten(weights):
    value = weights.numpy()

    @tf.function
    def total():
        data = tf.data.Dataset.range(4).map(
            lambda i: tf.matmul(tf.fill([2, 64], tf.cast(i, tf.float32)), value)
        )
        return data.reduce(tf.zeros([2, 64]), lambda a, b: a + b)

    want = total()
    with amp.mixed_precision_scope(**ALL):
        np.testing.assert_array_equal(total(), want)
    assert low_nodes() == 0


def test_an_error_shows_the_users_source_line(weights):
    @tf.function
    def fn(x):
        y = tf.matmul(x, weights)
        return tf.debugging.check_numerics(y, "found by the user")  # this very line

    bad = tf.fill([4, 64], np.inf)
    with amp.mixed_precision_scope(**ALL):
        fn(tf.ones([4, 64]))
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            fn(bad)
    assert "__amp" not in str(error.value)
    assert __file__ in str(error.value)


@pytest.mark.parametrize("branch", [True, False])
def test_the_error_of_a_keras_job_shows_the_users_source_line(branch):
    class Layer(keras.layers.Layer):
        def call(self, x):
            if branch:
                tf.debugging.assert_less(x, 9.0, message="found by the user")
                return x
            return tf.debugging.check_numerics(x, "found by the user")

    inputs = keras.Input([64])
    hidden = Layer()(keras.layers.Dense(64)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4)(hidden))
    model.compile("sgd", "mse")
    good, y = np.zeros([32, 64], np.float32), np.zeros([32, 4], np.float32)
    policy = amp.Policy(**ALL, emulate=True, check=True)
    with amp.mixed_precision_scope(policy, dtype="float16"):
        for x in (np.full_like(good, np.inf), good, np.full_like(good, np.nan)):
            if x is good:
                model.fit(x, y, epochs=3, verbose=0)  # the next error is of a plan's
                continue
            with pytest.raises(tf.errors.InvalidArgumentError, match="found") as error:
                model.fit(x, y, verbose=0)
            assert "__amp" not in str(error.value)
            assert f'File "{__file__}", line' in str(error.value)
            assert "stack traces unavailable" not in str(error.value)
    assert low_nodes() > 0


def test_a_scope_may_be_entered_again_and_decorates(weights):
    scope = amp.mixed_precision_scope(**ALL)
    fn = tf.function(lambda x: dense(x, weights))
    for _ in range(2):
        with scope as policy:
            assert policy.dtype == "bfloat16"
            fn(tf.ones([4, 64]))
    scope(fn)(tf.ones([4, 64]))
    assert len(amp.reports()) == 1
    with pytest.raises(amp.AmpError, match="float8"):
        amp.mixed_precision_scope(dtype="float8")


def test_the_squared_errors_of_a_loss_are_not_held_in_float16(weights):
    @tf.function
    def loss(x, target):
        with tf.GradientTape() as tape:
            error = tf.matmul(x, weights) - target
            value = tf.reduce_mean(tf.reduce_mean(tf.square(error), axis=-1))
        return value, tape.gradient(value, weights)

    x, target = tf.ones([4, 64]), tf.fill([4, 64], 1000.0)  # 1000**2 > 65504
    want = loss(x, target)
    scope = {**ALL, "dtype": "float16", "emulate": True, "loss_scale": 1.0}
    with amp.mixed_precision_scope(**scope):
        got = loss(x, target)
    assert np.isfinite(got[0])
    close(got[0], want[0])
    close(got[1], want[1])


def test_replica_threads_run_under_the_scope_of_their_caller(weights):
    cpus = tf.config.list_logical_devices("CPU")
    strategy = tf.distribute.MirroredStrategy([cpu.name for cpu in cpus])
    with strategy.scope():
        replicated = tf.Variable(tf.ones([8, 8]))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, replicated)))
        return tape.gradient(loss, replicated)

    fn = tf.function(lambda x: strategy.run(step, args=(x,)))
    with amp.mixed_precision_scope(**ALL):
        fn(tf.ones([4, 8]))
    (report,) = amp.reports()
    assert "unscale" in {d.rule for d in report.decisions}


def test_threads_that_race_to_a_first_call_share_one_twin(weights):
    fn = tf.function(lambda x: dense(x, weights))
    concrete = fn.get_concrete_function(tf.ones([4, 64]))
    amp.enable(**ALL)
    start = threading.Barrier(4)

    def call():
        start.wait()
        concrete(tf.ones([4, 64]))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(amp.reports()) == 1


def test_weights_passed_as_arguments_are_updated_in_float32():
    @tf.function
    def step(w, x):
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
        return w - 0.1 * tape.gradient(loss, w)

    with amp.mixed_precision_scope(**ALL):
        step(tf.ones([8, 8]), tf.ones([4, 8]))
    (report,) = amp.reports()
    update = [
        d
        for d in report.decisions
        if d.op in ("Sub", "Mul") and "gradient" not in d.node
    ]
    assert {d.dtype for d in update} == {"float32"}
    assert report.nodes_low > 0


def test_a_scope_inside_a_traced_function_covers_its_gradient(weights):
    @tf.function
    def fn(x):
        with amp.mixed_precision_scope(**ALL):
            return tf.reduce_sum(tf.square(tf.matmul(x, weights)))

    with tf.GradientTape() as tape:
        loss = fn(tf.ones([4, 64]))
    tape.gradient(loss, weights)
    assert [bool(report.nodes_low) for report in amp.reports()] == [True, True]


def test_keep_float32_holds_for_a_function_that_enters_a_scope_itself() -> None:
    @tf.function
    def marked(x: tf.Tensor) -> tf.Tensor:
        with amp.mixed_precision_scope(
            dtype="bfloat16", assignment="all", strict=True, trial=False
        ):
            return tf.matmul(x, x)

    x = tf.fill([4, 4], 1 / 3)
    want = tf.matmul(x, x)
    with amp.keep_float32():
        np.testing.assert_array_equal(marked(x), want)
    assert np.abs(marked(x) - want).max() > 0
    with amp.keep_float32():
        np.testing.assert_array_equal(marked(x), want)
        with amp.mixed_precision_scope(dtype="bfloat16", assignment="all", trial=False):
            assert np.abs(marked(x) - want).max() > 0


@pytest.mark.parametrize("fields", [ALL, {"dtype": "bfloat16", "strict": True}])
@pytest.mark.parametrize("trains", [False, True])
def test_what_attributes_delimit_for_xla_runs_as_it_is(weights, trains, fields):
    """TensorFlow refuses a graph in which a cast stands between these nodes."""

    def loss(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(dense(dense(x, w), w)))

    def gradient(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return tf.gradients(loss(x, w), w)[0]

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        found = gradient if trains else loss
        (made,) = tf.xla.experimental.compile(found, [x, weights.read_value()])
        if trains:
            weights.assign_sub(made)
        return made

    x, before = tf.random.normal([32, 64]), weights.numpy()
    want = [step(x) for _ in range(3)]
    weights.assign(before)
    with amp.mixed_precision_scope(**fields):
        got = [step(x) for _ in range(3)]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
