"""Training without a loss scale stays float32 where one is asked for, and says so."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from rewriting import CPU, graph_def, module_of, settled

import amp
from amp.graph_rewrite.candidates.unscaled import unscaled
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.install import install

v1 = tf.compat.v1
FIELDS = {"dtype": "float16", "emulate": True, "assignment": "all", "strict": True}
X = np.ones([4, 8], np.float32)


@pytest.fixture(autouse=True)
def _installed():
    install()


def policy(**fields):
    return settled(
        CPU, **{"dtype": "float16", "loss_scale": "dynamic", **fields}
    ).policy


def weights():
    return v1.get_variable("w", initializer=tf.ones([8, 8]), use_resource=True)


def session_step(name="gradients"):
    """One step of a training by hand, in a graph of TensorFlow 1."""
    w = weights()
    loss = tf.reduce_sum(tf.matmul(tf.constant(X), w) ** 2)
    (grad,) = tf.gradients(loss, [w], name=name)
    return w.assign_sub(0.1 * grad)


def statistics():
    """A forward pass that updates averages of what it computes."""
    average = v1.get_variable("average", initializer=tf.zeros([8]), use_resource=True)
    y = tf.matmul(tf.constant(X), weights())
    return tf.nn.relu(y), average.assign_sub(0.1 * (average - tf.reduce_mean(y, 0)))


def input_gradient():
    x = v1.placeholder(tf.float32, [4, 8])
    return tf.gradients(tf.reduce_sum(tf.nn.tanh(tf.matmul(x, weights()))), [x])


def optimizer():
    loss = tf.reduce_sum(tf.matmul(tf.constant(X), weights()) ** 2)
    return v1.train.AdamOptimizer().minimize(loss)


def given_gradient():
    """An update by a gradient from outside, beside a forward pass."""
    w = weights()
    update = v1.train.AdamOptimizer().apply_gradients(
        [(v1.placeholder(tf.float32, [8, 8]), w)]
    )
    return tf.nn.relu(tf.matmul(tf.constant(X), w)), update


def references():
    w = v1.get_variable("r", initializer=tf.ones([8, 8]), use_resource=False)
    (grad,) = tf.gradients(tf.reduce_sum(tf.matmul(tf.constant(X), w)), [w])
    return v1.assign_sub(w, grad)


def inside_a_function():
    w = weights()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(tf.constant(X), w) ** 2)
        return w.assign_sub(tape.gradient(loss, w))

    return step()


def by_hand():
    """Least squares, with the gradient written down."""
    w, x = weights(), tf.constant(X)
    error = tf.matmul(x, w) - 1.0
    return w.assign_sub(0.1 * tf.matmul(x, error, transpose_a=True))


def by_hand_with_momentum():
    """The product goes into an average first, which is read again."""
    w, x = weights(), tf.constant(X)
    m = v1.get_variable("m", initializer=tf.zeros([8, 8]), use_resource=True)
    gradient = tf.matmul(x, tf.matmul(x, w) - 1.0, transpose_a=True)
    with tf.control_dependencies([m.assign(0.9 * m + gradient)]):
        return w.assign(w - 0.1 * m.read_value())


def by_hand_of_references():
    w = v1.get_variable("r", initializer=tf.ones([8, 8]), use_resource=False)
    error = tf.matmul(tf.constant(X), w)
    return v1.assign_sub(w, tf.matmul(tf.constant(X), error, transpose_a=True))


def state():
    """What a recurrent layer keeps for its next call."""
    h = v1.get_variable("h", initializer=tf.ones([4, 8]), use_resource=True)
    return h.assign(tf.tanh(tf.matmul(h, weights())))


def power_iteration():
    """What spectral normalization keeps."""
    u = v1.get_variable("u", initializer=tf.ones([1, 8]), use_resource=True)
    again = tf.matmul(tf.matmul(u, weights(), transpose_b=True), weights_again())
    return u.assign(again / tf.norm(again))


def weights_again():
    with v1.variable_scope("", reuse=True):
        return v1.get_variable("w", shape=[8, 8], use_resource=True)


def averages():
    """Of two layers, one after the other; and of the weights."""
    y = tf.constant(X)
    updates = []
    for i in range(2):
        y = tf.matmul(y, v1.get_variable(f"w{i}", [8, 8], use_resource=True))
        mean = v1.get_variable(f"mean{i}", [8], use_resource=True)
        updates.append(mean.assign_sub(0.1 * (mean - tf.reduce_mean(y, 0))))
        y = tf.nn.relu(y - mean)
    smooth = v1.get_variable("smooth", [8, 8], use_resource=True)
    return updates, smooth.assign(0.9 * smooth + 0.1 * weights()), y


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (session_step, True),
        (optimizer, True),
        (references, True),
        (inside_a_function, True),
        (by_hand, True),
        (by_hand_with_momentum, True),
        (by_hand_of_references, True),
        (state, False),
        (power_iteration, False),
        (averages, False),
        (statistics, False),
        (given_gradient, False),
        (input_gradient, False),
    ],
)
def test_gradients_that_update_need_the_scale(build, found):
    module = module_of(graph_def(build))
    assert bool(unscaled(module, policy())) == found
    assert not unscaled(module, policy(loss_scale="none"))
    assert not unscaled(module, policy(dtype="bfloat16", loss_scale="auto"))


def test_what_a_program_takes_the_gradient_of_by_hand_is_not_lost():
    """A mean over so many values that float16 has none of the errors' gradients."""
    x, keras = tf.ones([4096, 8]), tf.keras

    def trained() -> np.ndarray:
        w = tf.Variable(tf.zeros([8, 64]))
        optimizer = keras.optimizers.Adam(0.01)

        @tf.function
        def step():
            error = 2.0**-7 * (tf.matmul(x, w) - 1.0) / (4096 * 64)
            gradient = tf.matmul(x, error, transpose_a=True)
            optimizer.apply_gradients([(gradient, w)])

        step(), step()
        return w.numpy()

    expected = trained()
    with amp.mixed_precision_scope(**FIELDS):
        np.testing.assert_array_equal(trained(), expected)
    assert expected.all()


def test_a_gradient_is_known_by_its_derivatives_under_another_name():
    def build():
        w = weights()
        loss = tf.reduce_sum(tf.nn.tanh(tf.matmul(tf.constant(X), w)))
        return w.assign_sub(tf.gradients(loss, [w], name="mine")[0])

    assert unscaled(module_of(graph_def(build)), policy())


def test_with_the_marker_of_a_scope_it_is_scaled():
    def build():
        with amp.mixed_precision_scope(dtype="float16", emulate=True):
            session_step()

    assert not unscaled(module_of(graph_def(build)), policy())


def test_the_report_names_the_rule_and_the_verdict():
    module = module_of(graph_def(session_step))
    resolution = settled(CPU, dtype="float16", loss_scale="dynamic")
    report = rewrite(module, resolution).report
    assert report.nodes_low == 0
    products = {d.rule for d in report.decisions if d.op == "MatMul"}
    assert products == {"unscaled"}
    assert report.verdict.startswith("left in float32: AssignSub")
    assert "without a loss scale" in report.verdict
    plain = settled(CPU, dtype="float16", loss_scale="none")
    assert rewrite(module, plain).report.nodes_low > 0


def training_function(w):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, w) ** 2)
        w.assign_sub(1e-3 * tape.gradient(loss, w))
        return loss

    return step


def last_of(name):
    reports = [r for r in amp.reports() if name in r.function]
    return reports[-1]


@pytest.mark.parametrize("saved", [False, True])
def test_a_function_traced_before_the_scope_trains_in_float32(saved, tmp_path):
    w = tf.Variable(tf.ones([8, 8]))
    step = training_function(w).get_concrete_function(tf.constant(X))
    if saved:
        module = tf.Module()
        module.w, module.step = w, step
        tf.saved_model.save(module, str(tmp_path))
        loaded = tf.saved_model.load(str(tmp_path))
        step, w = loaded.step, loaded.w
    with amp.mixed_precision_scope(**FIELDS):
        step(tf.constant(X))
    report = last_of("step")
    assert (report.nodes_low, report.dtype) == (0, "float16")
    assert "without a loss scale" in report.verdict
    assert w.numpy().tolist() == (np.ones([8, 8]) - 1e-3 * 64).astype("f").tolist()


def test_the_same_function_traced_in_the_scope_is_rewritten():
    w = tf.Variable(tf.ones([8, 8]))
    step = training_function(w)
    with amp.mixed_precision_scope(**FIELDS):
        step(tf.constant(X))
    assert last_of("step").nodes_low > 0


@pytest.mark.parametrize("imported", [False, True])
def test_a_session_graph_built_before_the_scope_trains_in_float32(imported):
    with tf.Graph().as_default() as graph:
        train = session_step()
        exported = tf.compat.v1.train.export_meta_graph()
    if imported:
        with tf.Graph().as_default() as graph:
            v1.train.import_meta_graph(exported)
            train = graph.get_operation_by_name(train.op.name)
    with (
        amp.mixed_precision_scope(**FIELDS),
        v1.Session(graph=graph) as session,
    ):
        with graph.as_default():
            session.run(v1.global_variables_initializer())
        session.run(train)
    report = last_of("session")
    assert report.nodes_low == 0
    assert "without a loss scale" in report.verdict
