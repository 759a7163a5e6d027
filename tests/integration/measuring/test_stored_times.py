"""`measurements`: what is stored comes back, and neither damage nor another's."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import amp
from amp.errors import ProfileError
from amp.integration.measuring import hardware, stored_times
from amp.integration.process import PROCESS

pytestmark = pytest.mark.kernels

ROOT = Path(__file__).parents[3]
WRITER = """
import sys
from amp.integration.measuring import stored_times
for number in range(20):
    stored_times.add({f"{sys.argv[1]} {number}": (1.0, 2.0)})
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_times_hold_only_under_the_driver_and_settings_they_were_measured_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a job with TensorFloat-32 off would plan from products that had it on."""
    monkeypatch.setattr(hardware, "_gpu", lambda: ("NVIDIA A100-SXM4-40GB", (8, 0)))
    monkeypatch.setattr(hardware, "_DRIVERS", (tmp_path / "driver",))
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    first, second = {"MatMul": (2e-3, 1e-3)}, {"MatMul": (8e-3, 1e-3)}
    (tmp_path / "driver").write_text("550.54.15\n")
    stored_times.add(first)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        assert stored_times.load() == {}
        stored_times.add(second)
        assert stored_times.load() == second
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)
    assert stored_times.load() == first
    (tmp_path / "driver").write_text("570.10\n")
    assert stored_times.load() == {}


def test_what_is_added_comes_back() -> None:
    assert stored_times.load() == {}
    first, second = {"a": (1e-6, 2e-6)}, {"b": (3e-6, math.inf)}
    file = stored_times.add(first)
    assert stored_times.add(second) == file == stored_times.path()
    assert stored_times.load() == {**first, **second}
    stored_times.add({"a": (4.0, 5.0)})
    assert stored_times.load() == {"a": (4.0, 5.0), **second}
    assert len(file.read_text().splitlines()) == 3
    assert not [f for f in file.parent.iterdir() if f.name.startswith(".")]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "\0\0",
        lambda text: text.replace("1.0", "-1.0"),
        lambda text: text.replace("1.0", "NaN"),
        lambda text: text.replace("[1.0, 2.0]", "3"),
        lambda text: text.replace('"schema": 2', '"schema": 1'),
        lambda text: text.replace('"tensorflow": "', '"tensorflow": "9'),
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_aloud(spoil: Any) -> None:
    file = stored_times.add({"a": (1.0, 2.0)})
    file.write_text(spoil(file.read_text()))
    with pytest.warns(RuntimeWarning, match="are ignored.*\n.*where:.*\n.*allowed:"):
        assert stored_times.load() == {}
    stored_times.add({"b": (1.0, 2.0)})
    assert stored_times.load() == {"b": (1.0, 2.0)}


def test_each_device_has_a_file_of_its_own(monkeypatch: Any) -> None:
    stored_times.add({"a": (1.0, 2.0)})
    monkeypatch.setattr(hardware, "model", lambda: "another device")
    assert stored_times.load() == {}


def test_the_newest_are_kept(monkeypatch: Any) -> None:
    monkeypatch.setattr(stored_times, "MOST", 3)
    for number in range(5):
        stored_times.add({str(number): (1.0, 2.0)})
    stored_times.add({"2": (1.0, 2.0)})  # measured anew
    assert list(stored_times.load()) == ["3", "4", "2"]


def test_a_directory_that_cannot_be_written_is_said(monkeypatch: Any) -> None:
    monkeypatch.setenv("AMP_CACHE_DIR", "/dev/null/nowhere")
    assert stored_times.load() == {}
    with pytest.raises(ProfileError, match="cannot be stored"):
        stored_times.add({"a": (1.0, 2.0)})


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.processes
def test_processes_that_write_at_once_keep_each_others(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--sixteen-bit") != "found":
        pytest.skip("other processes see the CPU, and so name the file, as it is")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, name], env=environment)
        for name in ("one", "other")
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    wanted = {f"{name} {i}" for name in ("one", "other") for i in range(20)}
    assert stored_times.load().keys() == wanted


def holder(file: Path, code: str) -> subprocess.Popen[str]:
    """Another process that has the lock of a file, says so, and then runs `code`."""
    source = (
        "import fcntl, os, signal, sys, time\n"
        "lock = open(sys.argv[1], 'a'); fcntl.flock(lock, fcntl.LOCK_EX)\n"
        f"print('held', flush=True)\n{code}\n"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", source, str(file.with_suffix(".lock"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_stopped_process_holds_up_nobody_and_says_where_it_is() -> None:
    file = stored_times.path()
    process = holder(file, "os.kill(os.getpid(), signal.SIGSTOP)")
    try:
        os.waitpid(process.pid, os.WUNTRACED)
        start = time.monotonic()
        with pytest.raises(ProfileError, match=r"has held the lock[\s\S]*\.lock"):
            stored_times.add({"a": (1.0, 2.0)})
        assert time.monotonic() - start >= stored_times.PATIENCE_SECONDS
        assert stored_times.load() == {}
    finally:
        process.kill()
        process.communicate()
    stored_times.add({"a": (1.0, 2.0)})
    assert stored_times.load() == {"a": (1.0, 2.0)}


def test_whoever_waits_has_the_lock_once_it_is_given_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(stored_times, "PATIENCE_SECONDS", 60.0)
    process = holder(stored_times.path(), "signal.pause()")
    process.kill()
    stored_times.add({"a": (1.0, 2.0)})
    process.communicate()
    assert stored_times.load() == {"a": (1.0, 2.0)}


def test_a_forked_child_has_no_lock_of_its_parents() -> None:
    code = """
import os, sys, time
from amp.integration.measuring import stored_times
from amp.integration.process import PROCESS
file = stored_times.path()
with stored_times._locked(file):
    (lock,) = PROCESS.open_locks
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(bool(PROCESS.open_locks))
    os.kill(os.getpid(), 9)  # nobody is left to unlock it
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE
    )
    assert parent.wait(120) == -9
    stored_times.add({"a": (1.0, 2.0)})
    assert parent.stdin is not None
    parent.stdin.close()  # now the child ends


def test_a_lock_is_given_up_while_a_child_still_runs() -> None:
    with stored_times._locked(stored_times.path()):
        (lock,) = PROCESS.open_locks
        copy = os.dup(lock)  # as a child has it that another library forked
    try:
        stored_times.add({"a": (1.0, 2.0)})
    finally:
        os.close(copy)


def test_a_file_system_without_locks_is_written_all_the_same(monkeypatch: Any) -> None:
    def refuses(lock: int, how: int) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(stored_times.fcntl, "flock", refuses)
    stored_times.add({"a": (1.0, 2.0)})
    assert stored_times.load() == {"a": (1.0, 2.0)}


def test_a_file_is_parsed_once_and_again_when_another_job_wrote_it(
    monkeypatch: Any,
) -> None:
    parsed, parse = [], stored_times._parsed

    def counting(text: str) -> Any:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(stored_times, "_parsed", counting)
    stored_times.add({"a": (1.0, 2.0)})
    for _ in range(3):
        assert stored_times.load() == {"a": (1.0, 2.0)}
    assert len(parsed) == 1
    text = stored_times.path().read_text().replace("2.0", "3.0")
    stored_times.profiles.write(stored_times.path(), text)
    for _ in range(3):
        assert stored_times.load() == {"a": (1.0, 3.0)}
    assert len(parsed) == 2


@pytest.mark.skipif(amp.device().kind != "CPU", reason="of a CPU's kernels")
def test_what_changes_kernels_changes_the_file(monkeypatch: Any) -> None:
    paths = {stored_times.path()}
    for name, value in (("ONEDNN_MAX_CPU_ISA", "AVX2"), ("TF_ENABLE_ONEDNN_OPTS", "0")):
        monkeypatch.setenv(name, value)
        paths.add(stored_times.path())
    monkeypatch.setattr(
        stored_times.hardware.tf.config.threading,
        "get_intra_op_parallelism_threads",
        lambda: 3,
    )
    paths.add(stored_times.path())
    assert len(paths) == 4
