"""`CallDevices`: no plan for a GPU runs on a CPU, and the report says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rewriting import CPU, settled, traced
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.integration.functions import call_devices
from amp.integration.functions.call_devices import CallDevices
from amp.integration.measuring import hardware

pytestmark = pytest.mark.kernels

ALL = {"dtype": "float16", "assignment": "all", "strict": True, "loss_scale": "none"}
HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
GPUS = tf.config.list_physical_devices("GPU")


@pytest.fixture
def plans_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Has policies settled as on another machine."""
    return lambda device: monkeypatch.setattr(hardware, "device", lambda: device)


@pytest.fixture
def fn() -> Any:
    # A third has no exact form in 16 bits.
    weights = tf.Variable(tf.fill([64, 64], 1.0 / 3.0))
    return tf.function(lambda x: tf.tanh(tf.matmul(x, weights) / 64.0))


def rules() -> list[set[str]]:
    return [{d.rule for d in report.decisions} for report in amp.reports()]


def test_a_function_called_on_the_cpu_never_runs_the_plan_for_a_gpu(fn, plans_for):
    x = tf.random.normal([32, 64])
    want = fn(x).numpy()
    plans_for(A100)
    with amp.mixed_precision_scope(**ALL):
        for _ in range(3):
            with tf.device("/CPU:0"):
                np.testing.assert_array_equal(fn(x), want)
    (report,) = amp.reports()
    assert (report.nodes_low, report.dtype) == (0, "float16")
    cause = f"called on {HERE}, where the plan is for a GPU"
    assert report.verdict == f"left in float32: {cause}"
    assert f"[device: {cause}]" in report.explain("MatMul")


def test_elsewhere_the_same_function_runs_its_twin_at_any_call(fn, plans_for):
    x = tf.random.normal([32, 64])
    want = fn(x).numpy()
    plans_for(A100)
    with amp.mixed_precision_scope(**ALL):
        for _ in range(2):
            assert (fn(x).numpy() != want).any()
            with tf.device("/CPU:0"):
                np.testing.assert_array_equal(fn(x), want)
            with tf.device("/CPU:0"), tf.device(None):
                assert (fn(x).numpy() != want).any()
    low = [report.nodes_low > 0 for report in amp.reports()]
    assert low == [True, False]


def test_so_does_one_in_whose_trace_a_scope_was_entered(plans_for):
    plans_for(A100)
    third = tf.fill([64, 64], 1.0 / 3.0)

    def product(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, third)

    @tf.function
    def fn(x: tf.Tensor) -> tf.Tensor:
        with amp.mixed_precision_scope(**ALL):
            return product(x)

    x = tf.random.normal([32, 64])
    with tf.device("/CPU:0"):
        np.testing.assert_array_equal(fn(x), tf.function(product)(x))
    assert rules() == [{"device"}]
    assert (fn(x).numpy() != tf.function(product)(x).numpy()).any()


def test_gradients_of_what_was_called_there_are_those_of_float32(fn, plans_for):
    x = tf.random.normal([32, 64])

    def gradient() -> tf.Tensor:
        with tf.device("/CPU:0"), tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        with tf.device("/CPU:0"):
            return tape.gradient(y, x)

    want = gradient()
    plans_for(A100)
    with amp.mixed_precision_scope(**ALL):
        np.testing.assert_array_equal(gradient(), want)
    assert rules() == [{"device"}] * 2


@pytest.mark.parametrize(
    ("device", "fields", "place"),
    [
        (CPU, {}, "/CPU:0"),
        pytest.param(
            *(CPU, {}, "/GPU:0"),
            marks=pytest.mark.skipif(bool(GPUS), reason="here it is there"),
            id="not there, so TensorFlow takes the CPU",
        ),
        (A100, {"emulate": True}, "/CPU:0"),
    ],
)
def test_on_a_device_of_the_plans_kind_the_twin_runs(
    fn, plans_for, device, fields, place
):
    plans_for(device)
    with amp.mixed_precision_scope(**ALL, **fields), tf.device(place):
        fn(tf.ones([32, 64]))
    (report,) = amp.reports()
    assert report.nodes_low > 0


@pytest.mark.parametrize("kind", ["GPU", "TPU"])
def test_a_worker_with_other_devices_does_not_run_a_plan_for_the_cpu(monkeypatch, kind):
    there = f"/job:worker/replica:0/task:1/device:{kind}:0"
    known = {kind: [there]}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda of: known.get(of, []))
    devices = CallDevices(settled(CPU))
    assert devices.is_other(there)
    assert not devices.is_other(there.replace(kind, "CPU"))
    assert not devices.is_other(there.partition("/device")[0])


def test_a_report_that_fails_is_warned_of_and_the_function_runs(
    fn, plans_for, monkeypatch
):
    def planted(*args: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(call_devices, "called_elsewhere", planted)
    x = tf.ones([32, 64])
    want = fn(x)
    plans_for(A100)
    lenient = amp.mixed_precision_scope(**{**ALL, "strict": False})
    with lenient, tf.device("/CPU:0"):
        with pytest.warns(RuntimeWarning, match="no report on function.*planted"):
            np.testing.assert_array_equal(fn(x), want)
        np.testing.assert_array_equal(fn(x), want)
    assert amp.reports() == []


def test_what_is_known_of_a_function_goes_with_it():
    _, concrete = traced(lambda x: tf.matmul(x, x), tf.ones([4, 4]))
    devices = CallDevices(dataclasses.replace(settled(A100), reason=""))
    for told in (1, 1):
        devices.tell(context_lib.context(), concrete.name, HERE)
        assert len(amp.reports()) == told
    devices.forget(concrete.name)
    devices.tell(context_lib.context(), concrete.name, HERE)
    assert len(amp.reports()) == 2
