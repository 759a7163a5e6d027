"""`ParameterServerStrategy`: a coordinator, one parameter server, two workers.

Steps are scheduled on workers, which do not wait for each other. Every number is a
dyadic fraction, which float32 holds exactly; gradients are 1, so order does not matter.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.thorough]

SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "coordinator.py"
LIMIT = 150.0  # seconds; it takes a tenth of that on one free core
RATE = 2.0**-6
NEAR_ONE, ONE = 1.0 + 2.0**-12, 1.0  # a product in float32, and in float16


@pytest.fixture(scope="module")
def results():
    """What each job found."""
    path = os.pathsep.join([str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environ,
        start_new_session=True,  # so that its servers end with it
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert out, err[-4000:]
    return json.loads(out.splitlines()[-1])


def momentum(steps):
    """The weight and its slot after so many gradients of 1."""
    w, slot = 1.0, 0.0
    for _ in range(steps):
        slot = 0.5 * slot - RATE
        w += slot
    return [w, w], [[slot, slot]]


def test_an_update_by_hand_sees_zeros(results):
    found = results["hand"]
    assert found["w"] == [1.0 - 6 * RATE] * 2
    assert found["scale"] == 8.0  # halved by the overflow, doubled after four


def test_keras_leaves_out_the_step_that_overflowed(results):
    found = results["keras"]
    assert (found["w"], found["slots"]) == momentum(6)
    assert (found["steps"], found["skipped"], found["scale"]) == (6, 1, 8.0)


def test_workers_at_once_leave_out_their_own_steps_alone(results):
    found = results["together"]
    assert found["w"] == [1.0 - 20 * RATE] * 2
    assert found["skipped"] == 10


@pytest.mark.parametrize("job", ["hand", "keras", "together"])
def test_twins_run_on_workers_and_the_scale_is_kept_for_all(results, job):
    assert set(results[job]["products"]) == {ONE}
    assert results[job]["device"].startswith("/job:ps/")


def test_a_scope_holds_for_what_is_scheduled_inside(results):
    found = results["scope"]
    assert found["products"] == [ONE, ONE, NEAR_ONE]
    assert found["w"] == [1.0 - 2 * RATE] * 2


def test_where_workers_refuse_a_twin_no_step_is_lost_or_taken_twice(results):
    found = results["refused"]
    assert (found["w"], found["slots"]) == momentum(2)
    assert set(found["products"]) == {NEAR_ONE}
    assert any("runs in float32, as it was" in text for text in found["said"])


def test_a_worker_that_comes_back_goes_on_with_the_twin(results):
    found = results["restart"]
    assert (found["w"], found["slots"]) == momentum(7)
    assert set(found["products"]) == {ONE}
    assert (found["steps"], found["skipped"]) == (7, 1)
