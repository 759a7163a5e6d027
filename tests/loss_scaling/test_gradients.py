"""Scaled gradient calls: the values are those without the plugin, bar underflow."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import amp
from amp.errors import PolicyError
from amp.graph_rewrite.graph import ir
from amp.integration import active
from amp.integration.distributed import replicas
from amp.integration.install import install
from amp.integration.training import markers
from amp.loss_scaling import (
    ConstantLossScale,
    DynamicLossScale,
    NoLossScale,
    current,
    state,
)

pytestmark = pytest.mark.kernels

SCALE = 2.0**17
# One multiplication by the scale and one by its inverse are exact for a power of two;
# what is left is the order of float32 sums, which XLA and Eigen may choose differently.
RTOL = 2e-6


@pytest.fixture(autouse=True)
def _installed():
    install()


@pytest.fixture
def scope(monkeypatch):
    def enter(rule):
        monkeypatch.setattr(active, "active_loss_scale", lambda: rule)

    enter(ConstantLossScale(SCALE))
    return enter


def same_as_without(scope, take, rtol=RTOL, atol=0.0):
    """Asserts that `take()` gives the same inside a scope as outside; returns it."""
    scope(None)
    expected = tf.nest.map_structure(dense, take())
    for rule in (ConstantLossScale(SCALE), DynamicLossScale(), NoLossScale()):
        scope(rule)
        found = tf.nest.map_structure(dense, take())
        tf.nest.assert_same_structure(expected, found)
        pairs = zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True)
        for want, got in pairs:
            if want is not None:
                np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    return expected


def dense(value):
    return None if value is None else tf.convert_to_tensor(value).numpy()


def half_model(w, x):
    product = tf.matmul(tf.cast(x, tf.float16), tf.cast(w, tf.float16))
    return tf.reduce_sum(tf.cast(product, tf.float32)) * 1e-8


def small_gradient(w, x):
    with tf.GradientTape() as tape:
        loss = half_model(w, x)
    return tape.gradient(loss, w)


def marked_nodes(graph, name):
    return [n for n in graph.as_graph_def().node if name in n.attr and n.attr[name].b]


@pytest.mark.parametrize("mode", ["eager", "function", "xla"])
def test_tape_brings_back_what_float16_loses(scope, mode):
    w, x = tf.Variable(tf.ones([3, 2])), tf.ones([1, 3])
    take = lambda: small_gradient(w, x)  # noqa: E731
    if mode != "eager":
        take = tf.function(take, jit_compile=mode == "xla")
    np.testing.assert_allclose(take().numpy(), 1e-8, rtol=1e-3)
    scope(None)
    assert not small_gradient(w, x).numpy().any()


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_tf_gradients_bring_back_what_float16_loses(scope, gate, version):
    w, x = tf.Variable(tf.ones([3, 2])), tf.ones([1, 3])
    function = tf.gradients if version == 2 else tf.compat.v1.gradients

    @tf.function
    def take():
        return function(half_model(w, x), [w], gate_gradients=gate)[0]

    np.testing.assert_allclose(take().numpy(), 1e-8, rtol=1e-3)
    graph = take.get_concrete_function().graph
    assert [n.op for n in marked_nodes(graph, "_amp_unscale")] == ["MulNoNan"]
    assert [n.op for n in marked_nodes(graph, "_amp_seed")] == ["Mul"]


def test_seed_and_unscale_are_marked_in_a_session_graph(scope):
    with tf.Graph().as_default() as graph:
        w = tf.compat.v1.get_variable("w", initializer=tf.ones([3, 2]))
        grads = tf.compat.v1.gradients(
            half_model(w, tf.ones([1, 3])), [w], colocate_gradients_with_ops=True
        )
        assert len(marked_nodes(graph, "_amp_unscale")) == 1
        assert len(marked_nodes(graph, "_amp_seed")) == 1
        names = {v.name for v in tf.compat.v1.global_variables()}
        assert names == {"w:0"}
        assert not {v.name for v in tf.compat.v1.trainable_variables()} - {"w:0"}
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            np.testing.assert_allclose(session.run(grads[0]), 1e-8, rtol=1e-3)
        tf.compat.v1.train.export_meta_graph(graph=graph)


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_programs_own_makers_of_variables_do_not_see_a_scalers(scope, eagerly):
    seen = []

    def noted(make, **options):
        seen.append(options["name"])
        return make(**options)

    graph = contextlib.nullcontext() if eagerly else tf.Graph().as_default()
    with graph, tf.variable_creator_scope(noted):
        w = tf.compat.v1.Variable(tf.ones([3, 2]), name="w", use_resource=True)
        with tf.GradientTape() as tape:
            loss = half_model(w, tf.ones([1, 3]))
        tape.gradient(loss, w)
    assert seen == ["w"]


def test_no_loss_scale_only_marks(scope):
    scope(NoLossScale())
    w = tf.Variable(2.0)

    @tf.function
    def take():
        with tf.GradientTape() as tape:
            loss = w * w
        return tape.gradient(loss, w)

    before = len(current().states)
    assert take().numpy() == 4.0
    graph = take.get_concrete_function().graph
    assert [n.op for n in marked_nodes(graph, "_amp_unscale")] == ["Identity"]
    assert not marked_nodes(graph, "_amp_seed")
    assert len(current().states) == before


def test_no_scope_changes_no_node(scope):
    scope(None)
    w = tf.Variable(2.0)

    @tf.function
    def take():
        with tf.GradientTape() as tape:
            loss = w * w
        return tape.gradient(loss, w)

    ops = [n.op for n in take.get_concrete_function().graph.as_graph_def().node]
    assert not {"MulNoNan", "IsFinite"} & set(ops)


@pytest.mark.parametrize("target", [tf.float16, tf.int32])
def test_other_targets_are_left_alone(scope, target):
    w = tf.Variable(2.0)

    @tf.function
    def take():
        with tf.GradientTape() as tape:
            loss = tf.cast(w * w, target)
        return tape.gradient(loss, w)

    graph = take.get_concrete_function().graph
    assert not marked_nodes(graph, "_amp_unscale")


def test_inputs_and_untrainable_variables_are_left_alone(scope):
    frozen = tf.Variable(2.0, trainable=False)

    @tf.function
    def take(x):
        with tf.GradientTape() as tape:
            tape.watch([x, frozen])
            loss = x * frozen
        return tape.gradient(loss, [x, frozen])

    graph = take.get_concrete_function(tf.constant(1.0)).graph
    assert not marked_nodes(graph, "_amp_unscale")


def test_gradients_by_arguments_alone_are_marked(scope):
    """The arguments may be weights, which an update is to read in float32."""

    @tf.function
    def take(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = x * x
        return tape.gradient(loss, x)

    graph = take.get_concrete_function(tf.constant(1.0)).graph
    assert [n.op for n in marked_nodes(graph, "_amp_unscale")] == ["Identity"]


@pytest.mark.parametrize("how", ["handle", "read", "reference", "resource"])
def test_variables_behind_tensors_are_found(scope, how):
    with tf.Graph().as_default() as graph:
        w = tf.compat.v1.get_variable(
            "w", initializer=2.0, use_resource=how != "reference"
        )
        value = w.read_value() if how == "read" else None
        loss = (w if value is None else value) ** 2
        x = {"handle": lambda: w.handle, "read": lambda: value}.get(
            how, lambda: w if how == "resource" else w._ref()
        )()
        (grad,) = tf.compat.v1.gradients(loss, [x])
        assert len(marked_nodes(graph, "_amp_unscale")) == 1
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(grad) == 4.0


def test_captured_handle_is_found(scope):
    w = tf.Variable(3.0)

    @tf.function
    def take():
        return tf.gradients(w * w, [w.handle])[0]

    assert take().numpy() == 6.0
    graph = take.get_concrete_function().graph
    assert len(marked_nodes(graph, "_amp_unscale")) == 1


def test_user_seeds_and_unconnected(scope):
    w, other = tf.Variable([1.0, 2.0]), tf.Variable([3.0])
    seed = tf.constant([0.5, 0.25])

    def take():
        with tf.GradientTape(persistent=True) as tape:
            loss = w * w
            extra = 3.0 * w
        none = tape.gradient(loss, [w, other], output_gradients=seed)
        zero = tape.gradient(loss, {"w": w, "o": other}, unconnected_gradients="zero")
        mixed = tape.gradient([loss, extra], w, output_gradients=[seed, 2 * seed])
        twice = tape.gradient([loss, loss], [w, w])
        return none, zero, mixed, twice

    same_as_without(scope, take)
    same_as_without(scope, tf_function_of(take))


def test_tf_gradients_options(scope):
    w = tf.Variable([1.0, 2.0])
    seed = tf.constant([0.5, 0.25])

    def take():
        y = w * w
        z = y * w
        return (
            tf.gradients(z, [w, y], grad_ys=[seed]),
            tf.gradients([y, z], w, stop_gradients=[y]),
            tf.gradients(y, [w, z], unconnected_gradients="zero"),
            tf.compat.v1.gradients(
                z, w, grad_ys=seed, colocate_gradients_with_ops=True
            ),
        )

    same_as_without(scope, tf_function_of(take))


@pytest.mark.parametrize(("targets", "seeds"), [(1, [None, None]), (2, [1.0])])
def test_a_wrong_number_of_seeds_is_still_tensorflows_error(scope, targets, seeds):
    w = tf.Variable(1.0)

    @tf.function
    def take():
        return tf.gradients([w * w] * targets, [w], grad_ys=seeds)

    with pytest.raises(ValueError, match=f"{len(seeds)} grad_ys for {targets} ys"):
        take()


def test_none_target_and_used_tape_are_still_tensorflows_errors(scope):
    w = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = w * w
    with pytest.raises(TypeError, match="target"):
        tape.gradient(None, w)
    tape.gradient(loss, w)
    with pytest.raises(RuntimeError, match="non-persistent"):
        tape.gradient(loss, w)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.bfloat16])
def test_other_variables_keep_their_dtype(scope, dtype):
    w = tf.Variable(tf.constant([1.5, 2.0], dtype))

    def take():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(w * w, tf.float32) * 2.0**-6)
        return tf.cast(tape.gradient(loss, w), tf.float64)

    same_as_without(scope, take)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.cast(w * w, tf.float32) * 2.0**-6)
    assert tape.gradient(loss, w).dtype == dtype


def test_float64_gradient_keeps_float64_precision(scope):
    w = tf.Variable(tf.constant([1.0, 2.0], tf.float64))
    scope(ConstantLossScale(2.0**10))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w / 3.0)
    np.testing.assert_allclose(tape.gradient(loss, w).numpy(), 1 / 3, rtol=1e-15)


def test_complex_and_integer_sources(scope):
    c = tf.Variable(tf.complex(1.0, 2.0))
    n = tf.Variable(3)
    w = tf.Variable(2.0)

    def take():
        with tf.GradientTape() as tape:
            loss = tf.abs(c) * w * tf.cast(n, tf.float32)
        grads = tape.gradient(loss, [c, w])
        return tf.math.real(grads[0]), tf.math.imag(grads[0]), grads[1]

    same_as_without(scope, take)


@pytest.mark.parametrize("jit", [None, False, True])
def test_indexed_slices_keep_their_structure(scope, jit):
    table = tf.Variable(tf.ones([5, 2]))

    def take():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1, 3, 1]) ** 2)
        grad = tape.gradient(loss, table)
        assert isinstance(grad, tf.IndexedSlices)
        return grad.values, grad.indices

    run = take if jit is None else tf.function(take, jit_compile=jit)
    values, indices = run()
    np.testing.assert_allclose(values.numpy(), 2.0)
    assert indices.numpy().tolist() == [1, 3, 1]
    if jit is False:
        assert len(marked_nodes(run.get_concrete_function().graph, "_amp_unscale")) == 1


def test_duplicate_rows_overflow_together(scope):
    scope(ConstantLossScale(1.0))
    table = tf.Variable(tf.ones([5, 1]))

    def take(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows) * 3e38)
        return tape.gradient(loss, table).values.numpy()

    np.testing.assert_allclose(take([1, 2]), 3e38, rtol=1e-6)
    assert not take([1, 1]).any()


def test_constant_scale_of_one(scope):
    scope(ConstantLossScale(1.0))
    w = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = w * w
    assert tape.gradient(loss, w).numpy() == 6.0


def test_ragged_sources_keep_their_structure(scope):
    w = tf.Variable(2.0)
    x = tf.ragged.constant([[1.0, 2.0], [3.0]])

    def take():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum((x * x * w).flat_values)
        ragged, plain = tape.gradient(loss, [x, w])
        assert isinstance(ragged, tf.RaggedTensor)
        return ragged.flat_values, plain

    same_as_without(scope, take)


@pytest.mark.parametrize("jit", [None, False, True])
def test_overflow_becomes_exact_zeros(scope, jit):
    w, v = tf.Variable([1.0, 2.0]), tf.Variable(1.0)

    def take(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * factor + v
        return tape.gradient(loss, [w, v])

    run = take if jit is None else tf.function(take, jit_compile=jit)
    for factor in (np.inf, -np.inf, np.nan):
        grads = run(tf.constant(factor))
        assert [g.numpy().tolist() for g in grads] == [[0.0, 0.0], 0.0]
    assert [g.numpy().tolist() for g in run(tf.constant(2.0))] == [[2.0, 2.0], 1.0]


def test_a_gradient_of_what_an_overflow_has_made_zeros_is_zeros(scope):
    """It would be that of weights that an inner step has not changed."""
    w, v = tf.Variable(2.0), tf.Variable(3.0)

    @tf.function
    def take(factor):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = w * w * factor
            loss = (w - tf.stop_gradient(inner.gradient(loss, w))) * v
        return outer.gradient(loss, [w, v])

    assert [float(each) for each in take(tf.constant(np.inf))] == [0.0, 0.0]
    assert [float(each) for each in take(tf.constant(1.0))] == [3.0, -2.0]


def tf_function_of(take):
    """Returns a caller that traces `take` anew each time, as a new scope would."""
    return lambda: tf.function(take)()


def test_gradient_penalty(scope):
    w = tf.Variable([[0.5, -1.0], [2.0, 0.25]])
    x = tf.constant([[1.0, 2.0]])

    def take():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(tf.tanh(x @ w))
            penalty = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(penalty, w)

    same_as_without(scope, take, rtol=1e-5)
    same_as_without(scope, tf_function_of(take), rtol=1e-5)


def test_second_order_by_variables(scope):
    w = tf.Variable([0.5, -1.0])

    def tape():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(w**3)
            norm = tf.reduce_sum(inner.gradient(loss, w) ** 2)
        return outer.gradient(norm, w)

    def symbolic():
        norm = tf.reduce_sum(tf.gradients(tf.reduce_sum(w**3), w)[0] ** 2)
        value = w.read_value()
        return tf.gradients(norm, w)[0], tf.hessians(tf.reduce_sum(value**3), value)[0]

    # The inner gradient's scale makes the outer one a product of two rounded values.
    same_as_without(scope, tape, rtol=1e-5)
    same_as_without(scope, tf_function_of(tape), rtol=1e-5)
    same_as_without(scope, tf_function_of(symbolic), rtol=1e-5)


def test_forward_over_reverse(scope):
    w = tf.Variable([0.5, -1.0])

    def take():
        with tf.autodiff.ForwardAccumulator(w, tf.constant([1.0, 2.0])) as forward:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w**3)
            grad = tape.gradient(loss, w)
        return grad, forward.jvp(grad)

    same_as_without(scope, take, rtol=1e-5)
    same_as_without(scope, tf_function_of(take), rtol=1e-5)


@pytest.mark.parametrize("pfor", [True, False])
def test_jacobians(scope, pfor):
    w = tf.Variable([[0.5, -1.0], [2.0, 0.25]])
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])

    def take():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tf.tanh(x @ w)
        full = tape.jacobian(y, w, experimental_use_pfor=pfor)
        rows = tape.batch_jacobian(y, x, experimental_use_pfor=pfor)
        return full, rows

    same_as_without(scope, take)
    same_as_without(scope, tf_function_of(take))


def test_vectorized_map(scope):
    w = tf.Variable([0.5, -1.0])

    def one(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(w * x))
        return tape.gradient(loss, w)

    xs = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    same_as_without(scope, lambda: tf.vectorized_map(one, xs))


@pytest.mark.parametrize("ordinary_first", [True, False])
def test_a_function_has_another_trace_in_a_vectorized_map(ordinary_first):
    """There its gradient is not scaled; anywhere else it is, whichever comes first."""
    xs = tf.random.stateless_normal([6, 8], [1, 2])
    w = tf.Variable(tf.random.stateless_normal([8, 4], [3, 4]) * 0.25)

    @tf.function(input_signature=[tf.TensorSpec([None, 8])], autograph=False)
    def grads_of(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ w))
        return tape.gradient(loss, w)

    def ordinary():
        return grads_of(xs)

    def vectorized():
        return tf.reduce_sum(tf.vectorized_map(lambda x: grads_of(x[None]), xs), 0)

    expected = ordinary()
    calls = [ordinary, vectorized] if ordinary_first else [vectorized, ordinary]
    with amp.mixed_precision_scope(dtype="float16", emulate=True, min_gain=0.0):
        for call in calls:
            # Operands and products round by at most 2^-11 each; sums are wider.
            assert tf.norm(call() - expected) <= 2.0**-8 * tf.norm(expected)
    assert len(current().states) == 1


def test_loops_and_branches(scope):
    w = tf.Variable([0.5, -1.0])

    def body(total, i):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(w)) * tf.cast(i, tf.float32)
        return total + tape.gradient(loss, w), i + 1

    def inside():
        keep_going = lambda total, i: i < 4  # noqa: E731
        return tf.while_loop(keep_going, body, (tf.zeros([2]), tf.constant(1)))[0]

    def through():
        with tf.GradientTape() as tape:
            y = tf.while_loop(
                lambda y, i: i < 3, lambda y, i: (tf.tanh(y), i + 1), (w * 1.0, 0)
            )[0]
            y = tf.cond(tf.reduce_sum(w) < 0, lambda: y * w, lambda: y)
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, w)

    for take in (inside, through):
        same_as_without(scope, tf_function_of(take))
        same_as_without(scope, take)


def by_xla(w, x):
    """The loss and gradient of a step, as declared results of a computation of XLA."""

    def computed(x):
        loss = tf.reduce_sum(tf.square(tf.matmul(x, w)))
        return [loss, *tf.gradients(loss, [w])]

    return tf.xla.experimental.compile(computed, [x])


def test_a_computation_of_xla_gives_no_flag_to_an_update_outside(scope):
    """TensorFlow refuses a graph that reads what such a computation did not declare."""
    w, x = tf.Variable(tf.ones([3, 2])), tf.ones([1, 3])
    optimizer = tf.keras.optimizers.SGD(0.125)

    def take():
        w.assign(tf.ones([3, 2]))
        loss, gradient = by_xla(w, x)
        optimizer.apply_gradients([(gradient, w)])
        return loss, gradient, w.read_value()

    same_as_without(scope, lambda: tf_function_of(take)())


def test_a_computation_of_xla_in_a_session_gives_no_flag_to_an_update_outside(scope):
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=tf.ones([3, 2]), use_resource=True)
        _, gradient = by_xla(w, tf.ones([1, 3]))
        optimizer = v1.train.GradientDescentOptimizer(0.125)
        update = optimizer.apply_gradients([(gradient, w)])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(update)
            # The gradient is 2 * 3 for each weight; all is exact.
            np.testing.assert_array_equal(session.run(w), np.full([3, 2], 0.25))


def test_custom_gradient_and_recompute(scope):
    w = tf.Variable([0.5, -1.0])

    @tf.custom_gradient
    def clipped(x):
        return x, lambda dy: tf.clip_by_value(dy, -1e9, 1e9)

    @tf.recompute_grad
    def block(x):
        return tf.tanh(x * w)

    def take():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(clipped(block(tf.constant([1.0, 2.0]))))
        return tape.gradient(loss, w)

    same_as_without(scope, take)
    same_as_without(scope, tf_function_of(take))


def test_a_gradient_inside_a_gradient_is_not_scaled_twice(scope):
    w = tf.Variable([0.5, -1.0])
    block = tf.recompute_grad(lambda x: tf.tanh(x * w))

    @tf.function
    def take():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(block(tf.constant([1.0, 2.0])))
        return tape.gradient(loss, w)

    graph = take.get_concrete_function().graph
    assert len(marked_nodes(graph, "_amp_seed")) == 1
    functions = graph.as_graph_def().library.function
    inner = [n for f in functions for n in f.node_def if "_amp_seed" in n.attr]
    assert not inner


def test_one_scaler_for_a_call_at_every_retrace(scope):
    scope(DynamicLossScale())
    w = tf.Variable(1.0)

    @tf.function
    def take(x):
        with tf.GradientTape(persistent=True) as tape:
            loss = w * tf.reduce_sum(x)
            other = w * w
        first = tape.gradient(loss, w)
        second = tape.gradient(other, w)
        return first + second

    before = len(current().states)
    for size in (1, 2, 3):
        take(tf.ones([size]))
    assert len(current().states) == before + 2
    assert take.experimental_get_tracing_count() == 3
    assert current().states[-1].good_steps.numpy() == 3


def test_a_scope_may_begin_after_a_functions_first_call(scope):
    scope(None)
    w = tf.Variable(1.0)

    @tf.function
    def take(x):
        with tf.GradientTape() as tape:
            loss = w * tf.reduce_sum(x)
        return tape.gradient(loss, w)

    take(tf.ones([1]))
    scope(DynamicLossScale())
    assert take(tf.ones([2])).numpy() == 2.0
    assert take.experimental_get_tracing_count() == 2


def test_a_deleted_models_scalers_go(scope):
    with tf.Graph().as_default():
        w = tf.compat.v1.get_variable("w", initializer=2.0)
        tf.gradients(w * w, w)
        assert len(current().states) == 1
    before = len(current().states)
    w = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = w * w
    tape.gradient(loss, w)
    assert len(current().states) == before + 1
    assert len(state.serving([w])) == 1
    del tape, loss, w
    assert len(current().states) == before


def test_keras_variables_are_sources(scope):
    keras = pytest.importorskip("keras")
    layer = keras.layers.Dense(2)
    layer.build((None, 3))

    @tf.function
    def take():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.ones([1, 3])))
        return tape.gradient(loss, layer.trainable_variables)

    take()
    graph = take.get_concrete_function().graph
    assert len(marked_nodes(graph, "_amp_unscale")) == 2


def test_an_error_of_ours_leaves_the_gradient_alone(scope, monkeypatch):
    def fail(*_):
        raise LookupError("lost")

    monkeypatch.setattr(state, "find", fail)
    w = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = w * w
    with pytest.warns(RuntimeWarning, match="are not scaled: LookupError: lost"):
        assert tape.gradient(loss, w).numpy() == 6.0
    monkeypatch.setattr(active, "is_strict", lambda: True)
    with tf.GradientTape() as tape:
        loss = w * w
    with pytest.raises(LookupError, match="lost"):
        tape.gradient(loss, w)


def test_the_markers_have_the_names_that_saved_graphs_hold():
    assert (ir.UNSCALE, ir.SEED, ir.KEEP) == ("_amp_unscale", "_amp_seed", "_amp_keep")


def test_attribute_scope_ends_and_nests():
    with tf.Graph().as_default() as graph:
        with markers.attribute_scope("_a"):
            with markers.attribute_scope("_a"):
                tf.constant(1.0, name="in")
            tf.constant(1.0, name="still")
        tf.constant(1.0, name="out")
    assert [n.name for n in marked_nodes(graph, "_a")] == ["in", "still"]
    with markers.attribute_scope("_a"):
        assert tf.constant(1.0).numpy() == 1.0


def test_an_attribute_scope_that_ends_in_an_error_marks_nothing_later(monkeypatch):
    numbers = [None]
    monkeypatch.setattr(replicas, "own_number", lambda: numbers[-1])
    with tf.Graph().as_default() as graph:
        with pytest.raises(ZeroDivisionError), markers.attribute_scope("_a"):
            raise ZeroDivisionError
        numbers.append(0)
        with markers.attribute_scope("_a"):
            tf.constant(1.0, name="in")
            numbers.append(1)  # the turn of another replica
            tf.constant(1.0, name="out")
    assert [n.name for n in marked_nodes(graph, "_a")] == ["in"]


def test_importing_the_rules_imports_no_tensorflow():
    code = "import sys, amp.loss_scaling; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", [tf.float64, tf.complex128])
@pytest.mark.parametrize("mode", ["eager", "function", "xla"])
def test_a_float64_gradient_is_exact_to_float64(scope, mode, dtype):
    scope(ConstantLossScale(1000.0))  # 1/1000 is no number of either type
    w = tf.Variable(tf.constant([0.1, 0.2, 0.3], dtype))

    def take():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.real(w * w))
        return tape.gradient(loss, w)

    if mode != "eager":
        take = tf.function(take, jit_compile=mode == "xla")
    # Two roundings by the scale, one of 1/scale and one of the square's gradient.
    np.testing.assert_allclose(take().numpy(), 2 * w.numpy(), rtol=4 * 2.0**-53)


@pytest.mark.parametrize(
    "rule", [DynamicLossScale, lambda **k: ConstantLossScale(8.0, **k)]
)
@pytest.mark.parametrize("asked", ["zeros", "nan"])
def test_what_a_program_sees_after_an_overflow(scope, rule, asked):
    """As torch.amp leaves it (infinite or NaN), if the rule is asked to."""
    scope(rule(on_overflow=asked))
    w = tf.Variable([1.0, 0.0])

    @tf.function
    def take(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w**2) * factor
        return tape.gradient(loss, w)

    assert take(tf.constant(1.0)).numpy().tolist() == [2.0, 0.0]
    found = take(tf.constant(np.inf)).numpy()
    assert np.isnan(found).all() if asked == "nan" else not found.any()


def test_a_rule_knows_two_ways_to_show_an_overflow():
    with pytest.raises(PolicyError, match='"zeros" or "nan"'):
        DynamicLossScale(on_overflow="inf")
    with pytest.raises(PolicyError, match='"zeros" or "nan"'):
        ConstantLossScale(8.0, on_overflow=0)
    rule = DynamicLossScale(on_overflow="nan")
    assert amp.Policy(loss_scale=repr(rule)).loss_scale == rule


def test_a_count_of_steps_fits_what_files_hold():
    with pytest.raises(PolicyError, match="2\\*\\*31 - 1"):
        DynamicLossScale(growth_interval=2**31)
    assert DynamicLossScale(growth_interval=2**31 - 1).growth_interval == 2**31 - 1


def test_what_overwrites_its_variable_is_handed_on(scope):
    """Histories of a float8 layer are values, which no scale concerns."""
    keras = pytest.importorskip("keras")
    x = tf.ones([2, 4])

    def histories():
        keras.utils.set_random_seed(0)
        layer = keras.layers.Dense(3)
        layer.build([2, 4])
        layer.quantize("float8")

        @tf.function
        def take():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(x, training=True))
            return tape.gradient(loss, layer.trainable_variables)

        grads = take()
        names = [v.name for v in layer.trainable_variables]
        found = dict(zip(names, grads, strict=True))
        # That of the outputs' gradient is of the scaled one, which float8 holds.
        meant = ("inputs_scale", "inputs_amax_history", "kernel_amax_history", "kernel")
        return {name: found[name].numpy() for name in meant}

    scope(None)
    expected = histories()
    assert expected["inputs_amax_history"].any()
    scope(DynamicLossScale())
    for name, value in histories().items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_gradients_by_a_variable_of_dtensor_are_not_scaled(scope):
    """A scaler's variables are none of the mesh's, which ended a sharded step."""
    mesh = dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
    layout = dtensor.Layout.replicated(mesh, rank=1)
    ones = dtensor.call_with_layout(tf.ones, layout, shape=[2])
    x = dtensor.DVariable(ones)

    @tf.function
    def take(ones):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ones * x)
        return tf.reduce_sum(tape.gradient(loss, x))

    scope(DynamicLossScale())
    assert float(take(ones)) == 2.0
    assert not current().scalers


SMALL = 2.0**-30  # below float16's range, which ends at 2**-24


def _of_tensors(taken, loss_scale, dtype="float16"):
    """A gradient by tensors, of one step, and the report on the step."""
    w = tf.Variable(np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(8, 8))

    def hidden(x):
        return tf.nn.relu(tf.matmul(x, w))

    def loss(x):
        made = hidden(x)
        if taken == "through a branch":
            made = tf.cond(tf.reduce_sum(x) > 0, lambda: hidden(x), lambda: x)
        return SMALL * tf.reduce_sum(tf.matmul(made, w))

    @tf.function
    def step(x):
        source = x if taken == "by an argument" else x + 1.0
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(source)
            value = loss(source)
            rows = tf.reshape(value, [1])
        if taken == "jacobian":
            return tape.jacobian(rows, source)[0]
        if taken == "by tf.gradients":
            return tf.gradients(value, source)[0]
        return tape.gradient(value, source)

    x = tf.ones([8, 8])
    with amp.mixed_precision_scope(
        dtype=dtype,
        emulate=True,
        assignment="all",
        check=False,
        strict=True,
        loss_scale=loss_scale,
    ):
        step(x)
        found = step(x)
    return found.numpy(), amp.reports()[-1]


@pytest.mark.parametrize(
    "taken",
    [
        *("by an argument", "by a tensor", "by tf.gradients", "jacobian"),
        "through a branch",
    ],
)
def test_a_gradient_that_no_scale_keeps_in_range_is_float32(taken):
    """As the direction of an adversarial example, which is next to nothing."""
    lost, _ = _of_tensors(taken, NoLossScale())
    assert not lost.any()
    found, report = _of_tensors(taken, DynamicLossScale())
    w = np.linspace(-1.0, 1.0, 64).reshape(8, 8)
    x = np.ones([8, 8]) + (taken != "by an argument")
    want = SMALL * ((x @ w > 0) * w.sum(1)) @ w.T
    np.testing.assert_allclose(found, want, rtol=RTOL)
    assert report.rewritten
    assert {"compute", "unguarded"} <= {one.rule for one in report.decisions}
    _, report = _of_tensors(taken, DynamicLossScale(), "bfloat16")
    assert "unguarded" not in {one.rule for one in report.decisions}
