"""`calibration`: every case of the table runs, tiny, and comes to a profile."""

from __future__ import annotations

import time
from typing import Any

import pytest
import tensorflow as tf

from amp.graph_rewrite.cost.device_profile import BOUNDS, Profile, apply
from amp.graph_rewrite.ops import op_table
from amp.integration.measuring import calibration, hardware, stopwatch
from amp.integration.measuring.cases import CALL, Case, cases

pytestmark = pytest.mark.kernels

TINY = cases(1 / 256)


@pytest.fixture(scope="module")
def measured() -> Profile:
    return calibrated("kernels", 60.0, table=TINY)


def calibrated(executor: str, seconds: float, **given: Any) -> Profile:
    points = calibration.calibrate(executor, seconds, **given)
    return Profile(hardware.model(), tf.__version__, executor, tuple(points))


def test_the_table_covers_the_work_that_is_priced() -> None:
    listed = [case for case in TINY if case.op not in ("Cast", CALL)]
    works = {case.work or op_table.TABLE[case.op].work for case in listed}
    # An einsum is priced as a product, and some gradients as others are; no recurrent
    # kernel takes bfloat16. Updates of rows, Unique and losses have no 16-bit form that
    # is compared.
    apart = {
        "einsum",
        "depthwise_grad_input",
        "rnn",
        "free",
        "scatter",
        "unique",
        "loss",
    }
    assert works == set(op_table.WORK) - apart
    assert {case.bound for case in TINY} == set(BOUNDS)
    names = [(case.bound, str(case)) for case in cases(1.0)]
    assert len(names) == len(set(names))


@pytest.mark.thorough
def test_every_case_runs_in_every_type() -> None:
    for case in TINY:
        executor = "xla" if case.op == CALL else "kernels"
        for dtype in calibration.DTYPES[case.op == "Cast" :]:
            runner = calibration._runner(case, dtype, executor)
            assert runner is not None, (case, dtype)
            runner.run()


def test_kernels_are_measured_apart_and_named(measured: Profile) -> None:
    assert measured.executor == "kernels"
    assert measured.device == hardware.model()
    assert measured.tensorflow == tf.__version__
    assert Profile.parse(measured.to_json()) == measured
    assert {point.dtype for point in measured.points} == set(calibration.DTYPES)
    device = apply(measured, hardware.shipped())
    assert device.launch < 1e-3
    assert device.start["bfloat16"]["matmul"] > 0


def test_sizes_are_those_that_the_cost_model_counts() -> None:
    case = next(case for case in TINY if case.bound == "arithmetic")
    (m, k), (_, n) = case.shapes
    runner = calibration._runner(case, "bfloat16", "kernels")
    assert runner is not None
    point = calibration._point(case, "matmul", "bfloat16", runner, 1.0)
    assert point.moved == m * k + k * n + m * n
    assert point.operations == pytest.approx(2.0 * m * k * n)
    assert point.seconds == 1.0 / case.repeat


def test_a_cast_counts_its_elements_in_either_direction() -> None:
    for case in (case for case in TINY if case.op == "Cast"):
        runner = calibration._runner(case, "float16", "kernels")
        assert runner is not None
        (read,), (written,) = runner.operation.inputs, runner.operation.outputs
        types = (read.dtype, written.dtype)
        down = (tf.float32, tf.float16)
        assert types == (down if case.note == "down" else down[::-1])
        point = calibration._point(case, "cast", "float16", runner, 1.0)
        assert point.moved == case.shapes[0][0] * case.shapes[0][1]


def test_the_start_of_a_compiled_call_is_measured_among_kernels() -> None:
    """One call after the other, in float32 only; it is a figure of XLA's profile."""
    table = [case for case in TINY if case.op == CALL]
    assert not calibrated("kernels", 5.0, table=table).points
    profile = calibrated("xla", 5.0, table=table)
    (point,) = profile.points
    assert (point.work, point.bound, point.dtype) == ("call", "start", "float32")
    assert 0 < point.seconds < 0.01
    device = apply(profile, hardware.shipped())
    assert device.under(True).call == point.seconds
    assert "call" not in device.under(True).start.get("float32", {})


def test_xla_runs_chains_and_single_operations() -> None:
    chosen = [c for c in TINY if c.op in ("AddV2", "MatMul", "Cast", "Mean")]
    chosen = [c for c in chosen if "transposed" not in c.note]
    for case in chosen:
        runner = calibration._runner(case, "bfloat16", "xla")
        assert runner is not None, case
        assert runner.repeat == (case.repeat if case.chained else 1)
    given = calibrated("xla", 20.0, table=chosen[:1])
    assert given.executor == "xla"
    assert "XLA calibrated" in apply(given, hardware.shipped()).name


def test_a_product_takes_turns_at_operands_as_in_a_job() -> None:
    """In a step each finds its weights cold; other operations do not."""
    read: list[tuple[str, str]] = []

    def build(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        read.append((a.name, b.name))
        return a @ b

    def seen(bound: str, executor: str = "kernels") -> int:
        read.clear()
        case = Case("MatMul", bound, ((8, 8), (8, 8)), build, 3)
        assert calibration._runner(case, "float32", executor) is not None
        return len(set(read))

    assert seen("bytes") == seen("arithmetic") == 3
    assert seen("start") == seen("bytes", "xla") == 1


def test_a_type_that_is_hopeless_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x)

    case = Case("Relu", "bytes", ((1024, 1024),), slow, 2)
    monkeypatch.setattr(stopwatch, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(stopwatch, "SLOW_RATIO", 1e-9)
    monkeypatch.setattr(calibration, "UNCERTAIN", -1e9)
    again = Case("Relu", "bytes", ((512, 1024),), slow, 2)
    given = calibrated("kernels", 20.0, table=[case, again])
    low = [point for point in given.points if point.dtype != "float32"]
    assert [point.case for point in low] == [str(case)] * 2
    assert all(point.hopeless for point in low)
    assert "hopeless" in str(given)
    assert len(given.points) == 4


def test_a_type_without_a_kernel_is_left_out() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.Betainc(a=x, b=x, x=x)  # float32 and float64 only

    case = Case("Betainc", "bytes", ((64,),), build)
    assert calibration._runner(case, "float32", "kernels") is not None
    assert calibration._runner(case, "bfloat16", "kernels") is None


def test_time_is_kept_and_progress_told() -> None:
    told: list[tuple[str, int, int]] = []
    start = time.perf_counter()
    given = calibrated(
        "kernels", 0.3, table=cases(1.0), progress=lambda *step: told.append(step)
    )
    assert time.perf_counter() - start < 5
    total = len(cases(1.0))
    assert 0 < len({point.case for point in given.points}) < total
    assert told[0] == (str(cases(1.0)[0]), 0, total)
    assert told[-1] == ("", total, total)
