"""`memory`: what may be had of the device, as it says itself."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.cost.shipped_devices import A100, CPU_AMX
from amp.integration.measuring import control_groups, hardware, memory

pytestmark = pytest.mark.kernels

HERE = "/job:localhost/replica:0/task:0"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """An A100 in a cluster; what it has given out so far may be changed."""
    given = {"current": 3 * 2**30, "peak": 5 * 2**30}
    limits = [
        (f"{HERE}/device:CPU:0", 2**28),
        ("/job:worker/replica:0/task:1/device:GPU:0", 2**31),
        (f"{HERE}/device:GPU:0", 38 * 2**30),
        (f"{HERE}/device:GPU:1", 2**32),
    ]
    monkeypatch.setattr(hardware, "shipped", lambda: A100)
    monkeypatch.setattr(memory, "_limits", lambda context: iter(limits))

    def info(device: str) -> dict[str, int]:
        return {"GPU:0": given}[device]

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", info)
    return given


def test_a_gpu_has_what_it_may_use_less_what_is_in_use(gpu: dict[str, int]) -> None:
    assert memory.free() == 35 * 2**30
    gpu["current"] += 2**30
    assert memory.free() == 34 * 2**30


@pytest.mark.swallows  # a KeyError says that the device is not told of
def test_a_gpu_that_does_not_say_has_an_unknown_amount(
    gpu: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_limits", lambda context: iter(()))
    assert memory.free() is None

    def untold(device: str) -> Any:
        raise ValueError("memory statistics are not tracked")

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", untold)
    assert memory.free() is None


def test_devices_say_how_much_they_may_use() -> None:
    limits = dict(memory._limits(context_lib.context()))
    names = {device.name for device in tf.config.list_logical_devices()}
    assert {name.removeprefix(HERE) for name in limits} == names
    assert all(limit > 0 for limit in limits.values())


def test_a_cpu_has_the_least_of_what_system_and_groups_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "shipped", lambda: CPU_AMX)
    monkeypatch.setattr(memory, "_free_of_system", lambda: [8e9])
    monkeypatch.setattr(control_groups, "free_memory", lambda: [6e9])
    assert memory.free() == 6e9
    monkeypatch.setattr(control_groups, "free_memory", lambda: [])
    assert memory.free() == 8e9
    monkeypatch.setattr(memory, "_free_of_system", lambda: [])
    assert memory.free() is None
