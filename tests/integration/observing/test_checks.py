"""A job's gradients are compared with float32's before its twin runs.

The fault that is planted is the one the rule for losses prevents: a target near 1000
that is subtracted in 16 bits.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.candidates import analysis
from amp.graph_rewrite.normalize.wanted import NotRepeatable
from amp.integration.contests import entrants
from amp.integration.functions import function_plans, function_twins
from amp.integration.observing import accuracy_check, checks
from amp.integration.observing.accuracy import ALL
from amp.integration.observing.accuracy_check import AccuracyCheck
from amp.integration.observing.judge import MOVES
from amp.integration.observing.value_copies import ValueCopies
from amp.integration.process import PROCESS
from amp.integration.racing import exemptions
from amp.policy import Policy

EMULATED = {"dtype": "bfloat16", "emulate": True}


@pytest.fixture
def no_loss_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the loss is computed in 16 bits."""
    monkeypatch.setattr(analysis, "loss", lambda *_: {})


class Regression:
    """A step that learns targets of 1000 and a little from an iterator's batches."""

    def __init__(self, steps: int = 64) -> None:
        tf.random.set_seed(1)
        x = tf.random.normal([steps, 32, 16])
        y = 1000.0 + tf.random.normal([steps, 32, 4])
        self.taken: list[int] = []
        numbers = tf.data.Dataset.range(steps)
        data = tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices((x, y)), numbers)
        self.batches = iter(data)
        self.first = tf.Variable(tf.random.normal([16, 16]))
        self.second = tf.Variable(tf.random.normal([16, 4]))
        self.bias = tf.Variable(tf.fill([4], 1000.0))
        self.count = tf.Variable(0)
        self.gradients: list[np.ndarray] = []

        @tf.function
        def step() -> tuple[tf.Tensor, tf.Tensor]:
            (x, y), number = next(self.batches)
            weights = [self.first, self.second]
            with tf.GradientTape() as tape:
                out = tf.matmul(tf.tanh(x @ self.first), self.second, name="out")
                off = tf.subtract(out + self.bias, y, name="off")
                loss = tf.reduce_mean(tf.square(off))
            grads = tape.gradient(loss, weights)
            for weight, grad in zip(weights, grads, strict=True):
                weight.assign_sub(0.0 * grad)
            self.count.assign_add(1)
            return number, grads[1]

        self.step = step

    def train(self, steps: int, **policy: Any) -> list[np.ndarray]:
        grads = []
        with amp.mixed_precision_scope(**{**EMULATED, **policy}):
            for _ in range(steps):
                number, grad = self.step()
                self.taken.append(int(number))
                grads.append(grad.numpy())
        return grads


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def report() -> Any:
    (found,) = [r for r in amp.reports() if r.accuracy is not None]
    return found


def test_a_plan_as_good_as_products_only_runs_as_it_is() -> None:
    job = Regression()
    job.train(3)
    found = report()
    assert found.accuracy.kept == 0
    assert found.accuracy.error <= ALL * found.accuracy.products
    assert "Tanh" in {d.op for d in found.decisions if d.dtype == "bfloat16"}
    assert not [d for d in found.decisions if d.rule == "accuracy"]
    assert [one.name for one in found.accuracy.worst]
    assert "accuracy     gradients off by" in str(found)


def test_nodes_at_fault_are_found_and_kept_in_float32(no_loss_rule: None) -> None:
    plain = Regression().train(4, check=False, dtype="bfloat16")
    exact = Regression().train(4, deny=("MatMul",))
    job = Regression()
    mended = job.train(4)
    found = report()
    assert found.accuracy.kept > 0
    assert found.accuracy.error <= ALL * found.accuracy.products
    kept = [d for d in found.decisions if d.rule == "accuracy"]
    assert len(kept) == found.accuracy.kept
    assert all(d.dtype == "float32" and "off by" in d.cause for d in kept)
    np.testing.assert_array_equal(mended[0], exact[0])  # the first step is float32
    for step in (1, 2, 3):
        off = distance(mended[step], exact[step])
        assert distance(plain[step], exact[step]) > 2 * ALL * off


def test_every_batch_is_taken_once_and_every_call_is_one_step() -> None:
    job = Regression()
    job.train(6)
    assert job.taken == list(range(6))
    assert int(job.count) == 6


def made_for_checks() -> set[str]:
    names = context_lib.context().list_function_names()
    return {name for name in names if "_check" in name or "_recorded" in name}


def test_what_was_made_for_a_check_is_removed(no_loss_rule: None) -> None:
    """After each step, so that nothing is left of a function that goes meanwhile."""
    before = made_for_checks()
    job = Regression()
    for _ in range(3):
        job.train(1)
        assert made_for_checks() <= before


def test_a_later_run_of_the_job_goes_on_from_what_was_found(
    no_loss_rule: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    # Emulation has no race, and so uses no record; what decides is stood in for.
    monkeypatch.setattr(exemptions, "why_not", lambda policy: "")
    monkeypatch.setattr(function_twins, "why_not", lambda policy: "no race")
    Regression().train(3)
    first = report()
    assert first.accuracy.kept > 0
    PROCESS.reports.clear()
    firsts = []
    monkeypatch.setattr(AccuracyCheck, "first", lambda *_: firsts.append(1))
    Regression().train(3)
    assert not firsts
    second = report()
    assert second.accuracy == first.accuracy
    assert [d.op for d in second.decisions if d.rule == "accuracy"] == [
        d.op for d in first.decisions if d.rule == "accuracy"
    ]


def test_training_is_checked_once_more(
    monkeypatch: pytest.MonkeyPatch, no_loss_rule: None
) -> None:
    """Planted: a plan that was fine at the first step, and is not any more."""
    monkeypatch.setattr(checks, "AGAIN", 3)
    monkeypatch.setattr("amp.integration.functions.function_checks.AGAIN", 3)
    job = Regression()
    honest = accuracy_check.AccuracyCheck.compare
    compared = []

    def first_is_fine(self: accuracy_check.AccuracyCheck) -> Any:
        compared.append(int(job.count))
        found = honest(self)
        if len(compared) == 1:
            return accuracy_check.Checked(found.outcome, None, found.prepared)
        return found

    monkeypatch.setattr(accuracy_check.AccuracyCheck, "compare", first_is_fine)
    job.train(12)
    assert compared == [1, 5]
    assert job.taken == list(range(12))
    assert [d for d in report().decisions if d.rule == "accuracy"]


@pytest.mark.parametrize("known", [False, True])
def test_checks_come_ever_later(
    monkeypatch: pytest.MonkeyPatch, known: bool, tmp_path: Path
) -> None:
    """In the next run of the job the first two are known, and the others come."""
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(exemptions, "why_not", lambda policy: "")  # as above
    monkeypatch.setattr(function_twins, "why_not", lambda policy: "no race")
    monkeypatch.setattr("amp.integration.functions.function_checks.AGAIN", 2)
    monkeypatch.setattr("amp.integration.functions.function_checks.FURTHER", 3)
    compared: list[int] = []
    honest = AccuracyCheck.compare

    def compare(self: AccuracyCheck) -> Any:
        compared.append(int(job.count))
        return honest(self)

    monkeypatch.setattr(AccuracyCheck, "compare", compare)
    # Recorded by one step, compared before the next, and counted from there.
    steps = [1, 1 + 2 + 1, 4 + 6 + 1, 11 + 18 + 1]
    job = Regression()
    job.train(steps[1] + 2 if known else steps[-1] + 2)
    assert compared == (steps[:2] if known else steps)
    if known:
        PROCESS.reset()
        compared.clear()
        job = Regression()
        job.train(30)
        assert compared == [6, 6 + 18 + 1]


@pytest.mark.parametrize("repeats", [True, False])
def test_what_the_first_check_found_stays_in_the_report(
    repeats: bool, monkeypatch: pytest.MonkeyPatch, no_loss_rule: None
) -> None:
    """Where the second finds nothing more, or cannot be made."""
    monkeypatch.setattr("amp.integration.functions.function_checks.AGAIN", 3)
    honest, found = AccuracyCheck.compare, []

    def compare(self: AccuracyCheck) -> Any:
        if found and not repeats:
            found.append(None)
            raise NotRepeatable("planted")
        found.append(honest(self))
        return found[-1]

    monkeypatch.setattr(AccuracyCheck, "compare", compare)
    Regression().train(8)
    first, second = found
    accuracy = report().accuracy
    assert accuracy.kept == first.outcome.kept > 0
    assert accuracy.kept == sum(d.rule == "accuracy" for d in report().decisions)
    assert accuracy.text == (second or first).outcome.text


class Looped(Regression):
    """Takes several steps a call, in a loop, or as Keras does; returns the last's."""

    def __init__(self, trips: int, branch: bool = False) -> None:
        super().__init__()
        one = self.step.python_function

        @tf.function
        def steps() -> tuple[tf.Tensor, tf.Tensor]:
            number, grad = tf.constant(0, tf.int64), tf.zeros([16, 4])
            for _ in tf.range(trips):
                if not branch or tf.reduce_sum(grad) > -1e30:
                    number, grad = one()
            return number, grad

        self.step = steps


@pytest.mark.parametrize("branch", [False, True])
def test_steps_in_a_loop_are_checked_once_the_function_is_called_again(
    branch: bool, no_loss_rule: None
) -> None:
    """The second call runs in float32, is recorded, and is the step as ever."""
    plain = Looped(2, branch).train(6, check=False)
    exact = Looped(2, branch).train(6, deny=("MatMul",))
    job = Looped(2, branch)
    job.train(1)
    assert [r.accuracy for r in amp.reports() if r.accuracy] == []
    mended = [*job.train(5)]
    assert job.taken == [1, 3, 5, 7, 9, 11]  # the last of each call, none twice
    assert int(job.count) == 12
    found = report()
    assert found.accuracy.kept > 0
    assert found.accuracy.error <= ALL * found.accuracy.products
    np.testing.assert_array_equal(mended[0], exact[1])  # in float32
    for step in (2, 3, 4, 5):
        off = distance(mended[step - 1], exact[step])
        assert distance(plain[step], exact[step]) > 2 * ALL * off


def test_a_call_of_many_steps_is_not_made_in_float32_to_be_recorded(
    no_loss_rule: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an epoch in one call, the second of which float32 would make, unoptimized."""
    monkeypatch.setattr("amp.integration.functions.function_checks.LONGEST", 0.0)
    plain = Looped(2).train(4, check=False)
    found = Looped(2).train(4)
    np.testing.assert_array_equal(found, plain)
    assert report().accuracy.text.startswith("not checked: a call of several steps")


def test_a_call_that_always_ends_with_the_data_is_recorded_twice_at_most() -> None:
    """As of `while True: step(next(batches))`; else float32 would run for good."""

    job, recorded = Looped(1000), []
    with pytest.MonkeyPatch.context() as patch:
        first = AccuracyCheck.first

        def noted(self: AccuracyCheck, call: Any) -> Any:
            recorded.append(call)
            return first(self, call)

        patch.setattr(AccuracyCheck, "first", noted)
        for _ in range(6):
            with pytest.raises(tf.errors.OutOfRangeError):
                job.train(1)
    assert len(recorded) == 2


def test_what_was_recorded_goes_with_the_function(no_loss_rule: None) -> None:
    for _ in range(3):
        job = Looped(2)
        job.train(2)  # recorded, and not compared
        del job
        gc.collect()
    names = list(PROCESS.left)
    assert len(names) == 1  # the others went at the next check
    job = Looped(2)
    job.train(3)
    assert not PROCESS.left


def test_a_recorded_call_draws_numbers_of_its_own() -> None:
    tf.random.set_seed(1)
    weight, drawn = tf.Variable(tf.ones([16, 16])), tf.Variable(tf.zeros([2]))

    @tf.function
    def steps(x: tf.Tensor) -> None:
        for _ in tf.range(2):
            noise = tf.random.normal([2], seed=3)
            drawn.assign(noise)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.tanh(x @ weight) @ weight) + noise[0]
            weight.assign_sub(0.0 * tape.gradient(loss, weight))

    found = []
    with amp.mixed_precision_scope(**EMULATED):
        for _ in range(3):
            steps(tf.ones([32, 16]))
            found.append(float(drawn[0]))
    assert report().accuracy.error is not None
    assert len(set(found)) == 3


def test_a_loop_without_a_trip_has_no_gradients_to_compare() -> None:
    job = Looped(0)
    with amp.mixed_precision_scope(**EMULATED, strict=True):
        for _ in range(checks.MOST + 2):
            job.step()
    text = "not checked: nothing was computed at the calls that were recorded"
    assert report().accuracy.text == text
    assert int(job.count) == 0


def behind_an_if(job: Regression, first: int, every: int) -> tf.Variable:
    """Has a step taken from a call on, and then now and then; returns their count."""
    one, seen = job.step.python_function, tf.Variable(0)

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        seen.assign_add(1)
        if seen >= first and (seen - first) % every == 0:
            return one()
        return tf.constant(-1, tf.int64), tf.zeros([16, 4])

    job.step = step
    return seen


@pytest.mark.parametrize("first", [20, 150])
def test_a_step_behind_an_if_is_checked_once_it_is_taken(
    first: int, no_loss_rule: None
) -> None:
    """As of an agent that plays first, and trains now and then."""
    before = made_for_checks()
    job = Regression()
    seen = behind_an_if(job, first, every=9)
    job.train(100)
    if first > 100:
        assert report().accuracy.text.startswith("not checked: nothing was computed")
    assert made_for_checks() <= before
    job.train(60)
    assert report().accuracy.kept > 0
    taken = [number for number in job.taken if number >= 0]
    assert int(seen) == 160
    assert taken == list(range(len(range(first, 161, 9))))


def test_a_function_that_is_recorded_call_by_call_goes_with_the_check() -> None:
    before = made_for_checks()
    job = Regression()
    behind_an_if(job, first=100, every=1)
    job.train(4)
    assert made_for_checks() - before
    del job
    gc.collect()
    assert made_for_checks() <= before


def test_a_step_whose_gradients_cannot_be_repeated_says_so() -> None:
    """It is taken in either branch, each with a gradient of its own."""
    weight = tf.Variable(tf.ones([8, 8]))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ weight) @ weight)
        (grad,) = tape.gradient(loss, [weight])
        weight.assign_sub(0.1 * grad)
        return loss

    @tf.function
    def either(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: step(x), lambda: step(-x))

    with amp.mixed_precision_scope(**EMULATED):
        for _ in range(3):
            either(tf.ones([4, 8]))
    assert report().accuracy.text.startswith("not checked: its gradients are computed")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"check": False}, "check=False, AMP_CHECK=0"),
        ({"assignment": "all"}, "assignment='all' is to convert everything"),
        ({"assignment": "all", "check": True}, ""),
        ({}, ""),
    ],
)
def test_it_is_said_why_nothing_is_checked(fields: dict[str, Any], reason: str) -> None:
    assert accuracy_check.why_not(Policy(**fields)) == reason


def test_without_checks_the_twin_runs_from_the_first_call_on() -> None:
    job = Regression()
    grads = job.train(2, check=False)
    exact = Regression().train(2, deny=("MatMul",))
    assert not np.array_equal(grads[0], exact[0])
    assert not [r for r in amp.reports() if r.accuracy]


def test_threads_may_call_during_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check goes on once every other thread has made its calls."""
    job, honest = Regression(), ValueCopies._run
    threads: list[threading.Thread] = []

    def run(self: ValueCopies, function: bytes, scale: float) -> Any:
        if not threads:
            threads.extend(threading.Thread(target=job.train, args=[4]) for _ in "abc")
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60.0)
            assert not any(thread.is_alive() for thread in threads)
        return honest(self, function, scale)

    monkeypatch.setattr(ValueCopies, "_run", run)
    job.train(4)
    assert report().accuracy.error <= ALL * report().accuracy.products
    assert sorted(job.taken) == list(range(16))
    assert int(job.count) == 16


@pytest.mark.parametrize(("dtype", "after"), [("bfloat16", 2), ("float16", 1)])
def test_nothing_is_accused_of_what_other_threads_change(
    dtype: str,
    after: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Several threads may train the same variables (Hogwild), also during a check.

    A change before the plan's copy looks as if the plan made it; in float16 one before
    the copy without a scale as if the scale did.
    """
    job, honest, runs = Regression(), ValueCopies._run, []

    def run(self: ValueCopies, function: bytes, scale: float) -> Any:
        found = honest(self, function, scale)
        runs.append(scale)
        if len(runs) == after:
            job.second.assign(1.2 * job.second)
        return found

    monkeypatch.setattr(ValueCopies, "_run", run)
    job.train(3, dtype=dtype)
    assert report().accuracy.text == f"not checked: {MOVES}"
    assert report().accuracy.kept == 0
    assert not [text for text in caplog.messages if " rests: " in text]


def test_a_thread_may_race_while_the_plan_at_fault_is_made_anew(
    no_loss_rule: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes plans of the race that is about to be given up."""
    job, honest = Regression(), function_twins.FunctionPlans.make
    policy = {"trial": True, "emulate": False, "assignment": "all", "check": True}
    raised: list[BaseException] = []
    anew: list[bool] = []

    def work() -> None:
        try:
            job.train(12, strict=True, **policy)
        except BaseException as e:
            raised.append(e)

    def make(self: Any, *args: Any) -> Any:
        if self._kept and not anew:
            anew.append(True)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        return honest(self, *args)

    monkeypatch.setattr(function_twins.FunctionPlans, "make", make)
    monkeypatch.setattr(entrants, "why_not_made", lambda *_: "")
    job.train(3, strict=True, **policy)
    assert anew
    assert not raised
    assert sorted(job.taken) == list(range(15))
    assert int(job.count) == 15


def goes_on_after(interrupted: list[Any]) -> None:
    """A job that is interrupted, and begun again, takes all batches and is checked."""
    job = Regression()
    with pytest.raises(KeyboardInterrupt):
        job.train(4)
    assert interrupted
    job.train(4)
    assert job.taken == list(range(5))
    assert report().accuracy.kept > 0


def test_a_comparison_that_is_interrupted_is_made_at_the_next_call(
    monkeypatch: pytest.MonkeyPatch, no_loss_rule: None
) -> None:
    """Who stops a notebook's cell there, and runs it again, loses no check."""
    compare, interrupted = AccuracyCheck.compare, []

    def once(check: AccuracyCheck) -> Any:
        if not interrupted:
            interrupted.append(check)
            check._copies.drop()
            raise KeyboardInterrupt
        return compare(check)

    monkeypatch.setattr(AccuracyCheck, "compare", once)
    goes_on_after(interrupted)


def test_what_a_comparison_asks_for_survives_an_interruption(
    monkeypatch: pytest.MonkeyPatch, no_loss_rule: None
) -> None:
    """The plan at fault does not train on where making another was interrupted."""
    make, interrupted = function_plans.FunctionPlans.make, []

    def once(self: Any, *args: Any) -> Any:
        if self._kept and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return make(self, *args)

    monkeypatch.setattr(function_plans.FunctionPlans, "make", once)
    goes_on_after(interrupted)


def test_a_plan_is_made_anew_though_what_was_found_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch, no_loss_rule: None
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(accuracy_check.Checked, "noted_in", broken)
    monkeypatch.setattr(function_twins.FunctionChecks, "keep", broken)
    job = Regression()
    with pytest.warns(RuntimeWarning, match="found out about function .* is not told"):
        job.train(3)
    assert job.taken == [0, 1, 2]
    decisions = [one.rule for found in amp.reports() for one in found.decisions]
    assert "accuracy" in decisions


def test_what_is_kept_depends_on_no_clock_where_runs_repeat(
    monkeypatch: pytest.MonkeyPatch, no_loss_rule: None
) -> None:
    """Also by TensorFlow's own switch, under which "auto" has no race."""
    asked = []
    monkeypatch.setattr(
        exemptions,
        "repeats",
        lambda policy: asked.append(policy) or True,
    )
    monkeypatch.setattr(accuracy_check, "SECONDS", 0.0)
    monkeypatch.setattr(accuracy_check, "STEPS", 0.0)
    Regression().train(4)
    assert asked
    assert report().accuracy.kept > 0


def test_a_check_that_fails_leaves_the_plan_and_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(accuracy_check.AccuracyCheck, "compare", broken)
    job = Regression()
    with pytest.warns(RuntimeWarning, match="is not compared with float32.*planted"):
        job.train(3)
    assert job.taken == [0, 1, 2]
    assert amp.reports()[-1].nodes_low > 0
