"""A session's gradients are compared with float32 before a plan makes a step."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf
from frames import version_1

import amp
from amp.integration.contests import entrants, plan_store
from amp.integration.observing import accuracy as accuracy_rules
from amp.integration.observing.judge import NONE_FINITE, GradientJudge
from amp.integration.racing.race_log import FLOAT32
from amp.integration.reports import reports
from amp.integration.sessions import plan_checks
from amp.integration.sessions.plan_checks import PlanChecks
from amp.integration.sessions.run_checks import GUARDED, RunCheck
from amp.integration.sessions.session_twins import SessionTwin

v1 = tf.compat.v1
POLICY = {
    "dtype": "float16",
    "emulate": True,
    "assignment": "all",
    "check": True,
    "strict": True,
    "loss_scale": 64.0,  # fits at once
}
X = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(8, 8)


def plain(hidden):
    return hidden


def from_an_iterator(hidden):
    elements = tf.data.Dataset.from_tensor_slices(np.arange(1.0, 4.0, dtype="f"))
    return hidden * v1.data.make_one_shot_iterator(elements).get_next()


def dropped(hidden):
    return tf.nn.dropout(hidden, rate=0.5)


def asserted(hidden):
    with tf.control_dependencies([v1.assert_less(hidden, 1e6)]):
        return tf.identity(hidden)


def looped(hidden):
    def body(i, h):
        return i + 1, h * 0.5

    with version_1():  # whose gradient has stacks
        return v1.while_loop(lambda i, h: i < 3, body, [0, hidden])[1]


def guarded_past_the_range(hidden):
    """The job's own check would end it, in 16 bits only."""
    return tf.debugging.check_numerics(hidden * 1e3 * 1e3, "of the job") * 1e-6


def past_the_range_of_products(hidden):
    return hidden * 1e3 * 1e3


def past_the_range_on_the_way(hidden):
    """Products are finite whatever is between them."""
    return hidden * 1e3 * 1e3 * 1e-6


class Job:
    """Two products with something between, in a session of a graph of its own."""

    def __init__(self, between, **changed):
        scope, behind = contextlib.nullcontext(), changed.pop("behind", list)
        if changed.pop("on", True):
            scope = amp.mixed_precision_scope(**{**POLICY, **changed})
        with tf.Graph().as_default(), scope:
            self.x = v1.placeholder_with_default(X, [None, 8], "x")
            weights = np.random.default_rng(0).normal(size=(8, 8)).astype("f")
            w = v1.get_variable("w", initializer=weights)
            self.made = v1.get_variable("made", initializer=0, trainable=False)
            hidden = between(tf.matmul(self.x, w, name="hidden"))
            out = tf.matmul(tf.ensure_shape(hidden, [None, 8]), w)
            after = 1e-6 if between is past_the_range_of_products else 1.0
            self.loss = tf.reduce_mean((out * after) ** 2)
            descent = v1.train.GradientDescentOptimizer(1e-3)
            with version_1(), tf.control_dependencies(behind()):
                self.train = descent.minimize(self.loss, self.made)
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def run(self, *fetches):
        return self.session.run([*fetches])

    def trained(self, steps):
        return [float(self.run(self.loss, self.train)[0]) for _ in range(steps)]


@pytest.fixture
def formed(monkeypatch):
    """The plans of the runs that make a step, in their order."""
    seen, original = [], SessionTwin.call

    def call(self, twins, request, run, starts):
        def counted(form):
            if form.targets:
                seen.append(form.plan)
            return run(form)

        return original(self, twins, request, counted, starts)

    monkeypatch.setattr(SessionTwin, "call", call)
    return seen


def accuracy():
    (found,) = [r for r in reports() if r.accuracy is not None]
    return found, found.accuracy


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("between", [plain, dropped, asserted, looped])
def test_the_first_step_is_float32_and_its_plan_is_compared(between, dtype):
    job = Job(between, dtype=dtype)
    losses = job.trained(3)
    report, outcome = accuracy()
    assert report.rewritten
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert unit / 8 < outcome.error < 8 * unit
    assert unit / 8 < outcome.products < 8 * unit
    assert job.run(job.made) == [3]
    if between is plain:
        alone = Job(between, on=False).trained(3)
        assert [a == b for a, b in zip(losses, alone, strict=True)][:2] == [True, False]


def test_no_element_is_taken_twice_and_the_end_of_them_is_the_programs():
    job = Job(from_an_iterator)
    losses = job.trained(3)
    assert accuracy()[1].error is not None
    with pytest.raises(tf.errors.OutOfRangeError):
        job.trained(1)
    alone = Job(from_an_iterator, on=False).trained(3)
    np.testing.assert_allclose(losses, alone, rtol=2.0**-8)
    assert job.run(job.made) == [3]


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("resource", [True, False])
def test_a_step_writes_once_to_what_it_computes_from(resource, reads, trains):
    """TensorFlow says of no write to a reference that it changes something."""
    counts = []

    def counted(hidden):
        kind = {"trainable": False, "use_resource": resource}
        counts.append(v1.get_variable("count", initializer=0.0, **kind))
        added = v1.assign_add(counts[0], 1.0)
        with tf.control_dependencies([added]):
            return hidden * tf.identity(added) if reads else tf.identity(hidden)

    job = Job(counted)
    fetches = [job.loss, job.train] if trains else [job.loss]
    for step in range(1, 4):
        job.run(*fetches)
        assert job.run(counts[0]) == [step]


@pytest.mark.parametrize("faulty", [False, True])
@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_a_step_that_waits_for_writes_is_compared_without_them(
    grouped, resource, faulty
):
    """As one with a batch normalization waits for its `UPDATE_OPS`."""
    counts = []

    def updates():
        kind = {"trainable": False, "use_resource": resource}
        counts.append(v1.get_variable("count", initializer=0.0, **kind))
        added = v1.assign_add(counts[-1], 1.0).op
        return [tf.group(added) if grouped else added]

    between = past_the_range_on_the_way if faulty else plain
    job = Job(between, behind=updates)
    job.trained(3)
    found = accuracy()[1]
    assert (found.error == np.inf) is faulty
    assert job.run(counts[0], job.made) == [3.0, 3]
    assert job.trained(1) == pytest.approx(
        Job(between, behind=updates, on=False).trained(4)[3:], rel=2.0**-8
    )


def test_an_error_in_the_first_step_leaves_the_comparison_to_the_next(formed):
    def checked(hidden):
        small = v1.assert_less(tf.reduce_max(tf.abs(hidden)), 100.0)
        with tf.control_dependencies([small]):
            return tf.identity(hidden)

    job = Job(checked)
    with pytest.raises(tf.errors.InvalidArgumentError):
        job.session.run([job.loss, job.train], {job.x: 1e3 * X})
    job.trained(2)
    assert formed[-2:] == [FLOAT32, "the cheapest"]
    assert accuracy()[1].error is not None
    assert job.run(job.made) == [2]


def test_a_run_of_the_same_gradients_is_judged_by_the_first(formed):
    for between, plan in [
        (plain, "the cheapest"),
        (past_the_range_on_the_way, FLOAT32),
    ]:
        job = Job(between)
        job.trained(2)
        formed.clear()
        job.run(job.train)
        assert formed == [plan]
        assert len([r for r in reports() if r.accuracy is not None]) % 2 == 0


def test_a_callable_is_compared_too():
    job = Job(from_an_iterator)
    step = job.session.make_callable([job.loss, job.train])
    assert len(step()) == 2
    step()
    assert accuracy()[1].error is not None
    assert job.run(job.made) == [2]


def trained_by_hooks(job):
    """As `MonitoredTrainingSession` runs steps: it asks for metadata each time."""
    options, losses = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), []
    for _ in range(4):
        told = v1.RunMetadata()
        fetches = [job.loss, job.train]
        losses.append(job.session.run(fetches, options=options, run_metadata=told)[0])
        assert told.step_stats.dev_stats
    return losses


def trained_by_a_callable(job):
    step = job.session.make_callable([job.loss, job.train], accept_options=True)
    losses = []
    for _ in range(4):
        told = v1.RunMetadata()
        losses.append(step(options=v1.RunOptions(), run_metadata=told)[0])
    return losses


@pytest.mark.parametrize("way", [trained_by_hooks, trained_by_a_callable])
def test_a_run_that_asks_for_metadata_is_compared_too(way):
    """TensorFlow writes to metadata once; the comparison has its own runs."""
    job = Job(plain)
    losses = way(job)
    assert accuracy()[1].error is not None
    assert job.run(job.made) == [4]
    assert np.isfinite(losses).all()


def test_a_monitored_session_trains():
    with tf.Graph().as_default(), amp.mixed_precision_scope(**POLICY):
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", initializer=np.eye(8, dtype="f"))
        loss = tf.reduce_mean(tf.matmul(tf.matmul(tf.constant(X), w), w) ** 2)
        train = v1.train.GradientDescentOptimizer(1e-3).minimize(loss, step)
        hooks, losses = [v1.train.StopAtStepHook(4)], []
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                losses.append(session.run([loss, train])[0])
    assert len(losses) == 4
    assert accuracy()[1].error is not None


def element_of_a_branch(hidden):
    elements = tf.data.Dataset.from_tensor_slices(np.arange(1.0, 4.0, dtype="f"))
    more = v1.data.make_one_shot_iterator(elements)
    training = v1.placeholder_with_default(True, [])
    return hidden * tf.cond(training, more.get_next, lambda: 1.0)


def dropped_in_a_branch(hidden):
    training = v1.placeholder_with_default(True, [])
    return tf.cond(training, lambda: dropped(hidden), lambda: hidden)


@pytest.mark.parametrize("between", [element_of_a_branch, dropped_in_a_branch])
def test_what_a_call_takes_or_draws_cannot_be_fed_and_is_not_compared(between):
    """TensorFlow takes a call apart before it looks at what is fed."""
    v1.enable_control_flow_v2()
    job = Job(between)
    losses = job.trained(3)
    assert accuracy()[1].text == "not checked: node cond (If) cannot run twice"
    if between is element_of_a_branch:
        alone = Job(between, on=False).trained(3)
        np.testing.assert_allclose(losses, alone, rtol=2.0**-8)


@pytest.mark.parametrize("fed", [1, 2])
def test_an_update_that_is_fed_gradients_takes_no_batch_for_a_comparison(fed):
    """What would compute them is no part of the run, nor are markers before them."""
    with tf.Graph().as_default(), amp.mixed_precision_scope(**POLICY):
        elements = tf.data.Dataset.from_tensor_slices(np.arange(1.0, 9.0, dtype="f"))
        element = v1.data.make_one_shot_iterator(elements).get_next()
        w, u = (v1.get_variable(n, initializer=np.eye(8, dtype="f")) for n in "wu")
        loss = tf.reduce_mean(tf.matmul(tf.matmul(X * element, w), u) ** 2)
        descent = v1.train.GradientDescentOptimizer(1e-3)
        pairs = descent.compute_gradients(loss, [w, u])
        gradients = [gradient for gradient, _ in pairs]
        train, taken = descent.apply_gradients(pairs), []
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            found, values = session.run([element, gradients])
            taken.append(found)
            session.run(train, dict(zip(gradients[:fed], values[:fed], strict=True)))
        rest = session.run(element)
    own = 2 // fed  # batches of a step: what is not fed is computed, of one of its own
    assert [*taken, rest] == [1.0 + own * step for step in range(4)]
    assert all(r.accuracy is None or r.accuracy.error is not None for r in reports())


def test_another_thread_does_not_wait_for_a_comparison(formed, monkeypatch):
    compare, losses = RunCheck.compare, []

    def compared(self, *given):
        found = compare(self, *given)
        thread = threading.Thread(target=lambda: losses.extend(job.trained(1)))
        thread.start()
        thread.join()
        return found

    monkeypatch.setattr(RunCheck, "compare", compared)
    job = Job(plain)
    job.trained(3)
    assert len(losses) == 1
    assert formed[1:] == [FLOAT32, FLOAT32, "the cheapest", "the cheapest"]
    assert job.run(job.made) == [4]


def test_a_thread_that_comes_too_late_makes_its_step(formed, monkeypatch):
    """Another one compared between its two questions."""
    job, records = Job(plain), PlanChecks.records

    def raced(self, plan):
        found = records(self, plan)
        if found is None:
            monkeypatch.setattr(PlanChecks, "records", records)
            job.trained(1)
        return found

    job.trained(1)
    monkeypatch.setattr(PlanChecks, "records", raced)
    job.trained(1)
    assert formed[1:] == [FLOAT32, "the cheapest", "the cheapest"]
    assert job.run(job.made) == [3]


@pytest.mark.parametrize(
    ("between", "why"),
    [
        (past_the_range_on_the_way, "off by inf"),
        (past_the_range_of_products, NONE_FINITE),
        (guarded_past_the_range, GUARDED),
    ],
)
def test_a_plan_at_fault_makes_no_step(formed, between, why):
    job = Job(between)
    losses = job.trained(4)
    assert np.isfinite(losses).all()
    assert set(formed) == {FLOAT32}
    (report,) = [r for r in reports() if why in r.verdict]
    assert report.verdict.startswith("left in float32: ")
    assert job.run(job.made) == [4]


def test_what_has_won_and_is_at_fault_has_not_won_for_the_next_run(monkeypatch):
    saved = []
    monkeypatch.setattr(plan_store, "save", lambda key, **new: saved.append(new))
    Job(past_the_range_on_the_way).trained(2)
    assert {"winner": "", "seconds": {}, "ready": {}} in saved


def test_a_race_goes_on_after_the_comparison(formed):
    changed = {"dtype": "bfloat16", "emulate": False, "trial": True, "min_gain": 0.0}
    job = Job(plain, **changed)
    job.trained(12)
    assert formed[1] == FLOAT32
    assert {"the cheapest", FLOAT32} <= set(formed)
    assert accuracy()[1].error is not None
    assert job.run(job.made) == [12]


@pytest.mark.parametrize("race", [False, True])
def test_training_is_compared_ever_later(formed, monkeypatch, race):
    """Every step is one, those that are recorded in float32 as well."""
    monkeypatch.setattr(plan_checks, "AGAIN", 4)
    compared, original = [], RunCheck.compare

    def noted(self, *given):
        compared.append(len(formed))
        return original(self, *given)

    monkeypatch.setattr(RunCheck, "compare", noted)
    changed = {"trial": True, "min_gain": 0.0} if race else {}
    job = Job(plain, dtype="bfloat16", **changed)
    job.trained(160)
    first, *later = compared
    assert first == 2  # after the initializer and one step
    assert len(later) == 3  # 4, 16 and 64 steps after the one before
    if not race:
        assert later == [2 + 1 + 4, 7 + 1 + 16, 24 + 1 + 64]
        assert [formed[at - 1] for at in compared] == [FLOAT32] * 4
        assert formed.count(FLOAT32) == 1 + 4
    assert job.run(job.made) == [160]
    assert accuracy()[1].error is not None


@pytest.mark.parametrize("loses", [False, True])
def test_a_plan_that_loses_gradients_which_another_has_makes_no_step(
    formed, monkeypatch, loses
):
    changed = {"dtype": "bfloat16", "emulate": False, "trial": True, "min_gain": 0.0}
    monkeypatch.setattr(accuracy_rules, "loses", lambda *_: loses)  # planted
    monkeypatch.setattr(entrants, "CLOSE_IF_MODELLED", 100.0)
    job = Job(tf.tanh, **changed)
    job.trained(400)  # others race when one of two is out: late where it is noisy
    assert set(formed) - {"everything", "products only"} == {FLOAT32, "the cheapest"}
    assert loses == {"everything", "products only"}.isdisjoint(formed)
    assert job.run(job.made) == [400]


def test_a_plan_that_trained_weights_find_at_fault_runs_no_more(formed, monkeypatch):
    monkeypatch.setattr(plan_checks, "AGAIN", 4)
    job = Job(plain)
    job.trained(2)
    monkeypatch.setattr(GradientJudge, "is_fine", lambda *_: False)
    monkeypatch.setattr(GradientJudge, "cause", lambda *_: "planted")
    monkeypatch.setattr(GradientJudge, "moved", lambda *_: False)
    job.trained(10)
    assert FLOAT32 not in formed[2:6]
    assert set(formed[6:]) == {FLOAT32}
    (report,) = [r for r in reports() if r.accuracy is not None]
    assert report.verdict == "left in float32: planted"


class Fit:
    """Models that can meet their targets exactly, in one session."""

    def __init__(self, count=1, resource=True):
        random = np.random.RandomState(1)
        x, exact = random.randn(64, 16), random.randn(16, 4)
        self.losses, self.trains, self.evaluations = [], [], []
        with tf.Graph().as_default(), self.scope():
            self.x = v1.placeholder_with_default(x.astype("f"), [64, 16])
            y = tf.constant(x @ exact, tf.float32)
            for _ in range(count):
                w = v1.Variable(tf.zeros([16, 4]), use_resource=resource)
                loss = tf.reduce_mean((tf.matmul(self.x, w) - y) ** 2)
                descent = v1.train.GradientDescentOptimizer(0.5)
                self.losses.append(loss)
                self.trains.append(descent.minimize(loss))
                self.evaluations.append(tf.matmul(self.x, w) - y)
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    @staticmethod
    def scope():
        given = {**POLICY, "dtype": "bfloat16", "loss_scale": "none"}
        return amp.mixed_precision_scope(**given)

    def trained(self, number, steps):
        with self.scope():
            for _ in range(steps):
                ran = self.session.run([self.losses[number], self.trains[number]])
        return float(ran[0])

    def off(self, number):
        with self.scope():
            return float(np.abs(self.session.run(self.evaluations[number])).max())


@pytest.mark.parametrize("resource", [True, False])
def test_what_16_bits_train_no_further_goes_on_in_float32(
    monkeypatch, caplog, resource
):
    """And what evaluates it, but nothing that reads other variables."""
    monkeypatch.setattr(plan_checks, "AGAIN", 4)
    job = Fit(2, resource)
    job.trained(1, 1)
    assert job.off(0) > 1.0  # both are evaluated in 16 bits
    assert job.off(1) > 1.0
    assert job.trained(0, 200) < 1e-11
    assert job.off(0) < 1e-4
    assert job.off(1) > 1e-4
    said = [line for line in caplog.messages if "are noise in 16 bits" in line]
    assert len(said) == 1
    found = [report.verdict for report in reports()]
    assert found.count("left in float32: its gradients were noise in any 16 bits") == 2


def test_without_later_comparisons_it_stands_still_in_16_bits():
    assert Fit().trained(0, 200) > 1e-7


def test_weights_that_change_meanwhile_accuse_no_plan(monkeypatch):
    monkeypatch.setattr(GradientJudge, "moved", lambda *_: True)
    job = Job(past_the_range_on_the_way)
    job.trained(2)
    report, outcome = accuracy()
    assert report.rewritten
    assert "variables may change meanwhile" in outcome.text


@pytest.mark.parametrize("check", [False, "auto"])
def test_what_is_not_to_be_compared_runs_at_once(formed, check):
    """With "auto" that is what is to convert everything."""
    Job(plain, check=check).trained(2)
    assert formed[1:] == ["the cheapest"] * 2
    assert all(report.accuracy is None for report in reports())


def test_gradients_in_a_loop_are_not_compared_and_the_report_says_why():
    def inside(hidden):
        def body(i, h):
            return i + 1, h - tf.gradients(tf.reduce_sum(h**3), h)[0]

        return v1.while_loop(lambda i, h: i < 2, body, [0, hidden])[1]

    Job(inside).trained(2)
    assert accuracy()[1].text.startswith("not checked: ")


def test_a_run_without_gradients_is_compared_by_its_results():
    job = Job(plain)
    for _ in range(3):
        job.run(job.loss, job.made)
    _, outcome = accuracy()
    assert outcome.text == f"results off by {outcome.error:.2g} at most"
    assert 0 < outcome.error < 2.0**-5.5


def test_what_jumps_is_not_compared():
    with tf.Graph().as_default(), amp.mixed_precision_scope(**POLICY):
        x = v1.placeholder_with_default(X, [8, 8])
        found = tf.reduce_mean(tf.cast(tf.matmul(x, X) > 0.0, tf.float32))
        with v1.Session() as session:
            for _ in range(3):
                session.run(found)
    assert accuracy()[1].text.startswith("not checked: it gives nothing to compare")


def test_what_is_no_number_is_fetched_beside_what_is_compared():
    with tf.Graph().as_default(), amp.mixed_precision_scope(**POLICY):
        x = v1.placeholder_with_default(X, [8, 8])
        y = tf.matmul(x, X)
        summary = v1.summary.scalar("mean", tf.reduce_mean(y))
        fetches = [tf.reduce_sum(y), summary, tf.strings.as_string(y), tf.complex(y, y)]
        with v1.Session() as session:
            for _ in range(3):
                found = session.run(fetches)
    assert found[1]
    assert found[2].dtype == object
    assert 0 < accuracy()[1].error < 2.0**-5.5


@pytest.mark.parametrize("looped_in_version_1", [False, True])
def test_results_that_are_all_rounding_stay_float32(looped_in_version_1):
    """In no plan, with clusters or without, though they would race."""

    def network(x):
        y = tf.tanh(tf.matmul(x, X))
        if looped_in_version_1:
            return looped(tf.matmul(y, X))
        return tf.matmul(y, X)

    changed = {"emulate": False, "trial": True, "min_gain": 0.0, "loss_scale": "none"}
    policy = {**POLICY, **changed, "dtype": "bfloat16"}
    with tf.Graph().as_default(), amp.mixed_precision_scope(**policy):
        x = v1.placeholder_with_default(X, [8, 8])
        step = 1e-3
        found = (network(x + step) - network(x - step)) / (2 * step)
        with v1.Session() as session:
            first, *others = [session.run(found) for _ in range(24)]
    for other in others:
        np.testing.assert_array_equal(other, first)
    fates = [plan.fate for report in reports() for plan in report.plans]
    assert len([fate for fate in fates if "off by" in fate]) >= 2


def test_a_comparison_that_fails_leaves_the_job_as_it_is(monkeypatch, caplog):
    def failed(*_):
        raise tf.errors.UnknownError(None, None, "planted")

    monkeypatch.setattr(RunCheck, "compare", failed)
    job = Job(plain, strict=False)
    with pytest.warns(RuntimeWarning, match="not compared with float32"):
        job.trained(3)
    assert job.run(job.made) == [3]
    assert accuracy()[1].text == "not checked: that failed"
