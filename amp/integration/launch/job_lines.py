"""The two lines of a job on stderr: what is on, and in the end what came of it.

The first comes before the first function with a product in it is planned, and the last
only in a process that wrote the first: workers that load data, and tools that import
TensorFlow, say nothing. `_tf_amp_start` asks for the last when the process ends. An
error here never reaches the job, and nothing of TensorFlow is imported.
"""

from __future__ import annotations

import importlib
import os
import sys

from amp import messages
from amp.graph_rewrite.cost.resolution import Resolution
from amp.integration import fallback
from amp.integration.process import PROCESS


def announce() -> None:
    """Has the first line written when there is something to plan."""
    PROCESS.begins = _begin


def _begin(settled: Resolution) -> None:
    """Writes the first line, and arranges for the last where nobody would ask for it.

    Args:
      settled: the policy and the device that the job begins with.
    """
    PROCESS.begun_in = os.getpid()

    def begin() -> None:
        _write(f"mixed precision is on: {settled.reason}")
        _end_in_child()

    fallback.attempt_quietly(begin, None)


def _end_in_child() -> None:
    """Has a child of `multiprocessing` write the last line: it runs no `atexit`."""
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process():
        util.Finalize(None, end, args=(False,), exitpriority=-1000)


def end(always: bool) -> None:
    """Writes the last line, once; `atexit` calls it.

    Args:
      always: whether also if nothing was there to plan.
    """
    # Errors are dropped: at the end of a process a warning helps nobody.
    fallback.attempt_quietly(lambda: _end(always), None)


def _end(always: bool) -> None:
    if always or PROCESS.begun_in == os.getpid():
        _write(_last_line())
    PROCESS.begun_in = None


def _last_line() -> str:
    state = sys.modules.get("amp.loss_scaling.state")
    if state is None:
        return "nothing was rewritten: see above"
    # By name: a job that imported this package anew has its reports in the new modules.
    reports = importlib.import_module("amp.integration.reports")
    skipped, complete = state.skipped_steps(), True
    if state.in_sessions():
        counts = importlib.import_module("amp.integration.sessions.skipped_counts")
        in_sessions, complete = counts.total()
        skipped += in_sessions
    line: str = reports.summary(os.environ.get("AMP_REPORT"), skipped, complete)
    return line


def _write(text: str) -> None:
    if not messages.silenced():
        messages.to_stderr(text)
