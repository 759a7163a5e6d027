"""Finds the device that TensorFlow computes on, and the figures to plan with.

Which figures belong to which device is in `cost.shipped_devices`; no figure is
written here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

import tensorflow as tf

from amp.graph_rewrite.cost import device_profile as profile_lib
from amp.graph_rewrite.cost import resolution, shipped_devices
from amp.graph_rewrite.cost.device import Device
from amp.integration import fallback
from amp.integration.measuring import control_groups, profiles
from amp.policy import Policy

_CPUINFO = Path("/proc/cpuinfo")
# Where Linux tells the version of NVIDIA's driver: alone, or in a line of text.
_DRIVERS = (Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version"))

# The instruction sets that ONEDNN_MAX_CPU_ISA may name, each with how the flags begin
# that oneDNN then may not use, of those that matter here. TensorFlow 2.21 has a oneDNN
# without AVX10_2_512, which the page names too; what oneDNN does not know it ignores:
# https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
ISAS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("SSE41", "AVX", "AVX2"), ("avx512", "amx_")),
    **dict.fromkeys(("AVX2_VNNI", "AVX2_VNNI_2"), ("avx512", "amx_")),
    **dict.fromkeys(("AVX512_CORE", "AVX512_CORE_VNNI"), ("avx512_bf16", "amx_")),
    **dict.fromkeys(("AVX512_CORE_BF16", "AVX512_CORE_FP16"), ("amx_",)),
    "AVX10_1_512": ("amx_",),
    **dict.fromkeys(("AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16"), ()),
    **dict.fromkeys(("AVX10_1_512_AMX", "AVX10_1_512_AMX_FP16"), ()),
    **dict.fromkeys(("DEFAULT", "ALL"), ()),
}

# Flags of a CPU with 16-bit arithmetic, and what people call it.
SIXTEEN = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX-BF16"}

_PLACE: ContextVar[str] = ContextVar("place", default="")


@contextlib.contextmanager
def on(place: str) -> Iterator[None]:
    """Has what is asked here, and measured, be about another device of this process.

    Args:
      place: its name in the process ("CPU:0", "GPU:1"); "" for the device that
        TensorFlow computes on: the first visible GPU, else the CPU.
    """
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


def place() -> str:
    """The place that `on` was called with, "" outside it."""
    return _PLACE.get()


@functools.cache
def device(place: str = "") -> Device:
    """The device at a place (see `on`).

    With the figures that `amp tune` stored for it and this TensorFlow, else with those
    shipped for it.
    """
    with on(place):
        return _device()


def _device() -> Device:
    found = shipped()
    for executor in profile_lib.EXECUTORS:
        says = (
            f"the stored device profile ({executor}) is ignored; `amp tune` makes one"
        )
        part = fallback.Part(says)
        told = functools.partial(_with_profile, executor, found)
        found = fallback.attempt(part, told, functools.partial(_as_it_is, found))
    return found


def _with_profile(executor: str, device: Device) -> Device:
    """The device with the figures that `amp tune` stored for one executor, if any."""
    profile = profiles.load(model(), tf.__version__, executor)
    return device if profile is None else profile_lib.apply(profile, device)


def _as_it_is(device: Device) -> Device:
    return device


def shipped() -> Device:
    """The device asked about with the package's figures, not those of `amp tune`."""
    gpu = _gpu()
    if gpu is None:
        return _cpu()
    return shipped_devices.of_gpu(*gpu)


def _cpu() -> Device:
    return shipped_devices.of_cpu(usable_flags(), _cpuinfo("vendor_id"))


def model() -> str:
    """The name of the device asked about, under which measured times are stored.

    For a CPU also its number of cores, a container's quota of their time, and the
    settings that change its kernels: oneDNN off, oneDNN's instruction set, the number
    of threads if one was asked for. For a GPU also the version of its driver, and
    whether TensorFloat-32 is off, which makes products of float32 several times slower.
    Times measured under other settings would not hold.
    """
    gpu = _gpu()
    if gpu is not None:
        return f"{gpu[0]}{_driver()}{'' if _is_tf32_on() else ', TF32 off'}"
    name = cpu_name()
    off = ", oneDNN off" if is_onednn_off() else ""
    most = f", oneDNN up to {onednn_limit()}" if onednn_limit() else ""
    chosen = _threads()
    threads = f", {chosen} threads" if chosen else ""
    cores = f"{_cores()} cores{_quota()}"
    return f"{name}, {cores}, {_cpu().name}{off}{most}{threads}"


def _driver() -> str:
    for file in _DRIVERS:
        with contextlib.suppress(OSError):
            version = re.search(r"\d+(\.\d+)+", file.read_text())
            if version:
                return f", driver {version[0]}"
    return ""


def _is_tf32_on() -> bool:
    """Whether products of float32 may be computed in TensorFloat-32.

    The variable is of NVIDIA's libraries, which then ignore what TensorFlow asks for:
    https://docs.nvidia.com/cuda/cublas/#tensor-core-usage
    """
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    return bool(tf.config.experimental.tensor_float_32_execution_enabled())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: those that this process may use
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota() -> str:
    """How many cores' time the process may use, if fewer than it may run on."""
    most = control_groups.cpus()
    return f", time of {most:.3g}" if most < _cores() else ""


def _threads() -> int:
    """How many threads kernels may share, 0 for as many as cores.

    As in TensorFlow, the variable counts if the job itself asks for no number:
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/common_runtime/local_device.cc
    """
    asked = tf.config.threading.get_intra_op_parallelism_threads()
    if asked:
        return int(asked)
    with contextlib.suppress(ValueError):
        return max(0, int(os.environ.get("TF_NUM_INTRAOP_THREADS", "0")))
    return 0


def _gpu() -> tuple[str, tuple[int, int]] | None:
    """Name and compute capability of the GPU asked about; None if that is the CPU."""
    kind, _, number = place().partition(":")
    gpus = [] if kind == "CPU" else tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    # One GPU may be configured to be several, which count one after the other.
    parts = tf.config.get_logical_device_configuration
    every = [gpu for gpu in gpus for _ in parts(gpu) or (None,)]
    gpu = every[min(int(number or 0), len(every) - 1)]
    details = tf.config.experimental.get_device_details(gpu)
    capability = details.get("compute_capability", (0, 0))
    return details.get("device_name", gpu.name), capability


def kinds() -> frozenset[str]:
    """The kinds of device of this process. Asking does not start the runtime."""
    return frozenset(device.device_type for device in tf.config.get_visible_devices())


def cpu_name() -> str:
    """The CPU's name for people. ARM's have none, but numbers that tell them apart."""
    numbers = map(_cpuinfo, ("CPU implementer", "CPU part"))
    unnamed = " ".join(filter(None, (platform.machine(), *numbers)))
    return _cpuinfo("model name") or unnamed


def cpu_flags() -> frozenset[str]:
    """Feature flags that an x86 CPU has, as Linux names them; whatever may use them."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    return frozenset(_cpuinfo("flags").split())


def usable_flags() -> frozenset[str]:
    """Those of the flags that TensorFlow's kernels may use."""
    if is_onednn_off():
        return frozenset()  # without oneDNN no kernel has 16-bit arithmetic
    return _limited(cpu_flags())


def hidden_flags() -> list[str]:
    """The 16-bit arithmetic that the CPU has and TensorFlow's kernels may not use."""
    hidden = cpu_flags() - usable_flags()
    return sorted(name for flag, name in SIXTEEN.items() if flag in hidden)


def is_onednn_off() -> bool:
    """Whether TensorFlow is told not to use oneDNN; it takes no other word for off."""
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in ("0", "false")


def onednn_limit() -> str:
    """The instruction set that oneDNN is told to stop at, "" for none."""
    return os.environ.get(onednn_variable(), "").upper()


def onednn_variable() -> str:
    """The variable that tells oneDNN where to stop, "" for none.

    As in oneDNN, the older name of the variable counts if the newer one is not set.
    """
    names = (f"{name}_MAX_CPU_ISA" for name in ("ONEDNN", "DNNL"))
    return next((name for name in names if os.environ.get(name)), "")


def _limited(flags: frozenset[str]) -> frozenset[str]:
    """The flags that oneDNN may use: ONEDNN_MAX_CPU_ISA takes off what is above it.

    As in oneDNN, an unknown value is ignored.
    """
    hidden = ISAS.get(onednn_limit(), ())
    return frozenset(flag for flag in flags if not flag.startswith(hidden))


def _cpuinfo(field: str) -> str:
    """A field of the first core in /proc/cpuinfo, "" where there is none."""
    return _first_core(_CPUINFO).get(field, "")


@functools.cache  # Linux writes the file at each read, of all cores
def _first_core(file: Path) -> Mapping[str, str]:
    fields: dict[str, str] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def resolve(policy: Policy | None = None) -> resolution.Resolution:
    """What a policy does on this machine: its 16-bit type, or why it is off."""
    settled = resolution.resolve(Policy.make(policy), device())
    reason = settled.reason
    if settled.policy is None and device().kind == "CPU" and hidden_flags():
        reason += f"; the CPU has {', '.join(hidden_flags())}, see `amp doctor`"
    return dataclasses.replace(settled, kinds=kinds(), reason=reason)


def resolve_on(place: str, policy: Policy) -> resolution.Resolution:
    """What a policy does on another device of this process (see `on`)."""
    settled = resolution.resolve(policy, device(place))
    return dataclasses.replace(settled, place=place, kinds=kinds())
