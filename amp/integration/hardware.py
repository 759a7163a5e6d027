"""Asks the machine what it is.

What that means is `graph_rewrite.device`'s to say, and no figure may enter here.
"""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

import tensorflow as tf

from amp.graph_rewrite import device as device_lib
from amp.policy import Policy

_CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def device() -> device_lib.Device:
    """The device that TensorFlow computes on: the first visible GPU, else the CPU."""
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        capability = details.get("compute_capability", (0, 0))
        return device_lib.of_gpu(details.get("device_name", gpus[0].name), capability)
    return device_lib.of_cpu(_cpu_flags())


def _cpu_flags() -> frozenset[str]:
    """Feature flags of the CPU that TensorFlow's kernels use, as Linux names them."""
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" or not _CPUINFO.exists():
        return frozenset()  # without oneDNN no kernel has 16-bit arithmetic
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    for line in _CPUINFO.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def resolve(policy: Policy | None = None) -> device_lib.Resolution:
    """What a policy comes to on this machine: settled, or off and why."""
    return device_lib.resolve(Policy.make(policy), device())
