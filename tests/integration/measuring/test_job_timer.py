"""`feedback`: a job plans from measurements of its own shapes, and the next one too."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled

import amp
from amp.graph_rewrite.cost import shipped_devices
from amp.integration.contests import plan_store
from amp.integration.measuring import (
    hardware,
    job_timer,
    measuring_slices,
    operation_timer,
    stored_times,
)
from amp.integration.measuring.job_timer import Noted
from amp.integration.process import PROCESS
from tests.integration.measuring.test_operation_timer import instances, made

pytestmark = pytest.mark.kernels

ROOT = Path(__file__).parents[3]
POLICY = {"dtype": "bfloat16", "strict": True, "min_gain": 0.0}
JOB = """
import amp, tensorflow as tf
from amp.integration.measuring.job_timer import Noted
from amp.integration.process import PROCESS
@tf.function
def step(x, w):
    return tf.reduce_sum(tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, w)), w)), 0)
from amp.integration.measuring import measuring_slices
measuring_slices.SHARE = measuring_slices.SHARE_IN_DOUBT = 1e6
measuring_slices.MOST_SECONDS = 20.0  # the whole budget, on a busy machine too
with amp.mixed_precision_scope(dtype="bfloat16", min_gain=0.0, strict=True):
    for _ in range(20):
        step(tf.ones([256, 512]), tf.ones([512, 512]))
again = tf.function(step.python_function)
with amp.mixed_precision_scope(dtype="bfloat16", min_gain=0.0, strict=True):
    again(tf.ones([256, 512]), tf.ones([512, 512]))
*_, report = amp.reports()
print(f"spent {PROCESS.measuring.spent:.3f} share {report.measured_share:.3f}",
      f"seconds {report.seconds32:.9f}")
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Any) -> Path:
    """A cache and a budget of its own."""
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("AMP_TUNE_BUDGET")
    # Slices of measuring are due after every call.
    for name in ("SHARE", "SHARE_IN_DOUBT"):
        monkeypatch.setattr(measuring_slices, name, 1e6)
    return tmp_path


def products() -> Any:
    """A new function, so that a call of it is its first."""

    @tf.function(autograph=False)
    def step(x: Any, w: Any) -> Any:
        return tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, w)), w))

    return step


def first_call(calls: int = 1, **fields: Any) -> amp.Report:
    """The report after the first call, or after so many, of a function not known yet.

    What an earlier one's race has found out, if it ended, would be taken over.
    """
    shutil.rmtree(plan_store.path("").parent, ignore_errors=True)
    step = products()
    with amp.mixed_precision_scope(**POLICY, **fields):
        for _ in range(calls):
            step(tf.ones([256, 512]), tf.ones([512, 512]))
    return amp.reports()[-1]


def measured_job(**fields: Any) -> None:
    """A job of a few calls, so that its operations are measured between them."""
    first_call(20, **fields)


def test_a_job_measures_and_keeps_and_the_next_function_plans_from_it() -> None:
    assert first_call(tune_budget=20.0).measured_share == 0.0
    assert PROCESS.measuring.spent == 0.0
    measured_job(tune_budget=20.0)
    spent = PROCESS.measuring.spent
    assert 0 < spent < 20
    report = first_call(tune_budget=20.0)
    assert report.measured_share > 0.8
    times = stored_times.load()
    (product,) = (k for k in times if k.startswith("MatMul *256x512 *512x512"))
    assert report.seconds32 >= 2 * times[product][0]
    measured_job(tune_budget=20.0)
    assert PROCESS.measuring.spent == spent


def test_a_glance_measures_the_most_telling_of_each_op_and_keeps_nothing() -> None:
    """Within a part of what the first step took; and nothing where times are known."""
    given = settled(assignment="cost", tune_budget=20.0)
    wanted = [
        dataclasses.replace(made(op, (rows, 256)), key=f"{op} {rows}")
        for op in ("Relu", "Neg")
        for rows in (8192, 4096)  # far longer than an idle call, on a busy machine too
    ]
    times = job_timer.glancing(given, 10.0, "f")(wanted)
    assert list(times) == [wanted[0].key, wanted[2].key]
    spent = PROCESS.measuring.spent
    assert 0.0 < spent <= job_timer.GLANCE * 10.0 + 0.5  # the last call may exceed it
    assert job_timer.stored(wanted) == {} == stored_times.load()
    job_timer.measuring(given, "f")(wanted[1:2])
    job_timer.measuring(given, "f")(wanted[3:])
    spent = PROCESS.measuring.spent
    known = job_timer.glancing(given, 10.0, "f")(wanted)
    assert list(known) == [wanted[1].key, wanted[3].key]
    assert PROCESS.measuring.spent == spent


def test_the_first_of_each_op_are_measured_first_and_then_what_takes_most() -> None:
    shares = (("Relu", 8), ("Relu", 4), ("Relu", 2), ("Neg", 2), ("Neg", 1), ("Abs", 1))
    wanted = [
        dataclasses.replace(made(op, (4,)), key=str(place), predicted=(share, share))
        for place, (op, share) in enumerate(shares)
    ]
    noted = Noted(settled(assignment="cost"))
    noted.wanted = wanted
    assert [one.key for one in noted.missing()] == ["0", "3", "5", "1", "2", "4"]
    assert [one.key for one in noted.missing(0.6)] == ["0", "3", "5", "1"]


def test_a_glance_leaves_most_of_the_budget(monkeypatch: Any) -> None:
    """However long the first step took, as one does that waits for its data."""
    asked: list[float] = []
    measure = operation_timer.measure

    def noted(wanted: Any, seconds: float) -> Any:
        asked.append(seconds)
        return measure(wanted, seconds)

    monkeypatch.setattr(operation_timer, "measure", noted)
    given = settled(assignment="cost", tune_budget=4.0)
    job_timer.glancing(given, 600.0, "f")([made("Relu", (512, 1024))])
    assert asked == [pytest.approx(job_timer.GLANCE_OF_BUDGET * 4.0)]


@pytest.mark.parametrize(("seconds", "budget"), [(0.0, 20.0), (10.0, 0.0)])
def test_no_glance_without_a_first_step_or_a_budget(
    seconds: float, budget: float
) -> None:
    given = settled(assignment="cost", tune_budget=budget)
    assert job_timer.glancing(given, seconds, "f")([made("Relu", (512, 1024))]) == {}
    assert PROCESS.measuring.spent == 0.0


@pytest.mark.parametrize(("low", "converts"), [(2.0, False), (0.2, True)])
def test_a_plan_by_figures_that_do_not_fit_is_not_made(
    low: float, converts: bool, monkeypatch: Any
) -> None:
    """The device is said to compute 16 bits 4 times as fast; a glance knows better."""
    monkeypatch.setattr(hardware, "device", lambda *_: shipped_devices.CPU_AMX)
    monkeypatch.setattr(
        operation_timer,
        "measure",
        lambda wanted, *_: {one.key: (1e-2, low * 1e-2) for one in wanted},
    )
    for name in ("SHARE", "SHARE_IN_DOUBT"):
        monkeypatch.setattr(measuring_slices, name, 0.0)
    weights = tf.Variable(tf.ones([512, 512]))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(tf.nn.relu(tf.matmul(x, weights)), weights))
        weights.assign_sub(1e-6 * tape.gradient(loss, weights))
        return loss

    with amp.mixed_precision_scope(**POLICY, tune_budget=20.0):
        for _ in range(3):
            step(tf.ones([256, 512]))
    report = max(amp.reports(), key=lambda report: report.nodes_total)
    assert (report.trial != "") == converts  # a plan races, or there is none
    assert bool(report.nodes_low) == converts


def test_without_a_budget_what_is_stored_still_counts() -> None:
    measured_job(tune_budget=0)
    assert stored_times.load() == {}
    measured_job(tune_budget=20.0)
    stored = stored_times.load()
    PROCESS.measuring.times.clear()
    assert first_call(tune_budget=0).measured_share > 0.8
    assert stored_times.load() == stored


def test_what_was_measured_under_other_settings_does_not_count(
    monkeypatch: Any,
) -> None:
    """TensorFloat-32 may be switched off in the middle of a job."""
    one, here = made("Relu", (512, 1024)), "a GPU"
    monkeypatch.setattr(hardware, "model", lambda: here)
    timer = job_timer.measuring(settled(assignment="cost", tune_budget=20.0), "f")
    assert timer([one]).keys() == {"Relu"}
    assert job_timer.stored([one]).keys() == {"Relu"}
    here = "a GPU, TF32 off"
    assert job_timer.stored([one]) == {}
    assert timer([one]).keys() == {"Relu"}


@pytest.mark.parametrize("budget", ["0", "0.02"])
def test_the_variable_bounds_every_policy(budget: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("AMP_TUNE_BUDGET", budget)
    measured_job(tune_budget=20.0)
    assert PROCESS.measuring.spent == 0.0


def test_a_budget_is_one_for_all_functions() -> None:
    given = settled(assignment="cost", tune_budget=0.4)
    many = [made("Relu", (512, 1000 + i)) for i in range(500)]
    start = time.perf_counter()
    for begin in range(0, 500, 50):
        job_timer.measuring(given, "f")(many[begin : begin + 50])
    assert time.perf_counter() - start < 2.0
    assert 0.3 < PROCESS.measuring.spent < 1.5


def test_what_a_plan_weighs_no_cost_for_is_not_measured() -> None:
    measured_job(assignment="all", trial=True, tune_budget=20.0)
    measured_job(emulate=True, tune_budget=20.0)
    assert PROCESS.measuring.spent == 0.0


def test_what_cannot_be_measured_is_tried_once(monkeypatch: Any) -> None:
    bad = [made("MatMul", (3, 4), (5, 6))]
    timer = job_timer.measuring(settled(assignment="cost"), "f")
    assert timer(bad) == {}
    monkeypatch.setattr(operation_timer, "measure", None)
    assert timer(bad) == {}


def test_nothing_that_goes_wrong_stops_the_job(monkeypatch: Any) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("no clock")

    monkeypatch.setattr(operation_timer, "measure", broken)
    with pytest.warns(RuntimeWarning, match="cannot be measured.*no clock"):
        measured_job()


def test_a_directory_that_cannot_be_written_costs_the_next_job_only(
    monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setenv("AMP_CACHE_DIR", "/dev/null/nowhere")
    measured_job(tune_budget=20.0)
    assert first_call(tune_budget=20.0).measured_share > 0.8
    assert "cannot be stored" in caplog.text


def test_what_takes_long_is_told_before_and_after_and_is_no_warning(
    monkeypatch: Any, capsys: Any, caplog: Any
) -> None:
    measured_job(tune_budget=20.0)
    assert "amp: measured" not in capsys.readouterr().err
    monkeypatch.setattr(job_timer, "NOTICED_SECONDS", 0.0)
    timer = job_timer.measuring(settled(assignment="cost"), "train_step")
    timer(instances(640))
    before, after = capsys.readouterr().err.splitlines()
    pattern = r"amp: measuring \d+ operations of train_step before its first call, for"
    assert re.match(pattern, before)
    pattern = r"amp: measured \d+ operations of train_step in \d+\.\d s; kept in /"
    assert re.match(pattern, after)
    assert not caplog.records


def test_explain_plans_from_what_is_stored_and_measures_nothing() -> None:
    fn, args = products(), (tf.ones([256, 512]), tf.ones([512, 512]))
    policy = amp.Policy(**POLICY)
    assert amp.explain(fn, *args, policy=policy).measured_share == 0.0
    measured_job(tune_budget=20.0)
    spent = PROCESS.measuring.spent
    assert amp.explain(fn, *args, policy=policy).measured_share > 0.8
    assert PROCESS.measuring.spent == spent


def test_inside_fit_the_same_numbers_come_out() -> None:
    """Measuring in the middle of a job changes no random number and no datum."""

    def history(tune_budget: float) -> list[float]:
        keras.utils.set_random_seed(7)
        layers = [keras.layers.Dense(512, "relu"), keras.layers.Dropout(0.5)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=[128, 512]).astype(np.float32)
        # A gain that cannot be reached: whatever is measured, float32 runs.
        fields = POLICY | {"min_gain": 0.999}
        with amp.mixed_precision_scope(**fields, tune_budget=tune_budget):
            return model.fit(x, x[:, :1], epochs=5, verbose=0).history["loss"]

    plain = history(0.0)
    assert PROCESS.measuring.spent == 0.0
    measured = history(20.0)
    assert PROCESS.measuring.spent > 0.0
    assert measured == plain
    assert any(key.startswith("MatMul *") for key in stored_times.load())


@pytest.mark.slow
@pytest.mark.processes
def test_the_next_process_plans_from_the_first_ones_measurements(cache: Path) -> None:
    def run(**variables: str) -> dict[str, float]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        done = subprocess.run(
            [sys.executable, "-c", JOB], env=environment, text=True, capture_output=True
        )
        words = done.stdout.split()
        assert len(words) == 6, done.stderr
        return dict(zip(words[::2], map(float, words[1::2]), strict=True))

    first, second = run(AMP_TUNE_BUDGET="20"), run(AMP_TUNE_BUDGET="0")
    assert first["spent"] > 0
    assert second["spent"] == 0
    assert second["share"] == first["share"] > 0.8
    assert second["seconds"] == pytest.approx(first["seconds"], rel=1e-6)
