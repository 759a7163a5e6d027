"""A session that skips for good is told which tensor came first; others run as ever."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.install import install
from amp.integration.reports import reports
from amp.integration.sessions import session_stalls
from amp.loss_scaling import DynamicLossScale, advice, stalls, standstill

v1 = tf.compat.v1
POLICY = {"dtype": "float16", "emulate": True, "assignment": "all", "strict": True}
FOUND = advice.Finding("w", "fed", "Mul", "float16", True, "NaN", False, False)
ENOUGH = stalls.LIMIT + 1  # the last of these runs is observed


@pytest.fixture
def job(monkeypatch):
    """A graph with a product, in a session that is read by the number of its runs."""
    install()
    monkeypatch.setattr(session_stalls, "PERIOD", 1e6)

    @contextlib.contextmanager
    def made(build, policy=POLICY):
        with tf.Graph().as_default(), amp.mixed_precision_scope(**policy):
            w = v1.get_variable("w", initializer=np.ones([4, 4], np.float32))
            fed = v1.placeholder(tf.float32, [4, 4], "fed")
            loss = build(tf.matmul(tf.ones([4, 4]), w, name="hidden"), fed, w)
            update = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                yield lambda value: session.run(
                    [update, loss], {fed: np.full([4, 4], value, np.float32)}
                )

    return made


def planted(hidden, fed, w):
    return tf.reduce_mean(tf.multiply(tf.matmul(hidden, w), fed, "planted"))


def masked(hidden, fed, w):
    scores = tf.matmul(hidden, w, name="scores")
    _, part = tf.split(fed, 2, name="halves")
    rows = tf.concat([part, part], 0, name="rows")
    weights = tf.nn.softmax(tf.add(scores, rows, name="masked"))
    return tf.reduce_mean(tf.matmul(weights, w, name="context") ** 2)


def squared(hidden, fed, w):
    large = tf.multiply(tf.matmul(hidden, w), fed, name="large")
    return tf.reduce_mean(tf.matmul(large, w, name="out") ** 2)


def told(caplog):
    return [r.getMessage() for r in caplog.records if "stand still" in r.getMessage()]


@pytest.mark.parametrize(
    ("build", "value", "tensor"),
    [
        (planted, np.nan, "fed (Placeholder, float32): NaN"),
        (masked, -1e9, "fed (Placeholder, float16): infinity"),
        (squared, 3e4, "large (Mul, float16): infinity"),
    ],
)
def test_a_stall_names_the_first_tensor_without_a_hook(
    job, caplog, build, value, tensor
):
    with job(build) as run:
        for _ in range(ENOUGH):
            run(value)
        (said,) = told(caplog)
    assert f"The first tensor that was not finite is {tensor}" in said
    assert "gradients of w were not finite; the loss scale is " in said
    assert "gradient of w was the first" in said
    wide = {
        "masked": "AMP_KEEP='fed,halves,rows,masked'",
        "squared": "AMP_KEEP='large,out,gradients/out_grad/MatMul_1'",
    }
    assert wide.get(build.__name__, "look at what is fed") in said
    assert f"(made at {__file__}:" in said
    assert told(caplog) == [said]  # nor again when the session is closed


def test_a_run_that_is_observed_is_the_run(job, caplog):
    def train(*values):
        with job(planted) as run:
            return [run(value)[1] for value in values]

    stalls_and_goes_on = [np.nan] * ENOUGH + [1.0] * 60
    found = train(*stalls_and_goes_on)
    assert np.isnan(found[:ENOUGH]).all()
    assert len(told(caplog)) == 1
    begins = found[ENOUGH:]
    assert begins[-1] < begins[0]
    caplog.clear()
    wanted = train(*[np.nan] * (stalls.LIMIT - 1), *[1.0] * 60)
    assert not told(caplog)
    assert begins[0] == wanted[stalls.LIMIT - 1]


def test_a_session_that_is_closed_first_is_told_the_variables(job, caplog):
    with job(planted) as run:
        for _ in range(stalls.LIMIT):
            run(np.nan)
        assert told(caplog) == []
    (said,) = told(caplog)
    assert "gradients of w were not finite" in said
    assert "The first tensor" not in said
    assert "`amp compare graph.pb" in said


def test_a_reading_by_the_clock_is_no_run_of_the_job(job, caplog, monkeypatch):
    monkeypatch.setattr(session_stalls, "PERIOD", 0.0)
    with job(planted) as run:
        run(np.nan)
        monkeypatch.setattr(session_stalls, "PERIOD", 1e6)
        for _ in range(ENOUGH - 1):
            run(np.nan)
        (said,) = told(caplog)
    assert "The first tensor that was not finite is fed" in said


def test_a_session_whose_gradients_are_finite_is_told_nothing(job, caplog):
    with job(planted) as run:
        for value in [np.nan] * (stalls.LIMIT - 1) + [1.0] * 30:
            run(value)
    assert told(caplog) == []


@dataclasses.dataclass
class Observed:
    """What a run lets observe, of one scaler or of none."""

    about: int | None
    observed: tf.Tensor | None = None

    def finding(self, number):
        return FOUND if number == self.about else None


@dataclasses.dataclass
class Made:
    """A run."""

    fetches: list[tf.Tensor]


def test_a_later_case_has_as_many_answers_as_the_first(caplog):
    """Of scalers whose steps take turns, a run may answer for another one."""
    run = Made([])
    watched = session_stalls.SessionStalls(run, None)  # the session is not asked
    case = advice.Case("stalled", "net", ["w"], stalls.LIMIT, "the loss scale is 1")
    for others, known in ((stalls.ANSWERS, False), (stalls.ANSWERS - 1, True)):
        watched._cases[0] = case
        caplog.clear()
        for about in [1] * others + [0] * known:
            assert not told(caplog)
            watched._samples[id(run)] = run, Observed(about)
            assert watched.call(run, lambda longer: [1.0], lambda: True)[0]
        (said,) = told(caplog)
        assert ("The first tensor that was not finite is fed" in said) == known


def test_a_session_is_not_read_before_its_first_step(job, monkeypatch):
    failed, original = [], v1.Session.run

    def run(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        except tf.errors.OpError as e:  # TensorFlow has written a warning then
            failed.append(e)
            raise

    monkeypatch.setattr(session_stalls, "PERIOD", 0.0)
    monkeypatch.setattr(v1.Session, "run", run)
    with job(planted) as step:
        v1.get_default_session().run(v1.trainable_variables())
        assert not failed
        step(1.0)
    assert not failed


@pytest.mark.parametrize("reach", [True, False])
def test_a_reading_is_two_runs_however_many_scalers_there_are(monkeypatch, reach):
    """Or two for each, if some scaler is out of reach."""
    install()
    monkeypatch.setattr(session_stalls, "PERIOD", 1e6)
    count, runs, run = 5, [], v1.Session.run
    with tf.Graph().as_default(), amp.mixed_precision_scope(**POLICY):
        updates = []
        for number in range(count):
            w = v1.get_variable(f"w{number}", initializer=np.ones([4, 4], np.float32))
            loss = tf.reduce_mean(tf.matmul(tf.ones([4, 4]), w))
            updates.append(v1.train.GradientDescentOptimizer(0.1).minimize(loss))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(updates)

            def counted(self, fetches, *args, **options):
                runs.append(fetches)
                if not reach and len(fetches) > 1:
                    raise RuntimeError("out of reach")
                return run(self, fetches, *args, **options)

            with monkeypatch.context() as patch:
                patch.setattr(v1.Session, "run", counted)
                found = session_stalls._read(session)
    assert len(found) == count
    assert len(runs) == (2 if reach else 1 + 2 * count)
    assert {counts.stalled for _, counts in found} == {0}


def test_a_step_of_a_session_has_no_node_that_watches():
    install()
    with tf.Graph().as_default() as graph, amp.mixed_precision_scope(**POLICY):
        w = v1.get_variable("w", initializer=np.ones([4, 4], np.float32))
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w @ w))
    ops = {operation.type for operation in graph.get_operations()}
    assert not ops & {"PrintV2", "StringFormat", "IsNan", "IsInf"}


def mended(hidden, fed, w):
    """Past float16's range between two factors that undo each other."""
    large = tf.multiply(tf.matmul(hidden, w), fed, name="large")
    return 1e-5 * tf.reduce_mean((tf.matmul(large, w) / fed - 1.0) ** 2)


@pytest.mark.parametrize(
    ("changed", "way"),
    [({"check": True}, True), ({}, False), ({"trial": False}, False)],
)
def test_a_session_that_stands_still_goes_on_in_float32(job, caplog, changed, way):
    """All its runs do: what is evaluated has the same weights, and a late run too."""
    with job(mended, {**POLICY, **changed}) as run:
        session = v1.get_default_session()
        run(1.0)
        losses = [run(1e6)[1] for _ in range(ENOUGH + 20)]
        loss = tf.reduce_mean(v1.get_default_graph().get_tensor_by_name("large:0") ** 2)
        fed = {"fed:0": np.full([4, 4], 1e6, np.float32)}
        late = session.run([loss, "large:0"], fed)
    assert not np.isfinite(losses[0])
    assert np.isfinite(losses[-1]) == way
    assert np.isfinite(late[1]).all() == way
    said = [r.getMessage() for r in caplog.records if "float32 from" in r.getMessage()]
    assert len(said) == way
    if way:
        assert losses[-1] < losses[-10]
        assert "no loss scale helps where fed is past float16's range" in said[0]
        found = next(r for r in reports() if r.trial.startswith("ended: its gradients"))
        assert (
            found.verdict == "left in float32: its gradients were not finite any more"
        )


def test_a_session_stands_still_once_its_scale_can_fall_no_more(job, caplog):
    """Where nothing tells that the forward pass is at fault."""
    rule = DynamicLossScale(initial=4.0, minimum=1.0)
    with job(planted, {**POLICY, "check": True, "loss_scale": rule}) as run:
        calls = stalls.LIMIT + standstill.LIMIT + 20
        for _ in range(calls):
            run(np.nan)
    assert "cannot fall any more" in caplog.text
