"""Runs programs of this directory, with those AMP_* variables that they are to have.

What is run, and what it finds, is not known here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def given_cache() -> str | None:
    """The user's own cache directory, where one was named."""
    return os.environ.get("AMP_CACHE_DIR") or None


def plugin_variables(dtype: str) -> dict[str, str]:
    """The user's own AMP_* variables, and the type where one was asked for."""
    own = {k: v for k, v in os.environ.items() if k.startswith("AMP_")}
    own.pop("AMP_ENABLE", None)
    if not given_cache():
        own.pop("AMP_CACHE_DIR", None)
    return own if dtype == "auto" else {**own, "AMP_DTYPE": dtype}


def in_cache(cache: Path | None) -> dict[str, str]:
    """The variable that lets the plugin use a cache, none for the user's."""
    return {"AMP_CACHE_DIR": str(cache)} if cache else {}


def program(
    name: str, options: list[str], variables: Mapping[str, str], timeout: float
) -> dict[str, Any]:
    """Runs a program of this directory; the JSON it prints, or {"error": why not}.

    Args:
      name: of its file, such as "worker" or "machine".
      options: its arguments.
      variables: all the `AMP_*` variables that it is to have.
      timeout: seconds that it may take.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment |= variables
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            errors="replace",
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {timeout:g} s"}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    if done.returncode < 0:
        return {"error": f"ended by signal {-done.returncode}"}
    return {"error": cause(done.stderr) or f"exit code {done.returncode}"}


def cause(stderr: str) -> str:
    """The error's own line, of all that a failing process said."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or [""])[-1][:300]
