"""The line that a job ends with: what ran in 16 bits, its gain, what was skipped.

`_tf_amp_start` asks for it when the process ends. An error here never reaches the job,
and nothing of TensorFlow is imported.
"""

from __future__ import annotations

import importlib
import os
import sys

from amp.integration import fallback


def say(always: bool) -> None:
    """Prints a line about the job on stderr.

    Args:
      always: whether to print it also if no function ran in mixed precision.
    """

    def write() -> None:
        line = _line(always=always)
        if line and sys.__stderr__ is not None:  # the job may have closed its own
            sys.__stderr__.write(f"amp: {line}\n")
            sys.__stderr__.flush()

    # Errors are dropped: at the end of a process a warning helps nobody.
    fallback.attempt_quietly(write, None)


def _line(*, always: bool) -> str:
    state = sys.modules.get("amp.loss_scaling.state")
    if state is None:
        return "nothing was rewritten: see above" if always else ""
    # By name: a job that imported this package anew has its reports in the new modules.
    reports = importlib.import_module("amp.integration.reports")
    if not (always or reports.reports()):
        return ""
    skipped = None if state.in_sessions() else state.skipped_steps()
    line: str = reports.summary(os.environ.get("AMP_REPORT"), skipped)
    return line
