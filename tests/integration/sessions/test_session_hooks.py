"""A session under a policy gives what it gives without, in the user's types."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from session_graphs import POLICY, W, X, both, feed, lowered, model, v1
from tensorflow.python.client import session as session_lib
from tensorflow.python.framework import function

import amp
from amp.graph_rewrite.graph import ir
from amp.integration.sessions import (
    policy_view,
    session_hooks,
    session_starts,
    twin_graph,
)

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_a_step_of_training_is_the_same(resource: bool):
    def run():
        parts = model(resource, rate=0.125)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            loss, _ = session.run([parts["loss"], parts["train"]], feed(parts))
            return loss, session.run([parts["v"], parts["step"]])

    both(run)


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_variables_are_one_whoever_writes_and_reads_them(resource: bool):
    def run():
        parts = model(resource)
        twice = v1.assign(parts["w"], parts["w"] * 2)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            first = session.run(parts["out"], feed(parts))
            session.run(twice)
            second = session.run(parts["out"], feed(parts))
            session.run(parts["w"].initializer)
            return first, second, session.run([parts["w"], parts["out"]], feed(parts))

    first, second, _ = both(run)
    np.testing.assert_array_equal(second, first * 2)


def test_any_tensor_may_be_fetched_in_its_own_type():
    def run():
        parts = model()
        graph = tf.compat.v1.get_default_graph()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(parts["train"], feed(parts))
            tensors = [
                t
                for op in graph.get_operations()
                if ir.UNSCALE not in op.node_def.attr  # only under a policy
                for t in op.outputs
                if t.dtype.base_dtype in (tf.float32, tf.int32, tf.int64)
            ]
            return session.run(tensors, feed(parts))

    both(run)


@pytest.mark.parametrize("name", ["hidden", "first", "w/Read/ReadVariableOp", "sub"])
@pytest.mark.parametrize("late", [False, True], ids=["at first", "after a run"])
def test_any_tensor_may_be_fed(name: str, late: bool):
    def run():
        parts = model()
        fed = v1.get_default_graph().get_tensor_by_name(f"{name}:0")
        value = np.full([4, 4] if name[0] == "w" else [2, 4], 3, np.float32)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            if late:
                session.run(parts["train"], feed(parts))
            out = [parts["out"], parts["loss"], fed, parts["hidden"]]
            given = session.run(out, {**feed(parts), fed: value})
            return given, session.run(out, feed(parts))

    both(run)


def test_what_is_fed_is_not_rounded_once_it_was_left_alone():
    """A value that bfloat16 does not hold comes back as it was fed."""
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        session.run(parts["train"], feed(parts))
        value = np.full([2, 4], 1 + 2.0**-20, np.float32)
        doubled = parts["hidden"] * 2
        given = session.run(doubled, {**feed(parts), parts["hidden"]: value})
    np.testing.assert_array_equal(given, value * 2)


def test_an_interactive_session():
    def run():
        parts = model()
        session = v1.InteractiveSession()
        try:
            v1.global_variables_initializer().run()
            return parts["out"].eval(feed(parts)), session.run(parts["w"])
        finally:
            session.close()

    both(run)


def test_callables():
    def run():
        parts = model()
        constant = tf.matmul(tf.constant(X), parts["w"])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            one = session.make_callable(constant)
            several = session.make_callable({"a": constant, "b": [parts["v"]]})
            fed = session.make_callable(parts["out"], feed_list=[parts["x"]])
            init = session.make_callable(parts["w"].initializer)
            init()
            traced = session.make_callable([constant], accept_options=True)
            metadata = v1.RunMetadata()
            options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
            given = traced(options=options, run_metadata=metadata)
            assert metadata.step_stats.dev_stats
            return one(), several(), fed(X), given, one()

    both(run)


def test_callables_from_options():
    def run():
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(parts["train"], feed(parts))
            proto = _callable_options(["x:0"], ["hidden:0", "out:0"], ["w/Assign"])
            call = session._make_callable_from_options(proto)
            return call(X), call(X * 2)

    both(run)


def _callable_options(feeds, fetches, targets):
    from tensorflow.core.protobuf import config_pb2

    return config_pb2.CallableOptions(feed=feeds, fetch=fetches, target=targets)


def test_partial_runs():
    def run():
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            handle = session.partial_run_setup(
                [parts["hidden"], parts["loss"]], [parts["x"], parts["y"]]
            )
            first = session.partial_run(handle, parts["hidden"], {parts["x"]: X})
            last = session.partial_run(handle, parts["loss"], {parts["y"]: first})
            return first, last

    both(run)


def test_a_partial_run_that_has_ended_is_forgotten_and_refused_as_ever():
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            twin = session.__dict__[session_starts.TWIN]
            for _ in range(3):
                handle = session.partial_run_setup(
                    [parts["hidden"], parts["loss"]], [parts["x"], parts["y"]]
                )
                session.partial_run(handle, parts["hidden"], {parts["x"]: X})
                assert len(twin._partial) == 1
                session.partial_run(handle, parts["loss"], {parts["y"]: X})
                assert len(twin._partial) == 0
            with pytest.raises(tf.errors.InvalidArgumentError, match="setup"):
                session.partial_run(handle, parts["loss"], {parts["y"]: X})


def test_profiles_name_the_users_nodes():
    """What runs in 16 bits, and the casts of each, have their node's name."""
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    with tf.Graph().as_default() as graph, amp.mixed_precision_scope(POLICY):
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            told = v1.RunMetadata()
            session.run(parts["out"], feed(parts), options, told)
            assert lowered()
        users = {node.name for node in graph.as_graph_def().node}
    stats = [n for device in told.step_stats.dev_stats for n in device.node_stats]
    assert "amp_" not in str(told.step_stats)
    known = {node.node_name for node in stats} & users
    assert {"first", "out"} <= known
    with tf.Graph().as_default(), v1.Session() as session:  # without a twin
        session.run(tf.constant(1.0), options=options, run_metadata=told)
        assert told.step_stats.dev_stats


def test_a_graph_that_grows_keeps_its_state():
    def run():
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.assign(parts["w"], W + 1))
            results = [session.run(parts["out"], feed(parts))]
            low = parts["hidden"]
            for number in range(3):
                more = v1.get_variable(
                    f"more_{number}", [4, 4], initializer=v1.constant_initializer(W)
                )
                low = tf.nn.relu(tf.matmul(low, more)) / 4
                session.run(more.initializer)
                results += session.run([low, parts["hidden"]], feed(parts))
            gradient = tf.gradients(low, parts["w"])
            return results, session.run(gradient, feed(parts))

    both(run)


def test_two_sessions_of_one_graph_have_states_of_their_own():
    def run():
        parts = model()
        more = v1.assign_add(parts["w"], W)
        with v1.Session() as one, v1.Session() as other:
            for session in (one, other):
                session.run(v1.global_variables_initializer())
            one.run(more)
            return [
                s.run([parts["w"], parts["out"]], feed(parts)) for s in (one, other)
            ]

    both(run)


def test_what_the_user_sees_is_the_users_graph(tmp_path):
    with tf.Graph().as_default() as graph, amp.mixed_precision_scope(POLICY):
        parts = model()
        init = v1.global_variables_initializer()
        saver = v1.train.Saver()
        graph.finalize()
        before = graph.as_graph_def()
        with v1.Session() as session:
            session.run(init)
            session.run(parts["train"], feed(parts))
            saver.save(session, str(tmp_path / "model"))
            assert session.graph is graph
            assert session.graph_def == before
        assert graph.as_graph_def() == before
        assert parts["out"].graph is graph
    meta = tf.compat.v1.MetaGraphDef()
    meta.ParseFromString((tmp_path / "model.meta").read_bytes())
    assert {n.name for n in meta.graph_def.node} == {n.name for n in before.node}
    assert lowered()


def test_errors_are_the_users():
    """The operation, its name in the message and the kind of error are as without."""

    def run():
        parts = model()
        wrong = {parts["x"]: X, parts["y"]: X[:1, :].repeat(3, 0)}
        with v1.Session() as session:
            with pytest.raises(tf.errors.FailedPreconditionError) as empty:
                session.run(parts["hidden"], feed(parts))
            session.run(v1.global_variables_initializer())
            with pytest.raises(tf.errors.InvalidArgumentError) as shape:
                session.run(parts["loss"], wrong)
        found = [empty.value, shape.value]
        assert not any("/amp_" in e.message for e in found)
        return [e.op.name for e in found]

    with tf.Graph().as_default():
        plain = run()
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        mixed = run()
    assert plain == mixed


def test_a_closed_session_is_closed():
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        session.close()
        with pytest.raises(RuntimeError, match="closed Session"):
            session.run(parts["out"], feed(parts))


def test_a_fetch_of_another_graph_is_the_users_error():
    with tf.Graph().as_default():
        other = tf.constant(1.0)
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        model()
        with v1.Session() as session, pytest.raises(ValueError, match="not an element"):
            session.run(other)


def test_switching_off_acts_at_the_next_run():
    with tf.Graph().as_default():
        parts = model()
        third = tf.constant(1 / 3, shape=[2, 4])
        product = tf.matmul(third, parts["w"])
        amp.enable(POLICY)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            low = session.run(product)
            amp.disable()
            plain = session.run(product)
            amp.enable(POLICY)
            again = session.run(product)
    np.testing.assert_array_equal(low, again)
    exact = np.full([2, 4], 1 / 3, np.float32) @ W
    np.testing.assert_allclose(plain, exact, rtol=2e-7)  # one rounding of a sum
    assert abs(low - exact).max() > 1e-4  # 1/3 has 8 bits in bfloat16


def test_a_scope_in_which_the_graph_was_built_covers_its_runs():
    with tf.Graph().as_default():
        with amp.mixed_precision_scope(POLICY):
            parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(parts["train"], feed(parts))
    assert lowered()


def test_a_session_that_has_run_keeps_its_state_and_says_so():
    with tf.Graph().as_default():
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.assign(parts["w"], W * 2))
            amp.enable(POLICY)
            with pytest.warns(RuntimeWarning, match="had run before mixed precision"):
                given = session.run(parts["w"])
            session.run(parts["out"], feed(parts))  # and says it once
    np.testing.assert_array_equal(given, W * 2)


def test_a_rewrite_that_fails_leaves_the_graph_as_it_is(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("broken")

    def run():
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.assign(parts["w"], W * 2))
            return session.run([parts["out"], parts["w"], parts["train"]], feed(parts))

    with tf.Graph().as_default():
        plain = run()
    monkeypatch.setattr(policy_view, "prepare", broken)
    policy = amp.Policy.make(POLICY, strict=False)
    scope = amp.mixed_precision_scope(policy)
    warned = pytest.warns(RuntimeWarning, match="broken")
    with tf.Graph().as_default(), scope, warned as told:
        mixed = run()
    assert len(told) == 1
    np.testing.assert_array_equal(plain[0], mixed[0])
    strict, raised = amp.mixed_precision_scope(POLICY), pytest.raises(RuntimeError)
    with tf.Graph().as_default(), strict, raised:
        run()


def test_a_twin_that_tensorflow_refuses_gives_way_with_its_state(monkeypatch):
    run = session_lib.BaseSession._call_tf_sessionrun
    left = iter([None, None])  # the initialisation and the assignment run

    def refusing(*args):
        if next(left, refusing) is refusing and refusals:
            raise refusals.pop()
        return run(*args)

    refusals = [
        tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")
    ]
    monkeypatch.setattr(session_lib.BaseSession, "_call_tf_sessionrun", refusing)
    starts = iter([False, True])  # the twin, the original
    monkeypatch.setattr(session_hooks, "can_start", lambda *_: next(starts))
    policy = amp.Policy.make(POLICY, strict=False)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.assign(parts["w"], W * 2))
            with pytest.warns(RuntimeWarning, match="No OpKernel"):
                given = session.run([parts["out"], parts["w"]], feed(parts))
    np.testing.assert_array_equal(given[1], W * 2)
    np.testing.assert_array_equal(given[0], np.maximum(X @ (W * 2), 0) @ W)


@pytest.mark.parametrize("way", ["run", "make_callable"])
def test_a_twin_that_does_not_fit_gives_way_where_metadata_is_asked_for(
    monkeypatch, way
):
    """TensorFlow refuses metadata to which the run that failed has written."""
    run, metadata = session_lib.BaseSession._call_tf_sessionrun, []

    def full(self, options, feeds, fetches, targets, told):
        outputs = run(self, options, feeds, fetches, targets, told)
        metadata.append(told)
        if len(metadata) == 2:  # after the initialisation
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
        return outputs

    monkeypatch.setattr(session_lib.BaseSession, "_call_tf_sessionrun", full)
    policy = amp.Policy.make(POLICY, strict=False)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        x = tf.constant(W)
        out = tf.matmul(tf.matmul(x, x), x)
        with v1.Session() as session:
            session.run(tf.constant(0))
            told = {"options": v1.RunOptions(), "run_metadata": v1.RunMetadata()}
            step = functools.partial(session.run, out)
            if way == "make_callable":
                step = session.make_callable(out, accept_options=True)
            with pytest.warns(RuntimeWarning, match="OOM when allocating"):
                given = step(**told)
    np.testing.assert_array_equal(given, W @ W @ W)
    assert [one is None for one in metadata] == [True, False, True]


@pytest.mark.parametrize("way", ["run", "make_callable"])
def test_a_kernel_that_raises_in_the_middle_of_a_step_raises_once(way):
    """Nothing runs a second time: the step's variable is updated once."""
    batches = iter(range(100))

    def load():
        if next(batches) == 0:
            raise NotImplementedError("the first batch is damaged")
        return np.float32(1.0)

    policy = amp.Policy.make(POLICY, strict=False)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        count = v1.get_variable("count", initializer=0.0)
        with tf.control_dependencies([v1.assign_add(count, 1.0)]):
            scale = v1.py_func(load, [], tf.float32)
            x = tf.ones([8, 8]) * scale
        step = tf.matmul(tf.matmul(x, x), x)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            run = session.make_callable(step) if way == "make_callable" else None
            run = run or (lambda: session.run(step))
            with pytest.raises(tf.errors.OpError, match="the first batch is damaged"):
                run()
            run()
            assert session.run(count) == 2.0
    assert next(batches) == 2


@pytest.mark.parametrize(("device", "starts"), [("", True), ("/job:w/task:7", False)])
def test_what_cannot_start_is_told_from_what_fails_on_its_way(device, starts):
    with tf.Graph().as_default(), v1.Session() as session:
        with tf.device(device):
            failing = tf.debugging.assert_equal(1, v1.placeholder(tf.int32, []))
        run = session_hooks.Run([failing], [], {})
        assert session_hooks.can_start(session, run) is starts


IMPLEMENTING = """
import tensorflow as tf
import amp
v1 = tf.compat.v1
v1.disable_eager_execution()
amp.enable(dtype="bfloat16", assignment="all", strict=True)


def implementation(factor, device):
    attributes = {"api_implements": "scaled", "api_preferred_device": device}

    @tf.function(experimental_attributes=attributes, autograph=False)
    def scaled(x):
        return x * factor

    return scaled


with tf.Graph().as_default() as graph, v1.Session() as session:
    x = tf.ones([])
    here, there = implementation(2.0, "CPU"), implementation(4.0, "GPU")
    here.get_concrete_function(x).add_to_graph(graph)
    out = tf.identity(there(x)) + tf.reduce_sum(tf.matmul(tf.ones([2, 2]), [[0.0]] * 2))
    print("ran", session.run(out))
"""


BRANCHING = """
import re
v1.enable_control_flow_v2()
v1.enable_resource_variables()
with tf.Graph().as_default(), v1.Session() as session:
    x, flag = v1.placeholder(tf.float32, [4, 4]), v1.placeholder(tf.bool, [])
    w = v1.get_variable("w", initializer=tf.ones([4, 4]))
    y = tf.cond(flag, lambda: tf.tanh(tf.matmul(x, w)), lambda: x * w)
    fed = {x: [[1.0] * 4] * 4, flag: True}
    session.run(w.initializer)
    session.run(y, fed)
    try:
        session.run(tf.gradients(y, [w])[0], fed)
    except tf.errors.InvalidArgumentError as e:
        print("explained" if re.search("1 outputs. Try using tf.compat", str(e)) else e)
    print("ran", session.run(y, fed).shape)
"""


@pytest.mark.processes
def test_what_tensorflow_looks_up_and_explains_it_does_with_a_twin_too():
    """An implementation for the device runs though only Grappler calls it; a gradient
    through a branch that a session has run already is refused in TensorFlow's words.
    """
    command = [sys.executable, "-c", IMPLEMENTING + BRANCHING]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["ran 2.0", "explained", "ran (4, 4)"], (
        done.stderr
    )


def test_what_the_original_is_refused_too_is_the_users_error_alone():
    policy = amp.Policy.make(POLICY, strict=False)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        with tf.device("/job:worker/task:7"):
            out = tf.matmul(tf.ones([2, 2]), tf.ones([2, 2]))
        with (
            v1.Session() as session,
            pytest.raises(tf.errors.InvalidArgumentError, match="task:7") as error,
        ):
            session.run(out)
    assert "amp_" not in str(error.value)


def test_a_later_run_that_fails_of_ours_is_float32_in_the_same_twin(monkeypatch):
    """The state is in the twin by then, so the user's graph itself cannot run."""
    original = policy_view.PolicyView.run

    def broken(self, *args):
        if self.plan is not None:
            raise RuntimeError("broken")
        return original(self, *args)

    policy = amp.Policy.make(POLICY, strict=False)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.assign(parts["w"], W * 2))
            monkeypatch.setattr(policy_view.PolicyView, "run", broken)
            with pytest.warns(RuntimeWarning, match="broken") as told:
                given = [session.run(parts["out"], feed(parts)) for _ in range(2)]
    assert len(told) == 1
    np.testing.assert_array_equal(given[0], np.maximum(X @ (W * 2), 0) @ W)
    np.testing.assert_array_equal(given[1], given[0])


def test_a_first_run_that_fails_of_ours_is_as_it_was(monkeypatch):
    """Nothing has state yet, so the session goes on with its own graph."""

    def broken(*args):
        raise RuntimeError("broken")

    monkeypatch.setattr(twin_graph.TwinGraph, "add", broken)
    policy = amp.Policy.make(POLICY, strict=False)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        parts = model()
        with v1.Session() as session:
            with pytest.warns(RuntimeWarning, match="broken") as told:
                session.run(v1.global_variables_initializer())
            out = session.run(parts["hidden"], feed(parts))
    assert len(told) == 1
    np.testing.assert_array_equal(out, X @ W)


@function.Defun(tf.float32, tf.float32)
def layer(x, w):
    return tf.nn.relu(tf.matmul(x, w))


@function.Defun(tf.float32, tf.float32)
def layers(x, w):
    return layer(layer(x, w), w)


def test_a_function_may_call_another_by_its_name():
    """As `Defun` of TensorFlow 1 does, and what is imported of a graph with it."""

    def run():
        y = tf.identity(layers(tf.constant(X), tf.constant(W)))
        with v1.Session() as session:
            return session.run(y)

    both(run)


def test_a_gradient_inside_of_a_defun_is_scaled():
    def run():
        @function.Defun()
        def step(x):
            w = v1.get_variable("w", initializer=W)
            loss = tf.reduce_sum(tf.square(tf.matmul(x, w)))
            return loss, v1.gradients(loss, function.get_extra_args()[:1])[0]

        loss, gradient = step(tf.constant(X))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return session.run([loss, gradient])

    scaled = dataclasses.replace(
        POLICY,
        dtype="float16",
        emulate=True,
        loss_scale=amp.loss_scaling.DynamicLossScale(2.0**8),
    )
    loss, gradient = both(run, scaled)
    assert loss > 0
    np.testing.assert_array_equal(gradient, 2 * X.T @ X @ W)
