"""Whatever TensorFlow lets a session graph hold runs as it does without the plugin."""

from __future__ import annotations

import functools
import gc

import numpy as np
import pytest
import tensorflow as tf
from session_graphs import POLICY, W, X, both, feed, lowered, model, v1
from tensorflow.python.ops import control_flow_util

import amp
from amp.graph_rewrite.fusion import fuse
from amp.integration.measuring import hardware
from amp.integration.process import PROCESS
from amp.integration.sessions import policy_view
from tests.graph_rewrite.fusion import test_fuse

pytestmark = pytest.mark.kernels


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def control_flow(request):
    """Both kinds of control flow."""
    (v1.enable_control_flow_v2 if request.param else v1.disable_control_flow_v2)()
    yield
    v1.enable_control_flow_v2()


def loop(parts):
    """Three products by one weight, in a loop."""
    return tf.while_loop(
        lambda i, h: i < 3,
        lambda i, h: (i + 1, tf.nn.relu(tf.matmul(h, parts["w"])) / 4),
        [tf.constant(0), parts["x"]],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 4])],
    )[1]


@pytest.mark.usefixtures("control_flow")
@pytest.mark.parametrize("forward_first", [True, False])
def test_loops_branches_and_their_gradients(forward_first: bool):
    def run():
        parts = model()
        hidden = loop(parts)
        chosen = tf.cond(
            tf.reduce_sum(parts["x"]) > 0,
            lambda: tf.matmul(hidden, parts["v"]),
            lambda: hidden,
        )
        gradients = tf.gradients(chosen, [parts["w"], parts["v"]])
        asked = [[hidden, chosen], gradients]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            ordered = asked if forward_first else asked[::-1]
            results = [session.run(one, feed(parts)) for one in ordered]
        return results if forward_first else results[::-1]

    both(run)


class Cell:
    """A recurrent cell as `tf.compat.v1.nn.dynamic_rnn` takes one."""

    state_size = output_size = 4

    def __init__(self, weights):
        self.weights = weights

    def zero_state(self, batch_size, dtype):
        return tf.zeros([batch_size, 4], dtype)

    def get_initial_state(self, inputs=None, batch_size=None, dtype=None):
        return self.zero_state(batch_size, dtype)

    def __call__(self, inputs, state, scope=None):
        x, h = (
            tf.matmul(one, w)
            for one, w in zip((inputs, state), self.weights, strict=True)
        )
        state = tf.nn.relu(x + h)
        return state, state


@pytest.mark.usefixtures("control_flow")
@pytest.mark.parametrize("cached", [True, False], ids=["read before", "read in it"])
def test_dynamic_rnn_trains(cached: bool):
    """Its state, its arrays and, in gradients, its stacks hold 16 bits."""

    def run():
        parts = model(rate=0.125)
        turn = np.roll(np.eye(4, dtype="f"), 1, 0)
        weights = [v1.get_variable(n, initializer=turn) for n in ("in", "back")]
        read = [w.read_value() if cached else w for w in weights]
        rows = tf.tile(parts["x"][:, None], [1, 5, 1])
        out, _ = v1.nn.dynamic_rnn(Cell(read), rows, dtype=tf.float32, swap_memory=True)
        out = tf.matmul(tf.reshape(out, [-1, 4]), parts["v"])
        descent = v1.train.GradientDescentOptimizer(2.0**-9)
        gradients = descent.compute_gradients(tf.reduce_sum(out), weights)
        train = descent.apply_gradients(gradients)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            asked = [[g for g, _ in gradients], out]
            results = session.run(asked, feed(parts))
            session.run(train, feed(parts))
            return results, session.run(weights)

    both(run)
    wanted = {"Merge", "StackPushV2", "TensorArrayReadV3", "TensorArrayWriteV3"}
    if not control_flow_util.ENABLE_CONTROL_FLOW_V2:
        decisions = amp.reports()[-1].decisions
        assert wanted <= {d.op for d in decisions if d.dtype == "bfloat16"}


@pytest.mark.usefixtures("control_flow")
def test_only_what_is_built_later_and_reads_an_array_is_float32():
    def run():
        parts = model()
        rows = v1.TensorArray(tf.float32, 2, clear_after_read=False)
        rows = rows.unstack(tf.matmul(parts["x"], parts["w"]))
        first = tf.matmul(rows.stack(), parts["v"])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            results = [session.run(first, feed(parts))]
            later = tf.matmul(rows.gather([1, 0]), parts["v"])
            results.append(session.run(later, feed(parts)))
            behind = tf.matmul(later, parts["w"])
            results.append(session.run(behind, feed(parts)))
            other = tf.matmul(first, parts["w"])
            return [*results, session.run(other, feed(parts))]

    both(run)
    low = [any(d.dtype != "float32" for d in r.decisions) for r in amp.reports()]
    assert low[0]
    assert low[-1]
    assert len(low) == 2, "the others have no report, as they are float32"


@pytest.mark.usefixtures("control_flow")
def test_a_gradient_that_is_built_after_a_run_runs_in_a_new_session():
    """Building it changes nodes of the loop that the first session has run."""

    def run():
        parts = model()
        hidden, results = loop(parts), []
        for asked in (lambda: hidden, lambda: tf.gradients(hidden, parts["w"])[0]):
            fetched = asked()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                results += session.run([fetched, hidden], feed(parts))
        return results

    both(run)


def test_python_functions_see_float32():
    seen = []

    def doubled(values):
        seen.append(values.dtype)
        return values * 2

    def run():
        parts = model()
        hidden = v1.py_func(doubled, [parts["hidden"]], tf.float32)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            out = tf.matmul(tf.ensure_shape(hidden, [None, 4]), parts["v"])
            return session.run([out, hidden], feed(parts))

    both(run)
    assert set(seen) == {np.dtype(np.float32)}


def test_a_function_inside_a_session_graph():
    def run():
        parts = model()
        fn = tf.function(lambda h: tf.nn.relu(tf.matmul(h, parts["w"])))
        out = fn(fn(parts["x"]) / 4)
        gradient = tf.gradients(out, parts["w"])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return session.run([out, gradient], feed(parts))

    both(run)


def until_it_ends(step):
    """What a step gives until the input has ended, and the error that said so."""
    results = []
    try:
        while True:
            results.append(step())
    except tf.errors.OutOfRangeError as e:
        return results, e


def test_queues_and_their_runners():
    def run():
        parts = model()
        rows = tf.constant(np.tile(X, [4, 1]))
        (row,) = v1.train.slice_input_producer([rows], shuffle=False, num_epochs=2)
        out = tf.matmul(v1.train.batch([row], 2), parts["w"])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.local_variables_initializer())
            coordinator = tf.train.Coordinator()
            threads = v1.train.start_queue_runners(session, coordinator)
            results, ended = until_it_ends(lambda: session.run(out))
            assert ended.op.type == "QueueDequeueManyV2"
            coordinator.request_stop()
            coordinator.join(threads)
        return results

    assert len(both(run)) == 8


def test_iterators_and_the_functions_of_their_datasets():
    def run():
        parts = model()
        data = tf.data.Dataset.from_tensor_slices(np.tile(X, [4, 1]))
        data = data.map(lambda row: tf.linalg.matvec(tf.constant(W.T), row)).batch(2)
        again = v1.data.make_initializable_iterator(data)
        once = v1.data.make_one_shot_iterator(data)
        first = tf.matmul(again.get_next(), parts["w"])
        second = tf.matmul(once.get_next(), parts["v"])
        results = []
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for fetched, begin in ((first, True), (first, True), (second, False)):
                if begin:
                    session.run(again.initializer)
                results += until_it_ends(functools.partial(session.run, fetched))[0]
        return results

    assert len(both(run)) == 12
    low = [d.node for r in amp.reports() for d in r.decisions if d.dtype == "bfloat16"]
    assert low
    assert not any("Dataset" in node for node in low)


def test_random_operations_draw_what_they_draw_without():
    def run():
        v1.set_random_seed(1)
        parts = model()
        drawn = tf.round(v1.random_uniform(tf.shape(parts["hidden"]), 0, 3, seed=2))
        out = tf.matmul(parts["hidden"] * drawn, parts["v"])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return [session.run([out, drawn], feed(parts)) for _ in range(3)]

    both(run)


def test_an_update_of_what_another_policy_runs_is_seen():
    """A session has one state, whatever its runs go by."""
    with tf.Graph().as_default():
        parts = model()
        more = v1.assign_add(parts["w"], W)
        contexts = [
            amp.mixed_precision_scope(POLICY),
            amp.keep_float32(),
            amp.mixed_precision_scope(amp.Policy.make(POLICY, emulate=True)),
        ]
        with v1.Session() as session:
            for number, context in enumerate([contexts[0], *contexts]):
                with context:
                    if number == 0:
                        session.run(v1.global_variables_initializer())
                        continue
                    session.run(more)
                    out, w = session.run([parts["hidden"], parts["w"]], feed(parts))
                np.testing.assert_array_equal(w, W * (number + 1))
                np.testing.assert_array_equal(out, X @ w)


def test_emulated_values_are_fetched_rounded():
    third = np.full([2, 4], 1 / 3, np.float32)
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 4])
        out = tf.matmul(x, tf.eye(4))
        policy = amp.Policy.make(POLICY, emulate=True)
        with amp.mixed_precision_scope(policy), v1.Session() as session:
            given = session.run(out, {x: third})
    rounded = tf.cast(tf.cast(third, tf.bfloat16), tf.float32).numpy()
    np.testing.assert_array_equal(given, rounded)


@pytest.mark.parametrize("name", ["zeros", "w/read", "hidden"])
def test_what_is_fed_reaches_all_who_read_it(name: str):
    """Fed after its readers were rewritten, whatever became of it."""

    def run():
        parts = model(resource=False)
        zeros = tf.zeros([2, 4], name="zeros")
        out = tf.matmul(parts["hidden"] + zeros, parts["v"], name="sum")
        fed = v1.get_default_graph().get_tensor_by_name(f"{name}:0")
        value = np.full(fed.shape if name != "hidden" else [2, 4], 2, np.float32)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            before = session.run(out, feed(parts))
            given = session.run([out, parts["out"]], {**feed(parts), fed: value})
            return before, given, session.run(out, feed(parts))

    before, given, after = both(run)
    assert (given[0] != before).any()
    np.testing.assert_array_equal(before, after)


@pytest.fixture
def planned(monkeypatch):
    """The graphs that are planned."""
    seen, prepare = [], policy_view.prepare

    def counted(module, *args, **options):
        seen.append(module)
        return prepare(module, *args, **options)

    monkeypatch.setattr(policy_view, "prepare", counted)
    return seen


def test_feeding_what_nothing_was_made_of_leaves_the_rest_in_16_bits(planned):
    """As a language model feeds the state that it had fetched: it is planned once."""
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        state = tf.zeros([2, 4])
        out = tf.matmul(parts["x"] + state, parts["w"])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(out, feed(parts))
            given = session.run(out, {**feed(parts), state: np.full([2, 4], 1 / 3)})
    exact = (X + 1 / 3) @ W
    assert abs(given - exact).max() > 1e-4, "a third has 8 bits in bfloat16"
    assert [bool(r.nodes_low) for r in amp.reports()] == [True, True]
    assert len(planned) == 1


@pytest.fixture
def free_clusters(monkeypatch):
    """Clusters cost nothing; the policy that makes them."""
    monkeypatch.setattr(hardware, "device", lambda: test_fuse.FREE)
    monkeypatch.setattr(fuse, "COMPILE_SECONDS", 0.0)
    return amp.Policy.make(POLICY, assignment="cost", min_gain=0.0, tune_budget=1.0)


def test_a_member_of_a_cluster_may_be_fetched_and_fed(free_clusters):
    """What XLA computes inside is computed by its kernel for who asks for it."""

    def run():
        x = v1.placeholder(tf.float32, [64, 256])
        eye = tf.constant(np.eye(256, dtype=np.float32))
        hidden = tf.nn.relu(tf.matmul(x, eye) * 2, name="relu")
        inner = tf.square(tf.nn.elu(hidden, name="elu"), name="inner")
        out = tf.matmul(inner, eye)
        step = v1.assign_add(v1.get_variable("t", [], initializer=None), 1.0)
        value = np.tile(np.arange(4, dtype=np.float32), [64, 64])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run([out, step.op], {x: value})
            elu = v1.get_default_graph().get_tensor_by_name("elu:0")
            fetched = session.run([out, elu, inner], {x: value})
            return fetched, session.run([out, inner], {x: value, elu: value + 1})

    both(run, free_clusters)
    assert amp.reports()[-1].clusters


@pytest.mark.usefixtures("free_clusters")
@pytest.mark.parametrize("fed", [False, True])
def test_a_run_that_needs_no_label_needs_none_of_a_cluster(fed):
    """A job trains with labels, and predicts without, or from what it made of them."""
    keep = ("Elu", "Relu", "Square")
    policy = amp.Policy.make(POLICY, assignment="all", keep=keep, trial=False)

    def run():
        x = v1.placeholder(tf.float32, [64, 256])
        y = v1.placeholder(tf.float32, [64, 256])
        eye = tf.constant(np.eye(256, dtype=np.float32))
        hidden = tf.nn.relu(tf.matmul(x, eye) * 2)
        given, sums = tf.nn.elu(hidden), tf.sort(y, direction="DESCENDING")
        out = tf.matmul(tf.square(given * y), eye)
        guess = tf.argmax(given + sums if fed else given, 1)
        value = np.tile(np.arange(4, dtype=np.float32), [64, 64])
        with v1.Session() as session:
            trained = session.run([out, guess], {x: value, y: value})
            feeds = {x: value, sums: value} if fed else {x: value}
            return trained, session.run(guess, feeds)

    both(run, policy)
    assert any(report.clusters for report in amp.reports())


def test_a_prediction_takes_no_element_and_draws_no_number(free_clusters):
    def run():
        v1.set_random_seed(1)
        data = tf.data.Dataset.range(8).map(lambda n: tf.fill([64, 256], float(n)))
        labels = v1.data.make_one_shot_iterator(data).get_next()
        x = v1.placeholder(tf.float32, [64, 256])
        eye = tf.constant(np.eye(256, dtype=np.float32))
        given = tf.nn.elu(tf.nn.relu(tf.matmul(x, eye) * 2))
        drawn = tf.round(v1.random_uniform([64, 256], 0, 3, seed=2))
        out = tf.matmul(tf.square(given * labels) * drawn, eye)
        guess = tf.argmax(given, 1)
        value = np.tile(np.arange(4, dtype=np.float32), [64, 64])
        with v1.Session() as session:
            asked = [out, guess, guess, out]
            return [session.run(one, {x: value / 4}) for one in asked]

    both(run, free_clusters)
    assert any(report.clusters for report in amp.reports())


def test_the_gradient_of_one_head_waits_for_nothing_of_another():
    keep = ("ga/a_grad/LeakyReluGrad", "gb/b_grad/LeakyReluGrad")
    policy = amp.Policy.make(POLICY, keep=keep, trial=False)

    def run():
        x, *labels = (v1.placeholder(tf.float32, [64, 64]) for _ in range(3))
        w = tf.constant(np.eye(64, dtype=np.float32))
        hidden, gradients = tf.matmul(x, w), []
        for name, y in zip("ab", labels, strict=True):
            out = tf.nn.leaky_relu(hidden, name=name)
            loss = tf.reduce_mean(tf.square(out - y))
            gradients += tf.gradients(loss, w, name=f"g{name}")
        value = np.ones([64, 64], np.float32)
        with v1.Session() as session:
            for y, gradient in zip(labels, gradients, strict=True):
                session.run(gradient, {x: value, y: value})

    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        run()
    assert len([r for r in amp.reports() if r.nodes_low]) == 2, "both in 16 bits"


@pytest.mark.parametrize("length", [None, 64])
def test_new_lengths_compile_no_clusters_where_nothing_races(monkeypatch, length):
    monkeypatch.setattr(hardware, "device", lambda: test_fuse.FREE)
    monkeypatch.setattr(fuse, "COMPILE_SECONDS", 0.0)
    policy = amp.Policy.make(POLICY, assignment="all", keep=("Elu",), trial=False)

    def run():
        x = v1.placeholder(tf.float32, [None, length, 256])
        eye = tf.constant(np.eye(256, dtype=np.float32))
        hidden = tf.nn.elu(tf.matmul(tf.reshape(x, [-1, 256]), eye) * 2)
        with v1.Session() as session:
            return session.run(tf.matmul(hidden, eye), {x: np.ones([2, 64, 256])})

    both(run, policy)
    assert bool(amp.reports()[-1].clusters) is (length is not None)


def test_what_a_job_does_not_know_of_initialises_itself():
    """The loss scale's variables are in no list that this job initialises."""
    policy = amp.Policy(dtype="float16", emulate=True, assignment="all", strict=True)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        parts = model(rate=0.125)
        (scaler,) = amp.loss_scaling.current().states
        scale = scaler.scale
        for _ in range(2):
            with v1.Session() as session:
                known = [parts["w"], parts["v"], parts["step"]]
                session.run(v1.variables_initializer(known))
                session.run(parts["train"], feed(parts))
                assert session.run(scale) > 8
                session.run(scale.assign(8.0))
                session.run(parts["train"], feed(parts))
                assert session.run(scale) == 8, "it was initialised again"


def test_a_checkpoint_of_before_restores(tmp_path):
    path = str(tmp_path / "model")
    with tf.Graph().as_default():
        parts = model(rate=0.125)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(parts["train"], feed(parts))
            v1.train.Saver().save(session, path)
            before = session.run([parts["v"], parts["step"]])
    policy = amp.Policy(dtype="float16", emulate=True, assignment="all", strict=True)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        parts = model(rate=0.125)
        with v1.Session() as session:
            v1.train.Saver().restore(session, path)
            np.testing.assert_equal(session.run([parts["v"], parts["step"]]), before)
            session.run(parts["train"], feed(parts))


def test_a_graph_of_thousands_of_variables_is_planned_once(planned):
    """However often and for whatever it runs."""
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for name in ("hidden", "out", "loss", "train", "w"):
                session.run(parts[name], feed(parts))
    assert len(planned) == 1
    assert len(amp.reports()) == 4, "one for each run that computes"
    assert lowered()
    assert all("trial" in str(report) for report in amp.reports())


def test_twins_go_with_their_graphs():
    gc.collect()
    before = len(PROCESS.sessions)

    def run():
        with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
            parts = model()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(parts["out"], feed(parts))
            assert len(PROCESS.sessions) == before + 1

    run()
    gc.collect()
    assert len(PROCESS.sessions) == before
