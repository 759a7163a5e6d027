"""Runs checks in a process of its own, and says so where that process ends or hangs.

A product may end the process (a kernel that the CPU lacks), and a driver may keep it
waiting. What TensorFlow itself prints is kept out of the output, and shown where the
process ends. Which checks there are is not known here, and nothing of TensorFlow is
imported before they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import multiprocessing
import os
import re
import signal
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from amp.integration import fallback
from amp.integration.doctor.findings import WRONG, Finding

# Importing TensorFlow from a slow disk takes a minute, as starting a GPU's driver may.
PATIENCE_SECONDS = 180.0
_REPORT = "please report this"
# What TensorFlow prints at every start, and never explains an end.
_NOISE = re.compile(r"^(WARNING: All log messages|I0000|W0000|\s*$)")


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
      name: of its finding.
      module: in which its function is; imported in the process that checks.
      function: its name in the module; takes nothing and yields findings.
    """

    name: str
    module: str
    function: str


def run(checks: Sequence[Check]) -> Iterator[Finding]:
    """Yields what the checks find, as soon as it is found.

    Where the process ends at a check, the finding has what the process said last, and
    another process makes the checks that are left. Not if the process had made none
    (no process can import TensorFlow then), nor if it hangs, as others would too.
    """
    left = list(checks)
    while left:
        at = 0
        for message in _in_one_process(left):
            if isinstance(message, Finding):
                yield message
                at = 0 if "hung" in message.facts else at
            else:
                at = message
        left = left[at + 1 :] if at else []


def _in_one_process(checks: Sequence[Check]) -> Iterator[int | Finding]:
    """Yields the number of each check as it begins, and what it finds.

    If the process ends at a check, that is its finding.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    with _last_words() as said:
        arguments = (theirs, list(checks), said)
        process = spawn.Process(target=_in_process, args=arguments, daemon=True)
        process.start()
        theirs.close()
        at = 0
        try:
            while ours.poll(PATIENCE_SECONDS):
                message = ours.recv()
                if message is None:
                    return
                at = message if isinstance(message, int) else at
                yield message
            yield _hung(checks[at].name)
        except EOFError:
            process.join(PATIENCE_SECONDS)
            yield _ended(checks[at].name, process.exitcode, Path(said))
        finally:
            process.kill()
            process.join()


@contextlib.contextmanager
def _last_words() -> Iterator[str]:
    """The file for what TensorFlow prints; nowhere, if no temporary file can be made.

    `surroundings.temporary` says so.
    """
    with contextlib.ExitStack() as stack:
        try:
            name = stack.enter_context(
                tempfile.NamedTemporaryFile(prefix="amp-doctor-")
            ).name
        except OSError:
            name = os.devnull
        yield name


def _in_process(to: Connection, checks: Sequence[Check], said: str) -> None:
    """What the process does: sends the number of each check, then what it found.

    Where a module cannot be imported (TensorFlow is not there, or broken), no check
    after it would get further.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), 2)
    os.environ.pop("AMP_ENABLE", None)  # the doctor's own steps are no job
    for number, check in enumerate(checks):
        to.send(number)
        failed = functools.partial(_failed, check.name)
        found = fallback.attempt_or(functools.partial(_found, check), failed)
        for finding in found:
            to.send(finding)
        if "import" in found[-1].facts:
            break
    to.send(None)


def _found(check: Check) -> list[Finding]:
    return list(getattr(importlib.import_module(check.module), check.function)())


def _failed(name: str, error: Exception) -> list[Finding]:
    """The finding of a check that raised."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, ImportError):
        return [Finding(name, WRONG, f"could not be checked: {text}", _REPORT)]
    missing = isinstance(error, ModuleNotFoundError) and error.name == "tensorflow"
    text = "not installed" if missing else f"cannot be imported: {text}"
    remedy = "mend TensorFlow first: python -c 'import tensorflow' says the same"
    if missing:
        remedy = "pip install tensorflow, or tensorflow-cpu, into this Python"
    return [Finding(name, WRONG, text, remedy, {"import": error.name})]


def _hung(name: str) -> Finding:
    text = f"no answer for {PATIENCE_SECONDS:.0f} s; it was stopped"
    remedy = "see whether the device answers anybody"
    return Finding(name, WRONG, text, remedy, {"hung": True})


def _ended(name: str, code: int | None, said: Path) -> Finding:
    """The finding where the process ended at a check."""
    how = f"exit code {code}"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-code).name
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    last = " ".join(line.strip() for line in lines if not _NOISE.match(line))[-400:]
    text = f"TensorFlow ended its process here ({how})" + (f": {last}" if last else "")
    remedy = "see the other findings, onednn first; a job would end like this"
    return Finding(name, WRONG, text, remedy, {"exit": code, "said": last})
