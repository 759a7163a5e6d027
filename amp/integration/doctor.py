"""What a machine can do, finding by finding: `amp doctor`.

Returns text for the command to print; nothing is changed or printed here.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import site
from collections.abc import Iterator
from pathlib import Path

from amp.integration.install import install
from amp.integration.measuring import hardware, stored_times
from amp.policy import FIELDS, Policy

PTH = "tf_amp.pth"


def findings() -> Iterator[tuple[str, str]]:
    """Pairs of a name and what was found."""
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    for name in ("tf-amp", "tensorflow", "keras", "numpy", "scipy"):
        yield name, _version(name)
    device = hardware.device()
    yield "device", device.describe()
    yield "figures", device.source
    if device.compiled is not None:
        yield "under XLA", device.compiled.source
    yield "operations", f"{len(stored_times.load())} of past jobs measured"
    yield "auto", hardware.resolve(Policy()).reason
    yield from _environment()
    places = [*site.getsitepackages(), site.getusersitepackages()]
    found = [path for path in places if Path(path, PTH).is_file()]
    missing = f"no {PTH} in site-packages, so without effect; pip install tf-amp"
    yield "AMP_ENABLE", f"{found[0]}/{PTH}" if found else missing


def _environment() -> Iterator[tuple[str, str]]:
    variables = {k: v for k, v in sorted(os.environ.items()) if k.startswith("AMP_")}
    if variables:
        yield "environment", " ".join(f"{k}={v}" for k, v in variables.items())
        yield "so", hardware.resolve(Policy.from_env()).reason
    known = {field.variable for field in FIELDS.values()}
    known |= {"AMP_ENABLE", "AMP_CACHE_DIR"}
    for name in sorted(variables.keys() - known):
        yield "unknown", f"{name} is no variable of amp"


def _version(name: str) -> str:
    for distribution in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def check_hooks() -> None:
    """Installs the hooks, in this process.

    Raises:
      TensorFlowError: listing every one that does not fit.
    """
    install()
