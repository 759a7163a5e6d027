"""How much memory of the device is free for measuring an operation.

Asked by `operation_timer`. Nothing is allocated or measured here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context as context_lib

from amp.integration import fallback
from amp.integration.measuring import control_groups, hardware

_MEMINFO = Path("/proc/meminfo")


def free() -> float | None:
    """The free bytes of the memory that operations are computed in; None: unknown.

    Of a GPU, what its allocator may still hand out in this process. Of a CPU, what the
    system has left, and each control group that the process is in (a container's).
    """
    if hardware.shipped().kind == "CPU":
        return min([*_free_of_system(), *control_groups.free_memory()], default=None)
    return fallback.attempt_quietly(_free_of_gpu, None)


def _free_of_gpu() -> float:
    """What TensorFlow may have of the GPU's memory, less what it has given out.

    Raises:
      ValueError: the device keeps no statistics.
      KeyError: it does not say how much memory it has.
    """
    gpu = hardware.place() or "GPU:0"
    used = tf.config.experimental.get_memory_info(gpu)["current"]
    context = context_lib.context()
    limits = dict(_limits(context))
    return float(limits[f"{context.host_address_space()}/device:{gpu}"] - used)


def _limits(context: context_lib.Context) -> Iterator[tuple[str, int]]:
    """The name of each device of the eager runtime, and the bytes that it may use."""
    context.ensure_initialized()
    devices = pywrap_tfe.TFE_ContextListDevices(context._handle)
    try:
        for number in range(pywrap_tf_session.TF_DeviceListCount(devices)):
            name = pywrap_tf_session.TF_DeviceListName(devices, number)
            yield name, pywrap_tf_session.TF_DeviceListMemoryBytes(devices, number)
    finally:
        pywrap_tf_session.TF_DeleteDeviceList(devices)


def _free_of_system() -> Iterable[float]:
    with contextlib.suppress(OSError):
        for line in _MEMINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                yield 1024.0 * int(line.split()[1])
