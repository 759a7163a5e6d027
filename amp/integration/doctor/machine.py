"""Checks what TensorFlow finds on the machine: devices, 16-bit kernels, oneDNN, XLA.

Runs in the process of `probe`. Nothing is timed here but one compilation by XLA.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from amp import spelling
from amp.errors import AmpError
from amp.integration import fallback, install
from amp.integration.doctor.findings import NOTE, OK, WRONG, Finding
from amp.integration.measuring import hardware
from amp.policy import Policy

_NVIDIA = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
_DTYPES = ("bfloat16", "float16")


def tensorflow() -> Iterator[Finding]:
    """Whether this TensorFlow is one that the hooks know."""
    facts = {"version": tf.__version__, "file": str(tf.__file__)}
    try:
        install.require_version(tf.__version__)
    except AmpError as e:
        yield Finding("tensorflow", WRONG, e.found, e.remedy, facts)
        return
    yield Finding("tensorflow", OK, f"{tf.__version__}, {tf.__file__}", facts=facts)


def devices() -> Iterator[Finding]:
    """Each device, with the 16-bit types that its kernels compute in."""
    cpu = hardware.device("CPU:0")
    own = _sixteen(hardware.usable_flags())
    has = ", ".join(own) or "no 16-bit instructions in use"
    name = f"{hardware.cpu_name()}, {has}"
    yield _device("CPU:0", name, cpu.native, {"flags": own})
    for number, gpu in enumerate(tf.config.get_visible_devices("GPU")):
        place = f"GPU:{number}"
        details = tf.config.experimental.get_device_details(gpu)
        capability = ".".join(map(str, details.get("compute_capability", ("?",))))
        name = f"{details.get('device_name', 'GPU')}, compute capability {capability}"
        native = hardware.device(place).native
        yield _device(place, name, native, {"compute_capability": capability})
    yield from hidden_gpu()


def _device(
    place: str, name: str, native: tuple[str, ...], more: Mapping[str, Any]
) -> Finding:
    kinds = {dtype: "real" if dtype in native else "emulated" for dtype in _DTYPES}
    words = {"real": "real arithmetic", "emulated": "emulated in float32, no gain"}
    said = "; ".join(f"{dtype}: {words[kind]}" for dtype, kind in kinds.items())
    facts = {"place": place, "name": name, **kinds, **more}
    return Finding("device", OK, f"{place}: {name}; {said}", facts=facts)


def hidden_gpu() -> Iterator[Finding]:
    """A GPU that the machine has and TensorFlow does not see."""
    if tf.config.list_physical_devices("GPU") or not any(
        file.exists() for file in _NVIDIA
    ):
        return
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    facts = {"built_with_cuda": tf.test.is_built_with_cuda(), "visible": chosen}
    text = "there is a driver of NVIDIA, and TensorFlow sees no GPU"
    if chosen in ("", "-1"):
        text += f": CUDA_VISIBLE_DEVICES={chosen!r} hides it"
        yield Finding("gpu", NOTE, text, facts=facts)
    elif not facts["built_with_cuda"]:
        text += ", as it is built without CUDA"
        yield Finding("gpu", WRONG, text, _with_cuda(), facts)
    else:
        remedy = f"{_with_cuda()} brings its libraries; if they are there, see "
        remedy += "TensorFlow's own messages: python -c 'import tensorflow as tf; "
        remedy += 'tf.config.list_physical_devices("GPU")\''
        yield Finding("gpu", WRONG, text, remedy, facts)


def _with_cuda() -> str:
    """How to get a TensorFlow with CUDA; two of them share a directory."""
    found = importlib.metadata.distributions(name="tensorflow-cpu")
    first = "pip uninstall tensorflow-cpu, then " if any(found) else ""
    return f"{first}pip install 'tensorflow[and-cuda]'"


def onednn() -> Iterator[Finding]:
    """Whether oneDNN may use the 16-bit arithmetic that the CPU has."""
    off, limit = hardware.is_onednn_off(), hardware.onednn_limit()
    left, hidden = _sixteen(hardware.usable_flags()), hardware.hidden_flags()
    facts = {"off": off, "limit": limit or None, "hidden": hidden}
    variable = hardware.onednn_variable()
    said, lifted = f"{variable}={limit}", f"unset {variable}"
    if limit and limit not in hardware.ISAS:
        text = f"{said} is no instruction set that oneDNN knows, and is ignored"
        known = tuple(hardware.ISAS)
        remedy = spelling.hint(limit, known, f"one of {', '.join(known)}")
        yield Finding("onednn", WRONG, text, remedy, facts)
    elif off and hidden:
        text = f"off: no kernel uses {', '.join(hidden)}, which this CPU has"
        yield Finding("onednn", WRONG, text, "unset TF_ENABLE_ONEDNN_OPTS", facts)
    elif not off and _ends_processes():
        text = (
            f"{said} on a CPU with AVX-512: TensorFlow asks the CPU, not oneDNN, "
            "whether it has kernels for bfloat16, and a product in bfloat16 ends the "
            "process"
        )
        yield Finding("onednn", WRONG, text, lifted, facts)
    elif hidden:
        what = ", ".join(left) or "no 16-bit arithmetic"
        text = f"{said} hides {', '.join(hidden)}, which this CPU has; {what} is left"
        status = NOTE if left else WRONG
        yield Finding("onednn", status, text, lifted, facts)
    else:
        text = f"on, up to {limit}" if limit else "on, not limited"
        text = "off, by which this CPU loses no 16-bit arithmetic" if off else text
        yield Finding("onednn", OK, text, facts=facts)


def _ends_processes() -> bool:
    """Whether a CPU has AVX-512 and oneDNN may not use it (seen in TensorFlow 2.21)."""
    return "avx512f" in hardware.cpu_flags() - hardware.usable_flags()


def _sixteen(flags: frozenset[str]) -> list[str]:
    return sorted(name for flag, name in hardware.SIXTEEN.items() if flag in flags)


def precision() -> Iterator[Finding]:
    """What mixed precision comes to here: by itself, and with the variables set."""
    usual = hardware.resolve(Policy())
    facts = {"auto": usual.policy.dtype if usual.policy else None}
    try:
        asked = Policy.from_env()
    except AmpError:  # which the check of variables tells
        asked = Policy()
    settled = hardware.resolve(asked)
    facts["dtype"] = settled.policy.dtype if settled.policy else None
    text = settled.reason
    if settled.policy is None:
        yield Finding("precision", NOTE, text, facts=facts)
        return
    if not asked.emulate and settled.policy.dtype not in settled.device.native:
        text += "; this device has no such arithmetic, so jobs will stay float32"
        remedy = "AMP_DTYPE=auto" if usual.policy else "unset AMP_DTYPE"
        yield Finding("precision", NOTE, text, remedy, facts)
        return
    yield Finding("precision", OK, text, facts=facts)


def xla() -> Iterator[Finding]:
    """Whether XLA compiles: clusters and functions with `jit_compile=True` need it."""
    facts: dict[str, Any] = {
        "jit": str(tf.config.optimizer.get_jit()),
        "TF_XLA_FLAGS": os.environ.get("TF_XLA_FLAGS"),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS"),
        "figures": hardware.device().under(True).source,
    }

    def compiled() -> Finding:
        begun = time.perf_counter()
        double = tf.function(lambda x: 2.0 * x, jit_compile=True)
        result = double(tf.constant(21.0))
        facts["seconds"] = round(time.perf_counter() - begun, 3)
        if float(result) != 42.0:
            return Finding(
                "xla", WRONG, f"XLA computes 2 * 21 as {result}", facts=facts
            )
        text = f"compiles, in {facts['seconds']:.2f} s; automatic clustering "
        return Finding("xla", OK, text + (facts["jit"] or "off"), facts=facts)

    def failed(error: Exception) -> Finding:
        said = str(error).strip() or type(error).__name__
        text = f"XLA cannot compile: {said.splitlines()[0]}"
        remedy = "set jit_compile=False; on a GPU see that CUDA's libdevice is found"
        return Finding("xla", WRONG, text, remedy, facts)

    yield fallback.attempt_or(compiled, failed)
