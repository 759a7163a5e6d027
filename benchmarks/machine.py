"""What a benchmark ran on, as one line of JSON: `python -m benchmarks.machine`.

A process of its own, so that whoever asks need not import TensorFlow. Nothing is timed.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

FLAGS = frozenset(
    ("avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16")
)


def machine() -> dict[str, Any]:
    """The machine, the versions, and what the plugin's "auto" comes to."""
    import amp

    device, settled = amp.device(), amp.resolve(amp.Policy.from_env())
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    fields = dict(
        tuple(part.strip() for part in line.partition(":")[::2])
        for line in text.partition("\n\n")[0].splitlines()
    )
    cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "cores": len(cores),
        "flags": sorted(FLAGS & set(fields.get("flags", "").split())),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": _gpu(),
        "device": device.name,
        "figures": device.source,
        "dtype": settled.policy.dtype if settled.policy else None,
        "reason": settled.reason,
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _gpu() -> str | None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name"))


def _versions() -> dict[str, str]:
    found = {}
    for name in ("tensorflow", "tensorflow-cpu", "keras", "numpy", "tf-amp"):
        try:
            found[name.removesuffix("-cpu")] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    print(json.dumps(machine()), flush=True)
