"""Calls on a device run a plan for that device, and never one for another kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rewriting import CPU as FLAT
from rewriting import settled, traced
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.shipped_devices import A100, CPU_PLAIN
from amp.integration.functions import twins as twins_lib
from amp.integration.measuring import hardware, measuring_slices, operation_timer
from amp.integration.process import PROCESS
from amp.integration.runtime import call_devices
from amp.integration.runtime.call_devices import DeviceReports, settled_on
from amp.loss_scaling.scale import DynamicLossScale
from amp.policy import Policy

pytestmark = pytest.mark.kernels

ALL = {"assignment": "all", "strict": True, "loss_scale": "none"}
# "auto" is on where products of a type are faster.
CPU = dataclasses.replace(FLAT, speed={"bfloat16": {"product": 2.0}})
OWN = "/job:localhost/replica:0/task:0"
HERE = f"{OWN}/device:CPU:0"
GPUS = tf.config.list_physical_devices("GPU")

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes this machine one with the devices given: by default a GPU and a CPU."""

    def become(usual: Device = A100, cpu: Device = CPU) -> None:
        monkeypatch.setattr(
            hardware, "device", lambda place="": cpu if place == "CPU:0" else usual
        )
        kinds = frozenset({usual.kind, "CPU"})
        monkeypatch.setattr(hardware, "kinds", lambda: kinds)

    return become


@pytest.fixture
def fn() -> Any:
    # A third has no exact form in 16 bits.
    weights = tf.Variable(tf.fill([64, 64], 1.0 / 3.0))
    return tf.function(lambda x: tf.tanh(tf.matmul(x, weights) / 64.0))


def rules() -> list[set[str]]:
    return [{d.rule for d in report.decisions} for report in amp.reports()]


def test_a_function_called_on_the_cpu_runs_a_plan_for_the_cpu(fn, machine):
    """With the type, the scale and the figures of a machine without a GPU."""
    x = tf.random.normal([32, 64])
    machine(A100, CPU)
    with amp.mixed_precision_scope(assignment="all", strict=True):
        for _ in range(2):
            fn(x)
            with tf.device("/CPU:0"):
                fn(x)
    made = [(one.dtype, one.loss_scale, one.device) for one in amp.reports()]
    assert made == [
        ("float16", str(DynamicLossScale()), A100.name),
        ("bfloat16", "none", CPU.name),
    ]
    assert all(report.nodes_low > 0 for report in amp.reports())


def test_it_is_the_twin_of_a_machine_without_a_gpu(fn, machine):
    x = tf.random.normal([32, 64])
    machine(CPU, CPU)
    with amp.mixed_precision_scope(**ALL):
        want = fn(x).numpy()
    PROCESS.reset()
    machine(A100, CPU)
    with amp.mixed_precision_scope(**ALL), tf.device("/CPU:0"):
        np.testing.assert_array_equal(fn(x), want)
    assert (fn(x).numpy() != want).any(), "16 bits make no difference here"


def test_without_16_bit_arithmetic_there_the_original_runs(fn, machine):
    x = tf.random.normal([32, 64])
    want = fn(x).numpy()
    machine(A100, CPU_PLAIN)
    with amp.mixed_precision_scope(**ALL):
        for _ in range(2):
            assert (fn(x).numpy() != want).any()
            with tf.device("/CPU:0"):
                np.testing.assert_array_equal(fn(x), want)
            with tf.device("/CPU:0"), tf.device(None):
                assert (fn(x).numpy() != want).any()
    usual, there = amp.reports()
    assert usual.nodes_low > 0
    cause = f"called on {HERE}: mixed precision is off: no 16-bit arithmetic"
    assert there.nodes_low == 0
    assert there.verdict.startswith(f"left in float32: {cause}")
    assert f"[device: {cause}" in there.explain("MatMul")


def test_so_it_does_where_a_scope_was_entered_in_the_trace(machine):
    machine(A100, CPU_PLAIN)
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


def test_gradients_of_what_was_called_there_are_those_of_float32(fn, machine):
    x = tf.random.normal([32, 64])

    def gradient() -> tf.Tensor:
        with tf.device("/CPU:0"), tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        with tf.device("/CPU:0"):
            return tape.gradient(y, x)

    want = gradient()
    machine(A100, CPU_PLAIN)
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
        (A100, {"emulate": True, "dtype": "float16"}, "/CPU:0"),
    ],
)
def test_on_a_device_of_the_usual_kind_the_usual_twin_runs(
    fn, machine, device, fields, place
):
    tf.config.set_soft_device_placement(True)  # the default
    machine(device)
    with amp.mixed_precision_scope(**ALL, **fields):
        fn(tf.ones([32, 64]))
        with tf.device(place):
            fn(tf.ones([32, 64]))
    assert all(report.nodes_low > 0 for report in amp.reports())
    assert len(PROCESS.twins) == 1


def test_operations_are_measured_on_the_device_that_they_are_called_on(
    fn, machine, monkeypatch
):
    """And stored with the times of that device."""
    machine(dataclasses.replace(A100, launch=0.0), CPU)
    monkeypatch.setenv("AMP_TUNE_BUDGET", "10")
    monkeypatch.setattr(hardware, "model", lambda: f"what is at {hardware.place()!r}")
    measured = []

    def measure(wanted: Any, seconds: float) -> Any:
        measured.append(hardware.place())
        return {one.key: (1.0, 0.5) for one in wanted}

    monkeypatch.setattr(operation_timer, "measure", measure)
    monkeypatch.setattr(measuring_slices, "SHARE", 1e6)
    x = tf.ones([512, 64])
    with amp.mixed_precision_scope(dtype="bfloat16", strict=True):
        for _ in range(3):
            fn(x)
        with tf.device("/CPU:0"):
            for _ in range(3):
                fn(x)
    assert list(dict.fromkeys(measured)) == ["", "CPU:0"]
    assert PROCESS.measuring.times.keys() == {"what is at ''", "what is at 'CPU:0'"}


def worker(kind: str, task: int = 1) -> str:
    return f"/job:worker/replica:0/task:{task}/device:{kind}:0"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Connects this process with devices of workers."""

    def connect(*names: str) -> None:
        known = [tf.config.LogicalDevice(n, n.split(":")[-2]) for n in (HERE, *names)]
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda: known)

    return connect


@pytest.mark.parametrize("kind", ["GPU", "TPU"])
def test_nothing_is_known_of_a_kind_that_only_a_worker_has(cluster, kind):
    cluster(worker("CPU"), worker(kind))
    usual = settled(CPU)
    there = settled_on(worker(kind), usual, Policy())
    assert there.policy is None
    assert "knows nothing of it" in there.reason
    assert settled_on(HERE, usual, Policy()) == usual
    untold = worker(kind).partition("/device")[0]
    assert settled_on(untold, usual, Policy()) == usual


def test_the_nodes_of_a_workers_gpu_stay_float32_in_a_plan_for_its_cpu(cluster):
    cluster(worker("CPU"), worker("GPU"))
    usual = settled(CPU)
    there = settled_on(worker("CPU"), usual, Policy())
    assert there == dataclasses.replace(usual, kinds=frozenset({"CPU", "GPU"}))


def test_each_model_of_gpu_is_planned_for_by_itself(cluster, monkeypatch):
    gpus = [f"{OWN}/device:GPU:{number}" for number in range(3)]
    cluster(*gpus)
    names = {"": "an A100", "GPU:0": "an A100", "GPU:1": "a T4", "GPU:2": "an A100"}
    monkeypatch.setattr(hardware, "kinds", lambda: frozenset({"CPU", "GPU"}))
    monkeypatch.setattr(hardware, "model", lambda: names[hardware.place()])
    old = dataclasses.replace(A100, name="old")
    monkeypatch.setattr(hardware, "device", {"GPU:1": old}.__getitem__)
    usual = dataclasses.replace(settled(A100), kinds=hardware.kinds())
    found = [settled_on(gpu, usual, Policy()) for gpu in gpus]
    assert found[0] == found[2] == usual
    assert (found[1].device, found[1].place) == (old, "GPU:1")


def test_where_a_device_cannot_be_asked_functions_run_as_they_are(
    fn, machine, monkeypatch
):
    x = tf.ones([32, 64])
    want = fn(x)
    machine(A100)

    def planted(*args: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(hardware, "resolve_on", planted)
    policy = Policy.make(**{**ALL, "strict": False, "dtype": "float16"})
    twins = twins_lib.Twins(settled(A100), policy)
    context = context_lib.context()
    name = fn.get_concrete_function(x).name
    with pytest.warns(RuntimeWarning, match="run as they are on .*CPU:0.*planted"):
        assert twins.on(HERE, context, name) is None
    assert twins.on(HERE, context, name) is None
    (report,) = amp.reports()
    assert "could not be asked what it is" in report.verdict
    np.testing.assert_array_equal(fn(x), want)


def test_a_report_that_fails_is_warned_of_and_the_function_runs(
    fn, machine, monkeypatch
):
    def planted(*args: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(call_devices, "called_elsewhere", planted)
    x = tf.ones([32, 64])
    want = fn(x)
    machine(A100, CPU_PLAIN)
    lenient = amp.mixed_precision_scope(**{**ALL, "strict": False})
    with lenient, tf.device("/CPU:0"):
        with pytest.warns(RuntimeWarning, match="no report on function.*planted"):
            np.testing.assert_array_equal(fn(x), want)
        np.testing.assert_array_equal(fn(x), want)
    assert amp.reports() == []


def test_what_is_known_of_a_function_goes_with_it():
    _, concrete = traced(lambda x: tf.matmul(x, x), tf.ones([4, 4]))
    devices = DeviceReports(dataclasses.replace(settled(A100), reason=""))
    context = context_lib.context()
    for told in (1, 1):
        devices.tell(context, concrete.name, HERE, "it is slow")
        assert len(amp.reports()) == told
    devices.forget(concrete.name)
    devices.tell(context, concrete.name, HERE, "it is slow")
    assert len(amp.reports()) == 2
