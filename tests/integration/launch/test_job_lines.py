"""`job_lines`: one line when work begins, one at the end, and none without work."""

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
import atexit, dataclasses, logging, os, signal, sys, types
from amp.graph_rewrite.report import Report
from amp.integration import reports
from amp.integration.launch import job_lines
from amp.integration.process import PROCESS

state = types.ModuleType("amp.loss_scaling.state")
state.in_sessions = lambda: False
state.skipped_steps = lambda: 3
sys.modules["amp.loss_scaling.state"] = state
report = Report(
    "f", "bfloat16", False, "a device", "none", 8, 2, 3, 2e-3, 1e-3, (), "rewritten",
    trial="under way",
)

def work():
    if PROCESS.begins is not None:
        PROCESS.begins(types.SimpleNamespace(reason="bfloat16 on a device"))
    reports.add(report, None)
"""
ASKED = "job_lines.announce()\natexit.register(job_lines.end, False)\n"
WORK = "work()\n"
FIRST = "amp: mixed precision is on: bfloat16 on a device\n"
LAST = (
    "amp: 1 of 1 functions rewritten, 2 of 8 nodes in bfloat16 on a device, "
    "predicted 2.00x faster (not measured: the job ended before the race did), "
    "3 steps skipped\n"
)


def says(code: str, *, status: int = 0) -> str:
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


def test_work_has_a_line_when_it_begins_and_one_at_the_end() -> None:
    assert says(ASKED + WORK) == FIRST + LAST


def test_nobody_asked() -> None:
    assert says(WORK) == ""


def test_a_process_without_work_is_silent_unless_amp_run_started_it() -> None:
    assert says(ASKED) == ""
    always = ASKED.replace("False", "True")
    assert says(always) == "amp: no function ran in mixed precision\n"


def test_a_gain_that_was_measured_is_told_and_a_loss_is_called_one() -> None:
    raced = "report = dataclasses.replace(report, measured32=3e-3, measured16=%s)\n"
    before, _, after = LAST.partition("predicted")
    skipped = after.rpartition(", ")[2]
    faster = f"{FIRST}{before}measured 1.50x faster, {skipped}"
    assert says(raced % "2e-3" + ASKED + WORK) == faster
    slower = f"{FIRST}{before}measured 1.26x slower, {skipped}"
    assert says(raced % "3.78e-3" + ASKED + WORK) == slower


def test_float32_that_won_its_race_is_told() -> None:
    timed = "dataclasses.replace(report, measured32=1e-3, measured16=2e-3)"
    left = f"{timed}.left('measured 2.00x slower')"
    said = says(f"report = {left}\n{ASKED}{WORK}")
    assert ", float32 was the fastest in 1, 3 steps skipped\n" in said
    assert "x faster" not in said


def test_a_level_of_the_logger_above_info_silences_both() -> None:
    assert says("logging.getLogger('amp').setLevel('WARNING')\n" + ASKED + WORK) == ""
    assert says("logging.getLogger('amp').disabled = True\n" + ASKED + WORK) == ""


def test_a_fork_of_a_job_that_has_begun_says_nothing_more() -> None:
    fork = "if os.fork() == 0:\n    sys.exit(0)\nos.wait()\n"
    assert says(ASKED + WORK + fork) == FIRST + LAST


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_child_that_works_has_both_lines_and_its_parent_none(
    way: str, tmp_path: pathlib.Path
) -> None:
    script = tmp_path / "script.py"
    job = f"{RAN}\n{ASKED}\ndef job():\n    work()\n"
    main = (
        f"import multiprocessing\nif __name__ == '__main__':\n"
        f"    child = multiprocessing.get_context('{way}').Process(target=job)\n"
        "    child.start()\n    child.join()\n    sys.exit(child.exitcode)\n"
    )
    script.write_text(job + main)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", FIRST + LAST)


@pytest.mark.parametrize(
    ("ending", "status", "last"),
    [
        ("os._exit(4)\n", 4, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)\n", -9, ""),
        ("os.kill(os.getpid(), signal.SIGTERM)\n", -15, ""),
        ("sys.exit(3)\n", 3, LAST),
    ],
)
def test_the_end_of_a_job_stays_its_own(ending: str, status: int, last: str) -> None:
    assert says(ASKED + WORK + ending, status=status) == FIRST + last


def test_after_a_traceback_the_line_comes_last() -> None:
    said = says(ASKED + WORK + "raise KeyError('mine')\n", status=1)
    assert said.startswith(f"{FIRST}Traceback")
    assert said.endswith(f"KeyError: 'mine'\n{LAST}")


@pytest.mark.parametrize(
    "spoiled",
    [
        "sys.__stderr__.close()\n",
        "sys.__stderr__ = None\n",
        "state.skipped_steps = lambda: 1 / 0\n",
    ],
)
def test_what_goes_wrong_is_not_the_jobs_affair(spoiled: str) -> None:
    for code in (ASKED + spoiled + WORK, ASKED + WORK + spoiled):
        said = says(code)
        assert "Traceback" not in said
        assert says(f"{code}sys.exit(3)\n", status=3) == said
