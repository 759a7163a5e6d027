"""`summary`: one line at the end of a job, and none where there is nothing to say."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

ROOT = pathlib.Path(__file__).parents[3]

# A job whose functions were rewritten, without the seconds that TensorFlow takes.
RAN = """
import dataclasses, os, sys, types
from amp.graph_rewrite.report import Report
from amp.integration import reports
from amp.integration.launch import summary

state = types.ModuleType("amp.loss_scaling.state")
state.in_sessions = lambda: False
state.skipped_steps = lambda: 3
sys.modules["amp.loss_scaling.state"] = state
report = Report(
    "f", "bfloat16", False, "a device", "none", 8, 2, 3, 2e-3, 1e-3, (), "rewritten"
)
"""
ONCE = "reports.add(report, None)\n"
ASKED = "import atexit\natexit.register(summary.say, False)\n"
LINE = (
    "amp: 1 of 1 functions rewritten, 2 of 8 nodes in bfloat16 on a device, "
    "predicted 2.00x faster, 3 steps skipped\n"
)


def ends_with(code: str, *, status: int = 0) -> str:
    """What a process says on stderr, every warning an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RAN + code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
    )
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_the_line_says_the_type_the_device_the_gain_and_the_steps_skipped() -> None:
    assert ends_with(ASKED + ONCE) == LINE


def test_a_trial_that_ended_is_told() -> None:
    tried = "report = dataclasses.replace(report, measured32=3e-3, measured16=2e-3)\n"
    want = LINE.replace(" faster,", " faster, measured 1.50x in 1,")
    assert ends_with(tried + ASKED + ONCE) == want


def test_nobody_asked() -> None:
    assert ends_with(ONCE) == ""


def test_a_process_that_computed_nothing_is_silent_unless_amp_run_started_it() -> None:
    assert ends_with(ASKED) == ""
    always = ASKED.replace("False", "True")
    assert ends_with(always) == "amp: no function ran in mixed precision\n"


@pytest.mark.parametrize(
    "spoiled",
    [
        "sys.__stderr__.close()\n",
        "sys.__stderr__ = None\n",
        "state.skipped_steps = lambda: 1 / 0\n",
    ],
)
def test_what_goes_wrong_is_not_the_jobs_affair(spoiled: str) -> None:
    said = ends_with(f"{ASKED}{ONCE}{spoiled}")
    assert "Traceback" not in said
    assert ends_with(f"{ASKED}{ONCE}{spoiled}sys.exit(3)\n", status=3) == said
