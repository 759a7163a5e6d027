"""What sessions share and do not: graphs, servers, processes, memory."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf
from session_graphs import POLICY, W, X, feed, lowered, model, v1

import amp
from amp.integration.sessions import (
    planned_parts,
    run_twins,
    session_twins,
    twin_graph,
    user_graph,
)
from amp.integration.sessions.planned_parts import PlannedParts

pytestmark = pytest.mark.kernels

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize("grown", [True, False])
def test_sessions_of_one_graph_share_a_twin_until_its_nodes_change(grown):
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        made = []
        for number in range(3):
            if number == 2:
                parts["hidden"].op._set_attr("_changed", tf.compat.v1.AttrValue(b=True))
                if grown:  # as by the gradient of a loop
                    tf.constant(0.0)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(parts["out"], feed(parts))
                made.append(session._amp_twin.graph)
    assert made[0] is made[1]
    assert made[2] is not made[1]


def test_a_session_that_begins_runs_the_nodes_as_they_have_become():
    """One that had run them goes on with them as they were, as TensorFlow's does."""
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        one, two, three = (tf.constant(float(number)) for number in (1, 2, 3))
        total, leaky = one + two, tf.nn.leaky_relu(-two, alpha=2.0)
        with v1.Session() as before, v1.Session() as after:
            assert before.run([total, leaky]) == [3.0, -4.0]
            total.op._update_input(1, three)
            leaky.op._set_attr("alpha", v1.AttrValue(f=1.0))
            assert after.run([total, leaky]) == [4.0, -2.0]
            assert before.run([total, leaky]) == [3.0, -4.0]


def test_a_session_runs_on_where_ctrl_c_came_as_its_twin_grew(monkeypatch):
    honest, interrupted = twin_graph.import_nodes, []

    def once(graph, proto, *args):
        honest(graph, proto, *args)
        if not interrupted and any(node.op == "MatMul" for node in proto.node):
            interrupted.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(twin_graph, "import_nodes", once)
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            with pytest.raises(KeyboardInterrupt):
                session.run(parts["train"], feed(parts))
            session.run(parts["train"], feed(parts))
            assert session.run(parts["step"]) == 1
    assert interrupted


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (tf.Graph, "as_graph_def"),
        (user_graph, "sources_of"),
        (PlannedParts, "_follow"),
        (planned_parts, "some"),
    ],
)
def test_a_run_is_rewritten_where_ctrl_c_came_as_its_nodes_were_read(
    monkeypatch, owner, name
):
    """Whether it is the session's first run or a later one, of a graph that grew."""
    honest, armed = getattr(owner, name), []

    def interrupting(*args, **kwargs):
        if armed:
            armed.clear()
            raise KeyboardInterrupt
        return honest(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupting)
    policy = amp.Policy.make(POLICY, strict=True)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        x = v1.placeholder(tf.float32, X.shape)
        w = v1.get_variable("w", initializer=W)
        begin = v1.global_variables_initializer()

        def run(session, asked):
            armed.append(True)
            with contextlib.suppress(KeyboardInterrupt):
                session.run(asked, {x: X})
            armed.clear()
            return session.run(asked, {x: X})

        with v1.Session() as session:
            run(session, begin)
            for name in ("few", "many"):
                before = len(amp.reports())
                y = tf.matmul(x, w, name=name)
                for _ in range(0 if name == "few" else user_graph._MANY):
                    tf.identity(y)  # so many new nodes that all are read anew
                np.testing.assert_array_equal(run(session, y), X @ W)
                assert lowered(before) > 0


def test_threads_that_begin_with_the_same_run_make_its_plans_once(monkeypatch):
    made, honest = [], run_twins.RunTwins.begin

    def begin(self):
        made.append(threading.get_ident())
        time.sleep(0.05)  # the others come by meanwhile
        honest(self)

    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            monkeypatch.setattr(run_twins.RunTwins, "begin", begin)

            def work():
                with amp.mixed_precision_scope(POLICY):
                    session.run(parts["train"], feed(parts))

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert session.run(parts["step"]) == 4
    assert len([each for each in made if each != threading.get_ident()]) == 1


def test_a_session_ends_where_its_last_reference_does():
    """Without the collector: devices and memory are given back at once."""
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        session.run(parts["out"], feed(parts))
        reference = weakref.ref(session)
        gc.disable()
        try:
            del session
            assert reference() is None
        finally:
            gc.enable()


def test_memory_does_not_grow_with_sessions():
    """A hundred sessions of 4 MB each: one that stayed would show four times over."""

    def resident() -> float:
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        big = v1.get_variable("big", [2**20], initializer=v1.ones_initializer())
        product = tf.matmul(tf.reshape(big, [2**10, 2**10])[:2], tf.ones([2**10, 2]))
        init = v1.global_variables_initializer()
        for count in range(120):
            if count == 20:
                before = resident()
            with v1.Session() as session:
                session.run(init)
                session.run(product)
    assert resident() - before < 100
    assert lowered()


@pytest.mark.thorough
@pytest.mark.slow
def test_reset_default_graph_begins_anew():
    script = """
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
for size in (4, 8):
    tf.reset_default_graph()
    x = tf.placeholder(tf.float32, [None, size], name="x")
    w = tf.get_variable("w", [size, size], initializer=tf.ones_initializer())
    product = tf.matmul(x, w)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        print(session.run(product, {x: np.ones([1, size])}).sum())
"""
    assert run(script).stdout.split() == ["16.0", "64.0"]


def test_workers_share_variables_whether_they_have_twins_or_not():
    """Over gRPC: one worker under a policy, the other without, and one server."""
    servers = {"ps": 1, "worker": 2}
    cluster, made = {}, {}
    for job, count in servers.items():
        cluster[job] = [f"localhost:{port}" for port in free_ports(count)]
    for job, count in servers.items():
        for index in range(count):
            made[job, index] = tf.distribute.Server(cluster, job, index)
    results = []
    for index in range(4):
        task = index % 2
        plain = contextlib.nullcontext()
        context = plain if task else amp.mixed_precision_scope(POLICY)
        device = v1.train.replica_device_setter(
            cluster=cluster, worker_device=f"/job:worker/task:{task}"
        )
        with tf.Graph().as_default(), context, v1.device(device):
            parts = model(resource=index < 2)
            more = v1.assign_add(parts["w"], W)
            with v1.Session(made["worker", task].target) as session:
                if task == 0:
                    session.run(v1.global_variables_initializer())
                session.run(more)
                results.append(session.run([parts["w"], parts["hidden"]], feed(parts)))
    for index, (w, hidden) in enumerate(results):
        np.testing.assert_array_equal(w, W * (2 + index % 2))
        np.testing.assert_array_equal(hidden, X @ w)
    assert lowered()


def free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_an_unknown_target_is_tensorflows_error():
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        model()
        with pytest.raises(tf.errors.NotFoundError):
            v1.Session("nowhere://")


def test_messages_lose_what_was_added():
    text = "[[{{node a/amp_to_bfloat16}}]] b/amp_loss_scale_0/scale c/amp_2 f__amp3"
    user = "[[{{node a}}]] b/amp_loss_scale_0/scale c f"
    assert session_twins.as_the_user_has_it(text) == user


def test_messages_name_the_node_that_grappler_moved_past_a_cast():
    """A copy that Grappler makes behind a cast has no operation in any graph."""
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        parts = model()
        wrong = tf.reshape(parts["out"], [7, -1], name="a/wrong")
        used = tf.matmul(wrong, tf.ones([3, 3]))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            with pytest.raises(tf.errors.InvalidArgumentError) as found:
                session.run([wrong, used], feed(parts))
    assert found.value.op.name == "a/wrong"
    assert "{{node a/wrong}}" in found.value.message


# A job as they were written years ago: a queue, a monitored session, hooks, a saver.
OLD = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)
directory, steps = sys.argv[1], int(sys.argv[2])
tf.set_random_seed(1)
rows = np.random.RandomState(0).randn(64, 8).astype(np.float32)
x, y = tf.train.slice_input_producer([rows, rows[:, :1] * 2], shuffle=False)
x, y = tf.train.batch([x, y], 16)
with tf.variable_scope("net"):
    w = tf.get_variable("w", [8, 16])
    b = tf.get_variable("b", [16], initializer=tf.zeros_initializer())
    v = tf.get_variable("v", [16, 1])
hidden = tf.nn.relu(tf.nn.xw_plus_b(x, w, b))
loss = tf.reduce_mean(tf.square(tf.matmul(hidden, v) - y))
tf.summary.scalar("loss", loss)
step = tf.train.get_or_create_global_step()
train = tf.train.MomentumOptimizer(0.02, 0.9).minimize(loss, step)
hooks = [tf.train.StopAtStepHook(last_step=steps), tf.train.NanTensorHook(loss)]
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=directory,
    hooks=hooks,
    save_checkpoint_steps=20,
    save_summaries_steps=10,
) as session:
    print("from step", session.run(step))
    while not session.should_stop():
        last, _ = session.run([loss, train])
print("loss %.3f" % last, last.dtype)
saver = tf.train.Saver()
with tf.Session() as session:
    saver.restore(session, tf.train.latest_checkpoint(directory))
    print(session.run(step), [v.name for v in tf.global_variables()])
"""


def run(script: str, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {"AMP_ASSIGNMENT": "all", "AMP_STRICT": "1", **environ}
    start = "from amp.integration.launch import autostart; autostart.install()\n"
    result = subprocess.run(
        [sys.executable, "-c", start + script, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), "AMP_ENABLE": "1", **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.processes
def test_an_old_job_runs_as_it_did(tmp_path):
    """Float32, then under the toggle from the checkpoint; back again, the next test."""
    job = str(tmp_path / "job")
    first = run(OLD, job, "40", AMP_ENABLE="0").stdout.splitlines()
    reports = str(tmp_path / "reports")
    fields = {"AMP_DTYPE": "float16", "AMP_EMULATE": "1", "AMP_REPORT": reports}
    second = run(OLD, job, "80", **fields).stdout.splitlines()
    assert first[0] == "from step 0"
    assert second[0] == "from step 40"
    loss = [float(lines[1].split()[1]) for lines in (first, second)]
    assert loss[1] < loss[0], "training went on"
    assert second[1].endswith(" float32")
    assert second[2].startswith("80 [")
    assert any(pathlib.Path(reports).iterdir())


@pytest.mark.slow
@pytest.mark.processes
def test_an_old_job_races_with_its_hooks_queues_and_checkpoints(tmp_path):
    job, reports = str(tmp_path / "job"), tmp_path / "reports"
    fields = {"AMP_DTYPE": "bfloat16", "AMP_TRIAL": "1", "AMP_REPORT": str(reports)}
    first = run(OLD, job, "60", **fields).stdout.splitlines()
    assert first[0] == "from step 0"
    assert first[1].endswith(" float32")
    assert first[2].startswith("60 [")
    found = [json.loads(file.read_text()) for file in reports.glob("*.json")]
    raced = [r for r in found if r["function"].startswith("a session's run")]
    assert raced
    assert all(r["trial"].startswith(("under way", "ended")) for r in raced)
    again = run(OLD, job, "70", AMP_ENABLE="0").stdout.splitlines()
    assert again[0] == "from step 60"


MOVES = {
    "identity": tf.identity,
    "transpose": tf.transpose,
    "reshape": lambda w: tf.reshape(w, [16, 16]),
    "slice": lambda w: w[:16],
    "tuple": lambda w: tf.tuple([w])[0],
    "arithmetic": lambda w: w * 1.5 / 1.5,
}


@pytest.mark.parametrize("move", [*MOVES])
def test_a_reference_read_behind_its_update_sees_the_update(move):
    """Grappler may move a cast before what moves the value, and before the read."""
    policy = amp.Policy(dtype="bfloat16", emulate=True, assignment="all")
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        x = v1.placeholder(tf.float32, [16, 16])
        start = np.eye(16, dtype=np.float32)
        w = v1.get_variable("w", initializer=start, use_resource=False)
        before = tf.matmul(x, MOVES[move](w))
        with tf.control_dependencies([before]):
            update = v1.assign_add(w, start)
        with tf.control_dependencies([update]):
            read = w.read_value()
        after = tf.matmul(x, MOVES[move](read))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            found = session.run([before, after], {x: np.ones([16, 16])})
    np.testing.assert_array_equal(found[0], np.ones([16, 16]))
    np.testing.assert_array_equal(found[1], 2 * np.ones([16, 16]))


@pytest.mark.parametrize("move", ["identity", "reshape"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("inside", ["product", "operand"])
def test_a_product_behind_an_update_reads_the_updated_reference(move, scaled, inside):
    """The read is not behind it, but hands on memory, which a cast would copy."""
    kind = {"dtype": "float16", "loss_scale": 16} if scaled else {"dtype": "bfloat16"}
    policy = amp.Policy(emulate=True, assignment="all", **kind)
    with tf.Graph().as_default(), amp.mixed_precision_scope(policy):
        x = v1.placeholder(tf.float32, [16, 16])
        start = np.eye(16, dtype=np.float32)
        w = v1.get_variable("w", initializer=start, use_resource=False)
        value = MOVES[move](w)
        before = tf.matmul(x, value, name="before")
        update = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(before))
        with tf.control_dependencies([update]):
            operand = tf.identity(x)
            after = tf.matmul(operand, value)
        if inside == "operand":
            after = tf.matmul(operand, value)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            found = session.run([before, after], {x: np.ones([16, 16])})
            report = amp.reports()[-1]
    np.testing.assert_array_equal(found[1], np.full([16, 16], 1.0 - 16 * 16))
    assert {d.node: d.dtype for d in report.decisions}["before"] != "float32"


@pytest.mark.parametrize("nested", [False, True])
def test_a_loop_that_updates_a_reference_reads_the_update_in_its_next_trip(nested):
    """The read is behind the update by the edges that lead back alone."""

    def found():
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [16, 16])
            start = np.eye(16, dtype=np.float32)
            w = v1.get_variable("w", initializer=start, use_resource=False)

            def updated(i, y):
                with tf.control_dependencies([y]):
                    update = v1.assign_add(w, start)
                with tf.control_dependencies([update]):
                    return i + 1, tf.identity(y)

            def trip(i, y):
                y = tf.matmul(y, w)
                if not nested:
                    return updated(i, y)
                once = v1.while_loop(lambda j, _: j < 1, updated, [0, y])[1]
                return i + 1, once

            options = {"parallel_iterations": 1}
            after = v1.while_loop(lambda i, y: i < 3, trip, [0, x], **options)[1]
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                return session.run(after, {x: np.ones([16, 16])})

    v1.disable_control_flow_v2()
    try:
        want = found()
        np.testing.assert_array_equal(want, np.full([16, 16], 6.0))
        with amp.mixed_precision_scope(dtype="bfloat16", assignment="all"):
            np.testing.assert_array_equal(found(), want)
    finally:
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("loop", [False, True])
def test_a_loop_or_branch_behind_an_update_reads_the_updated_reference(loop):
    def multiplied(x, w):
        if loop:
            step = lambda i, y: (i + 1, y + tf.matmul(x, w))  # noqa: E731
            return tf.while_loop(lambda i, y: i < 1, step, [0, tf.zeros([16, 16])])[1]
        deeper = lambda: tf.matmul(tf.nn.relu(tf.matmul(x, w) - 1.0), w)  # noqa: E731
        return tf.cond(tf.reduce_sum(x) > 0.0, deeper, lambda: x)

    def found():
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [16, 16])
            start = np.eye(16, dtype=np.float32)
            w = v1.get_variable("w", initializer=start, use_resource=False)
            loss = tf.reduce_sum(tf.matmul(x, w))
            # Adds 4 to each weight: all products are exact in bfloat16.
            update = v1.train.GradientDescentOptimizer(-0.25).minimize(loss)
            with tf.control_dependencies([update]):
                after = multiplied(x, w)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                return session.run(after, {x: np.ones([16, 16])})

    want = found()
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True, assignment="all"):
        np.testing.assert_array_equal(found(), want)
