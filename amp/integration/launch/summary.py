"""The line that a job ends with: what ran in 16 bits, its gain, what was skipped.

`AMP_ENABLE=1` (`autostart`) and `amp run` ask for it; it is printed once in a process.
An error here never reaches the job, and nothing of TensorFlow is imported.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys

from amp.integration import fallback
from amp.integration.process import PROCESS


def at_exit(always: bool) -> None:
    """Has the process print a line about the job on stderr when it ends.

    Python calls exit handlers in reverse order, so most of the job's own come before.
    Children made by `fork` print nothing.

    Args:
      always: whether to print the line also if no function ran in mixed precision, as
        `amp run` does. Not with `AMP_ENABLE=1`, which every process that a job starts
        inherits, also those that compute nothing.
    """
    if not PROCESS.at_exit:
        atexit.register(_say, os.getpid())
    PROCESS.at_exit.add(always)


def _say(process: int) -> None:
    errors = sys.__stderr__  # the job may have replaced and closed its own
    if os.getpid() != process or errors is None:
        return

    def say() -> None:
        line = _line(always=True in PROCESS.at_exit)
        if line:
            errors.write(f"amp: {line}\n")
            errors.flush()

    # Errors are dropped: at the end of a process a warning helps nobody.
    fallback.attempt_quietly(say, None)


def _line(*, always: bool) -> str:
    state = sys.modules.get("amp.loss_scaling.state")
    if state is None:
        nothing = "nothing was rewritten: the job imported no TensorFlow, or see above"
        return nothing if always else ""
    # By name: a job that imported this package anew has its reports in the new modules.
    reports = importlib.import_module("amp.integration.reports")
    if not (always or reports.reports()):
        return ""
    skipped = None if state.in_sessions() else state.skipped_steps()
    line: str = reports.summary(os.environ.get("AMP_REPORT"), skipped)
    return line
