"""The line that a job ends with: what ran in 16 bits, its gain, what was skipped.

For `AMP_ENABLE=1` and `amp run`, once a process. What went wrong here is never the
job's affair, and nothing of TensorFlow is imported.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys

from amp.integration import fallback
from amp.integration.process import PROCESS


def at_exit(always: bool) -> None:
    """Lets the process say at its end, on stderr, what became of the job.

    Handlers that are registered later, such as most of the job's own, come before.
    Children made by `fork` say nothing.

    Args:
      always: whether a process that has run no function in mixed precision says so. It
        is what `amp run` was asked about; `AMP_ENABLE=1` is inherited by every process
        that a job starts, and those that compute nothing keep silent.
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

    # At the end of a process there is nobody left to tell.
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
