"""The two trainings of the demo, in processes that take turns, and what they run on.

Used by `demo`. What the runs found is returned as they wrote it: nothing is compared
here, and nothing is drawn.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
from typing import IO, Any

SCRIPT = pathlib.Path(__file__).with_name("train_digits.py")
# What TensorFlow's libraries log before a program can stop them.
_NOISE = re.compile(r"[IW]\d{4} |WARNING: All log messages before absl::")


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the demo runs on, as `amp` sees it.

    Attributes:
      device: one line about the device.
      dtype: the 16-bit type that the mixed run is to use.
      emulate: whether the run rounds float32 instead of computing in 16 bits.
      reason: why, in words.
      environment: variables that the mixed run needs beyond the user's own.
      missed: of a GPU that the machine has and TensorFlow does not see, "" for none.
    """

    device: str
    dtype: str
    emulate: bool
    reason: str
    environment: dict[str, str]
    missed: str = ""


def look() -> Machine:
    """Returns the machine; call it in a process that may hold the device."""
    import amp
    from amp.integration.doctor import machine

    device, resolved = amp.device(), amp.resolve()
    missed = "".join(map(_missed, machine.hidden_gpu()))
    name, why = device.name, resolved.reason
    if resolved.policy is None:
        forced = {"AMP_EMULATE": "1", "AMP_DTYPE": "bfloat16"}
        return Machine(name, "bfloat16", True, why, forced, missed)
    policy = resolved.policy
    return Machine(name, policy.dtype, policy.emulate, why, {}, missed)


def _missed(finding: Any) -> str:
    does = ". `make demo EXTRAS=gpu,demo` installs one that sees it"
    return f"no GPU is used: {finding.text}{does if finding.remedy else ''}"


class Run:
    """A training in a process of its own, which takes turns with the other's.

    Args:
      name: of the run, and of its history file.
      args: epochs, seed, and the directories `out` and, for reports, `reports`.
      turns: descriptors of the pipes that it takes turns by: to read, to write.
      amp_variables: all the `AMP_*` variables of the process.
    """

    def __init__(
        self,
        name: str,
        args: argparse.Namespace,
        turns: tuple[int, int],
        amp_variables: dict[str, str],
    ) -> None:
        self.name, self.history = name, args.out / f"{name}.json"
        self.history.unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
        environment |= {"PYTHONUNBUFFERED": "1", **amp_variables}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        command = [str(SCRIPT), "--epochs", str(args.epochs), "--seed", str(args.seed)]
        shown = [f"{k}={v}" for k, v in amp_variables.items()] + ["python", *command]
        print(f"{name}: {' '.join(shown)}", flush=True)
        command += ["--history", str(self.history), "--turns", *map(str, turns)]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            pass_fds=turns,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=_show, args=(name, self.process.stdout))
        self._reader.start()

    def end(self) -> None:
        """Ends it, if it still runs."""
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def result(self) -> dict[str, Any]:
        """Waits for the end, and returns the history."""
        code = self.process.wait()
        self._reader.join()
        if code or not self.history.exists():
            sys.exit(f"demo: the {self.name} run failed, exit code {code}; see above")
        found: dict[str, Any] = json.loads(self.history.read_text(encoding="utf-8"))
        return found


def _show(name: str, lines: IO[str]) -> None:
    with lines:
        for line in lines:
            if not _NOISE.match(line):
                print(f"{name:>7} | {line}", end="", flush=True)


def train(args: argparse.Namespace, machine: Machine) -> dict[str, dict[str, Any]]:
    """Trains twice; returns the history of each run by its name."""
    to_float32, to_mixed = os.pipe(), os.pipe()
    os.write(to_float32[1], b".")
    own = {k: v for k, v in os.environ.items() if k.startswith("AMP_")}
    own |= {"AMP_ENABLE": "1", "AMP_REPORT": str(args.reports)}
    own |= machine.environment
    runs = [Run("float32", args, (to_float32[0], to_mixed[1]), {})]
    try:
        runs.append(Run("mixed", args, (to_mixed[0], to_float32[1]), own))
        for descriptor in (*to_float32, *to_mixed):
            os.close(descriptor)
        return {run.name: run.result() for run in runs}
    finally:
        for run in runs:
            run.end()
