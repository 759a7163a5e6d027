"""A job that stands still in 16 bits goes on in float32, and says so.

Its gradients are not finite any more, or rounding is all that 16 bits leave of them.
"""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.functions import function_checks, function_twins
from amp.integration.functions.function_twins import FunctionTwins
from amp.integration.observing import standstills
from amp.integration.observing.step_probes import StepProbes
from amp.integration.observing.value_copies import ValueCopies
from amp.integration.process import PROCESS
from amp.integration.racing import exemptions
from amp.integration.reports import reports
from amp.loss_scaling import current, stalls, state
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.standstill import LIMIT

# With nothing at random, and a scale whose floor is near.
RULE = amp.loss_scaling.DynamicLossScale(initial=4.0, minimum=1.0)
POLICY = {
    "dtype": "float16",
    "emulate": True,
    "assignment": "all",
    "check": True,
    "loss_scale": RULE,
    "strict": True,
}
X = tf.constant(np.linspace(-1.0, 1.0, 64).reshape(8, 8), tf.float32)


@pytest.fixture(autouse=True)
def unwatched(monkeypatch):
    """Counts are read where a test says so only.

    The thread that reads them runs from the first scaler of the process on.
    """
    look, own = stalls.look, threading.current_thread()
    monkeypatch.setattr(
        stalls, "look", lambda: threading.current_thread() is own and look()
    )


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(amp.messages, "log", lambda form, *v: lines.append(form % v))
    return lines


class Job:
    """Its hidden layer, or gradient, passes float16's range once its gain is large."""

    def __init__(self, forward=True, loops=False):
        self.w = tf.Variable(tf.eye(8), name="w")
        self.gain, self.forward = tf.Variable(1.0, trainable=False), forward
        self.step = tf.function(self._looped if loops else self._update)

    def _update(self, x):
        before, after = self.gain, 1.0
        if not self.forward:
            before, after = after, before
        with tf.GradientTape() as tape:
            hidden = tf.matmul(x, self.w, name="hidden") * before
            loss = tf.reduce_mean((tf.matmul(hidden, self.w) / before - 1.0) ** 2)
            grown = loss * after
        self.w.assign_sub(0.1 * tape.gradient(grown, self.w) / after)
        return loss

    def _looped(self, x):
        loss = tf.constant(0.0)
        for _ in tf.range(1):
            loss = self._update(x)
        return loss


def trained(job, calls, run=None):
    return [float((run or job.step)(X)) for _ in range(calls)]


def stood_still(job, policy=POLICY, run=None):
    """Trains, makes the gain large, and trains for as many calls as it needs."""
    with amp.mixed_precision_scope(**policy):
        trained(job, 4, run)
        job.gain.assign(1e12)
        for _ in range(stalls.LIMIT + LIMIT + 3):
            trained(job, 1, run)
            stalls.look()
        return trained(job, 5, run)


@pytest.mark.parametrize(
    ("forward", "loops", "why"),
    [
        (True, False, "no loss scale helps where mul"),
        (False, False, "cannot fall any more"),
        (False, True, "cannot fall any more"),
    ],
)
def test_a_step_whose_gradients_are_never_finite_goes_on_in_float32(
    said, forward, loops, why
):
    losses = stood_still(Job(forward, loops))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    (line,) = [line for line in said if "runs in float32" in line]
    assert why in line
    found = reports()[-1]
    assert found.verdict == "left in float32: its gradients were not finite any more"
    assert found.trial == "ended: its gradients were not finite any more"


def test_what_is_found_while_a_step_runs_is_known_at_the_next(monkeypatch):
    """The thread that reads the counts may be done before the call that answers is."""
    job, running = Job(), FunctionTwins.call

    def call(self, *args):
        outputs = running(self, *args)
        looked.append(bool(SCALING.standing))
        return outputs

    def observed(self, *args):
        done, outputs = observe(self, *args)
        if done:
            stalls.look()
        return done, outputs

    looked, observe = [], StepProbes.call
    monkeypatch.setattr(FunctionTwins, "call", call)
    monkeypatch.setattr(StepProbes, "call", observed)
    with amp.mixed_precision_scope(**POLICY):
        trained(job, 4)
        job.gain.assign(1e12)
        for _ in range(stalls.LIMIT - 1):
            trained(job, 1)
        stalls.look()  # asks the next steps
        trained(job, 2)
        assert looked[-2:] == [True, True]
        assert np.isfinite(trained(job, 1)[0])


@pytest.mark.parametrize(
    "off", [{"check": False}, {"check": "auto"}, {"trial": False}], ids=str
)
def test_what_is_to_convert_everything_or_to_repeat_stands_still(said, off):
    losses = stood_still(Job(forward=False), {**POLICY, **off})
    assert min(losses) == max(losses)
    assert not [line for line in said if "runs in float32" in line]


def test_a_few_overflows_at_the_smallest_scale_change_nothing(said):
    job = Job(forward=False)
    with amp.mixed_precision_scope(**POLICY):
        trained(job, 3)
        for _ in range(3):
            job.gain.assign(1e12)
            for _ in range(LIMIT - 2):
                trained(job, 1)
                stalls.look()
            job.gain.assign(1.0)
            trained(job, 1)
            stalls.look()
    assert not SCALING.standing
    assert not [line for line in said if "runs in float32" in line]


def test_a_step_by_other_scalers_stays_in_16_bits():
    job, other = Job(), Job()
    with amp.mixed_precision_scope(**POLICY):
        trained(other, 3)
    stood_still(job)
    with amp.mixed_precision_scope(**POLICY):
        trained(other, 3)
    assert sorted(r.rewritten for r in reports()) == [False, True]


def test_what_is_known_of_a_scaler_that_stands_still_goes_with_it():
    job = Job()
    stood_still(job)
    assert SCALING.standing
    del job
    gc.collect()
    state.skipped_steps()  # lets go of scalers whose variables are deleted
    gc.collect()
    assert not SCALING.standing
    assert not current().scalers


def test_what_evaluates_the_same_variables_goes_on_in_float32_too():
    job = Job()
    evaluate = tf.function(lambda x: tf.matmul(x, job.w) * job.gain)
    with amp.mixed_precision_scope(**POLICY):
        evaluate(X)
    stood_still(job)
    with amp.mixed_precision_scope(**POLICY):
        assert np.isfinite(evaluate(X)).all()


def test_replicas_have_handles_of_their_own():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        job = Job()
    losses = stood_still(job, run=lambda x: strategy.run(job.step, [x]))
    assert np.isfinite(losses).all()


class Fit:
    """Learns targets that it can meet exactly, so that float32 trains on and on."""

    def __init__(self, near=None, count=None):
        random = np.random.RandomState(1)
        x, exact = random.randn(64, 16), random.randn(16, 4)
        self.x, self.y = (tf.constant(each, tf.float32) for each in (x, x @ exact))
        first = exact * near if near else np.zeros([16, 4])
        self.w = tf.Variable(first, dtype=tf.float32, name="w")
        self.count = tf.Variable(0) if count is None else count
        self.evaluate = tf.function(self.loss)

    def loss(self, x, y):
        there = tf.cast(self.count >= 0, tf.float32)
        return tf.reduce_mean((tf.matmul(x * there, self.w) - y) ** 2)

    @tf.function
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(x, y)
        self.w.assign_sub(0.5 * tape.gradient(loss, self.w))
        return loss

    def train(self, calls, **policy):
        with amp.mixed_precision_scope(**{**POLICY, "dtype": "bfloat16", **policy}):
            losses = [float(self.step(self.x, self.y)) for _ in range(calls)]
            return losses, float(self.evaluate(self.x, self.y))


SOON = 4  # calls until the second check
ENOUGH = 200  # to come down to float32's rounding
ROUNDED = 1e-7  # the least loss in 16 bits; float32's is under 1e-11


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(function_checks, "AGAIN", SOON)


@pytest.mark.parametrize("trial", ["auto", False])
def test_what_16_bits_train_no_further_goes_on_in_float32(soon, said, trial):
    """And what evaluates it, but nothing that has only a counter in common with it."""
    job = Fit()
    other = Fit(count=job.count)
    other.train(1, trial=trial)
    for _ in range(2):  # both functions of it begin in 16 bits, and are compared
        job.train(1, trial=trial)
    losses, evaluated = job.train(ENOUGH, trial=trial)
    assert max(losses[-1], evaluated) < 1e-11
    told = [line for line in said if "runs in float32" in line]
    assert len(told) == 2
    assert all("are noise in 16 bits" in line for line in told)
    cause = "its gradients were noise in any 16 bits"
    found = [report for report in reports() if not report.rewritten]
    assert [report.verdict for report in found] == [f"left in float32: {cause}"] * 2
    assert [report.trial for report in found] == [f"ended: {cause}"] * 2
    assert len(reports()) == 4
    text = next(str(report.accuracy) for report in found if report.accuracy)
    assert "1 of 1 are noise in any 16 bits" in text


def test_without_the_check_it_stands_still_in_16_bits(soon, said):
    """So that the tests above and below show something."""
    losses, evaluated = Fit().train(ENOUGH, check=False)
    assert min(losses[-1], evaluated) > ROUNDED
    assert not [line for line in said if "runs in float32" in line]


def test_a_check_of_weights_that_were_not_trained_has_no_such_end(soon):
    """Those of a deep network at random weights are noise, and it trains."""
    job = Fit(near=1.0 + 1e-6)
    losses, _ = job.train(SOON)
    assert reports()[0].accuracy.text.endswith("(1 of 1 are noise in any 16 bits)")
    assert losses[-1] > ROUNDED
    losses, _ = job.train(ENOUGH)
    assert losses[-1] < 1e-11


def test_gradients_that_float32_does_not_tell_either_are_no_end(soon, monkeypatch):
    """Planted: other threads train meanwhile, so that float32's come out otherwise."""
    again = ValueCopies.again
    monkeypatch.setattr(
        ValueCopies, "again", lambda self: [2.0 * each for each in again(self)]
    )
    losses, _ = Fit().train(ENOUGH)
    assert losses[-1] > ROUNDED


def test_nothing_is_kept_of_weights_that_are_gone(soon, said):
    job = Fit()
    job.train(ENOUGH)
    assert len(PROCESS.lost) == 1
    del job
    gc.collect()  # the function
    gc.collect()  # what it held
    standstills.lost([])
    assert PROCESS.lost == [[]]


def test_the_next_run_of_a_job_begins_in_16_bits(soon, said, tmp_path, monkeypatch):
    """Its weights are others, and what ended the first run is found in it as well."""
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    # What is to convert everything has no race or record; what decides is stood in for.
    monkeypatch.setattr(exemptions, "why_not", lambda policy: "")
    monkeypatch.setattr(function_twins, "why_not", lambda policy: "no race")
    job = Fit()
    job.train(ENOUGH)
    PROCESS.reset()  # as a new process
    job = Fit()
    assert job.train(SOON)[0][-1] > ROUNDED
    assert [report.rewritten for report in reports()] == [True, True]
    assert job.train(ENOUGH)[0][-1] < 1e-11
