"""`stopwatch`: times what is written, in turn, and leaves no trace in the process."""

from __future__ import annotations

import dataclasses
import time
import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.cost.device_profile import EXECUTORS
from amp.integration.measuring import stopwatch


def square(x: Any) -> Any:
    return tf.matmul(x, x)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_call_that_does_nothing_is_a_call(executor: str) -> None:
    assert stopwatch.idle(executor).seconds() > 0


def test_options_of_the_process_and_the_thread_stay_as_they_were() -> None:
    def state() -> tuple[Any, ...]:
        context = context_lib.context()
        options = context.function_call_options
        return options, options.config_proto_serialized, context.config

    before = state()
    with stopwatch.alone():
        stopwatch.idle("kernels").run()
    assert state() == before
    assert state()[0] is before[0]


def test_what_is_alike_is_not_merged() -> None:
    x = stopwatch.operand((256, 256), "float32")

    def often(x: Any) -> Any:
        last = tf.no_op()
        for _ in range(20):
            with tf.control_dependencies([last]):
                last = square(x).op
        return last.outputs[0]

    one = stopwatch.ready(square, [x], ("MatMul", 1), "kernels")
    many = stopwatch.ready(often, [x], ("MatMul", 20), "kernels")
    assert min(many.seconds() for _ in range(5)) > 5 * min(
        one.seconds() for _ in range(5)
    )


def test_what_is_timed_gets_no_twin() -> None:
    x = stopwatch.operand((64, 64), "float32")
    with amp.mixed_precision_scope(dtype="bfloat16", assignment="all"):
        stopwatch.ready(square, [x], ("MatMul", 1), "kernels").run()
    assert amp.reports() == []


def test_inside_a_graph_and_a_device_scope_it_is_alone() -> None:
    found = []

    @tf.function(autograph=False)
    def traced() -> None:
        with tf.device("/GPU:7"), stopwatch.alone():
            assert tf.executing_eagerly()
            found.append(stopwatch.idle("kernels").seconds())

    traced.get_concrete_function()
    assert found[0] > 0


def test_rounds_are_taken_in_turn_and_idle_calls_taken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    now = [0.0]
    clock = types.SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(stopwatch, "time", clock)

    def runner(name: str, seconds: float) -> stopwatch.Runner:
        def run() -> None:
            calls.append(name)
            now[0] += seconds

        return stopwatch.Runner(run, 1, None, 0.0)

    runners = {"a": runner("a", 0.02), "b": runner("b", 0.03)}
    # At once: only the least rounds.
    times = stopwatch.rounds(runners, runner("", 0.01), now[0])
    assert calls == ["", "a", "b"] * stopwatch.LEAST_ROUNDS
    assert times["a"] == pytest.approx(0.01)
    assert times["b"] == pytest.approx(0.02)
    calls.clear()
    late = now[0] + 60
    stopwatch.rounds(runners, runner("", 0.0), late, lambda times: len(times["a"]) > 3)
    assert len(calls) == 3 * 4


def test_operands_are_normal_numbers_and_no_state_is_used() -> None:
    before = np.random.get_state()[1].copy()
    for dtype in ("float32", "bfloat16", "float16"):
        values = tf.cast(stopwatch.operand((300, 300), dtype), tf.float32).numpy()
        assert values.min() >= 0.5
        assert values.max() <= 1.0
        assert np.unique(values).size > 100
    assert (np.random.get_state()[1] == before).all()


@dataclasses.dataclass
class Gpu:
    """A device that only notes what it is to do, and does it when it is waited for."""

    now: float = 0.0
    pending: float = 0.0

    def call(self, *args: Any) -> None:
        self.now += 0.001
        self.pending += 1.0

    def wait(self) -> None:
        self.now += self.pending
        self.pending = 0.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(stopwatch, "_kind", lambda: "GPU")
    monkeypatch.setattr(tf.test.experimental, "sync_devices", made.wait)
    clock = types.SimpleNamespace(perf_counter=lambda: made.now)
    monkeypatch.setattr(stopwatch, "time", clock)
    calls = types.SimpleNamespace(execute=made.call)
    monkeypatch.setattr(stopwatch, "execute", calls)
    return made


def test_a_call_of_a_gpu_takes_until_the_gpu_is_done(gpu: Gpu) -> None:
    x = stopwatch.operand((8, 8), "float32")
    runner = stopwatch.ready(square, [x], ("MatMul", 1), "kernels")
    assert runner.first == pytest.approx(1.001)
    assert [runner.seconds() for _ in range(3)] == pytest.approx([1.001] * 3)


def test_what_the_gpu_was_asked_before_is_no_part_of_the_first_call(gpu: Gpu) -> None:
    x = stopwatch.operand((8, 8), "float32")
    gpu.pending = 50.0  # operands, or a step of the job
    runner = stopwatch.ready(square, [x], ("MatMul", 1), "kernels")
    assert runner.first == pytest.approx(1.001)


def test_under_asynchronous_execution_a_call_is_over_when_it_is_timed() -> None:
    done: list[bool] = []

    def slow(x: Any) -> Any:
        time.sleep(0.2)
        done.append(True)
        return x

    x = stopwatch.operand((8, 8), "float32")
    tf.config.experimental.set_synchronous_execution(False)
    try:
        runner = stopwatch.ready(
            lambda x: tf.py_function(slow, [x], tf.float32),
            *([x], ("EagerPyFunc", 1), "kernels"),
        )
        assert done == [True]
        assert runner.first >= 0.2
        assert runner.seconds() >= 0.2
        assert done == [True] * 2
    finally:
        tf.config.experimental.set_synchronous_execution(True)


@pytest.mark.parametrize("shape", [(), (0, 3), (2**16 + 1,), (3, 70_000)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_operands_have_the_shape_and_type_asked_for(
    shape: tuple[int, ...], dtype: str
) -> None:
    made = stopwatch.operand(shape, dtype)
    assert (made.shape, made.dtype.name) == (shape, dtype)
