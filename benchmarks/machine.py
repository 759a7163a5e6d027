"""What a benchmark ran on, as one line of JSON: `python -m benchmarks.machine`.

A process of its own, so that whoever asks need not import TensorFlow. Nothing is timed.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Of TensorFlow, oneDNN and OpenMP: what kernels run, and in how many threads.
VARIABLES = (
    *("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
    *("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS", "XLA_FLAGS"),
    "NVIDIA_TF32_OVERRIDE",  # of the libraries for GPUs
)
FLAGS = frozenset(
    ("avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16")
)


def machine() -> dict[str, Any]:
    """The machine, the versions, and what the plugin's "auto" comes to."""
    import amp

    device, settled = amp.device(), amp.resolve()
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    lines = [line.partition(":") for line in text.partition("\n\n")[0].splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
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
        "environment": {k: os.environ[k] for k in VARIABLES if k in os.environ},
        "commit": commit(),
    }


def commit(root: Path = ROOT) -> dict[str, Any] | None:
    """Of which commit the code is, and whether it was changed since.

    None where git is not there, or the directory is not the root of a repository.
    """
    head = _git(root, "rev-parse", "--show-prefix", "HEAD").splitlines()
    if len(head) != 2 or head[0]:  # the prefix: of a repository around this one
        return None
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"id": head[1], "dirty": bool(changes)}


def _git(root: Path, *options: str) -> str:
    """What git prints, "" where it fails."""
    command = ["git", "--no-optional-locks", "-C", str(root), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout


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
