"""`amp run`: other people's jobs, as `python` runs them."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.kernels

FORCED = ["--dtype", "bfloat16", "--emulate", "1", "--assignment", "all"]

JOB = """
import sys
import tensorflow as tf
import beside

assert __name__ == "__main__"
print("arguments", sys.argv)
weights = tf.Variable(tf.ones([8, 8]))
fn = tf.function(lambda x: tf.tanh(tf.matmul(x, weights)))
for _ in range(2):
    fn(tf.ones([4, 8]))
sys.exit(3)
"""


def amp(place: pathlib.Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment["AMP_CACHE_DIR"] = os.environ["AMP_CACHE_DIR"]
    environment |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", "amp", *args]
    return subprocess.run(
        command, cwd=place, env=environment, text=True, capture_output=True
    )


@pytest.fixture
def job(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/train.py").write_text(JOB)
    (tmp_path / "jobs/beside.py").touch()
    return tmp_path


@pytest.mark.slow
@pytest.mark.processes
def test_run_is_python_under_amp_enable(job):
    options = [*FORCED, "--report=reports"]
    done = amp(job, "run", *options, "jobs/train.py", "--a", "1", "--", "--report")
    assert done.returncode == 3, done.stderr
    assert done.stdout == (
        "arguments ['jobs/train.py', '--a', '1', '--', '--report']\n"
    )
    first, last = [line for line in done.stderr.splitlines() if "amp: " in line]
    assert first.startswith("amp: mixed precision is on: bfloat16 emulated on ")
    assert last.startswith("amp: 1 of 1 functions rewritten, ")
    place = job / "reports"
    assert " nodes in bfloat16 as on " in last
    assert last.endswith(f", emulated, 0 steps skipped; reports: {place}")
    assert len(list((job / "reports").glob("*.json"))) == 1


@pytest.mark.processes
def test_run_a_module(job):
    (job / "tool.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    done = amp(job, "run", "-m", "tool", "-m", "x")
    assert done.returncode == 0
    assert done.stdout == "__main__ ['-m', 'x']\n"
    assert done.stderr == (
        "amp: nothing was rewritten: the job imported no TensorFlow, or see above\n"
    )


@pytest.mark.processes
def test_run_passes_a_failure_through(job):
    (job / "fails.py").write_text("raise KeyError('mine')\n")
    done = amp(job, "run", "fails.py")
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr


@pytest.mark.processes
def test_run_nothing(job):
    done = amp(job, "run", "missing.py")
    assert done.returncode == 2
    assert "there is no such file" in done.stderr
    assert amp(job, "run").returncode == 2
