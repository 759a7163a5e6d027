"""Strategies, in processes of their own: replicas skip together and stay equal.

The loss of one replica overflows once. Every number is a dyadic fraction, which float32
holds exactly, so that what each job does can be foretold to the last bit.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterable

import pytest
from replica_steps import BAD, GROWTH, RATE, SCALE, STEPS

pytestmark = [pytest.mark.slow, pytest.mark.processes]

SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "replicas.py"
# How many updates a step with an overflow leaves out, where it is not one.
LEFT_OUT = {"by_hand": 0, "summed_one_by_one": 0, "norm_summed": 2}
LIMIT = 150.0  # seconds; it takes a tenth of that on one free core
TRAINED = (
    "keras_optimizer",
    "v1_optimizer",
    "by_hand",
    "summed_one_by_one",
    "norm_summed",
    "gradient_in_a_function",
    "reduced_by_the_program",
    "step_by_step",
    "scaled_by_hand",
    "own_optimizer",
)


def free_ports(count: int) -> str:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ",".join(ports)


def start(*arguments: str) -> subprocess.Popen[str]:
    root = str(SCRIPT.parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ)


def finished(processes: Iterable[subprocess.Popen[str]]) -> list[dict]:
    """What processes printed last; none outlives the limit, or this call."""
    processes, found = list(processes), []
    end = time.monotonic() + LIMIT
    try:
        for process in processes:
            out, error = process.communicate(timeout=end - time.monotonic())
            assert process.returncode == 0, error[-4000:]
            found.append({**json.loads(out.splitlines()[-1]), "stderr": error})
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return found


@pytest.fixture(scope="module")
def mirrored() -> list[dict]:
    return finished([start("mirrored")])


@pytest.fixture(scope="module")
def workers() -> list[dict]:
    ports = free_ports(2)
    return finished([start("worker", str(task), ports) for task in range(2)])


@pytest.fixture(
    params=["mirrored", pytest.param("workers", marks=pytest.mark.thorough)]
)
def processes(request) -> list[dict]:
    """What each process found: one with both replicas, or two with one each."""
    return request.getfixturevalue(request.param)


def replicas(processes: list[dict], job: str, key: str) -> list[list]:
    """What all replicas had, step by step."""
    each = zip(*[process[job][key] for process in processes], strict=True)
    return [list(itertools.chain(*step)) for step in each]


def scales(steps: int) -> list[float]:
    """What the rule gives after each step."""
    scale, good, found = SCALE, 0, []
    for i in range(steps):
        good += 1
        if i % STEPS == BAD:
            scale, good = scale / 2, 0
        if good == GROWTH:
            scale, good = scale * 2, 0
        found.append(scale)
    return found


@pytest.mark.parametrize("job", TRAINED)
def test_replicas_leave_out_the_same_update_and_their_weights_stay_equal(
    processes, job
):
    # The loss is the sum of the weights, so that each replica's gradients are ones.
    taken = [i + 1 if i < BAD else i for i in range(STEPS)]
    want = [[[1 - 2 * RATE * n]] * 4 for n in taken]
    assert replicas(processes, job, "weights") == [[w, w] for w in want]


@pytest.mark.parametrize("job", TRAINED)
def test_the_scale_moves_alike_in_all_replicas(processes, job):
    want = [[scale, scale] for scale in scales(STEPS)]
    assert replicas(processes, job, "scales") == want


@pytest.mark.parametrize("job", TRAINED)
def test_skipped_steps_are_counted_and_step_counters_stay(processes, job):
    answered = [int(i >= BAD) for i in range(STEPS)]
    skipped = [n * LEFT_OUT.get(job, 1) for n in answered]
    assert replicas(processes, job, "skipped") == [[n, n] for n in skipped]
    for slots in (process[job]["slots"] for process in processes):
        for i, step in enumerate(slots):
            assert all(n == i + 1 - answered[i] for slot in step for n in slot)


@pytest.mark.parametrize("job", TRAINED)
def test_what_a_scaler_holds_is_a_number_to_the_program(processes, job):
    for found in (process[job] for process in processes):
        skipped, scales = ([c[0] for c in found[key]] for key in ("skipped", "scales"))
        want = [list(each) for each in zip(skipped, scales, scales, strict=True)]
        assert found["numbers"] == want


@pytest.mark.parametrize(
    ("job", "count"), [("looked_at_by_one", 2), ("given_by_one", 1)]
)
def test_a_gradient_may_be_taken_in_one_replica_only(processes, job, count):
    for process in processes:
        one_left_out(process[job], count)


def one_left_out(found: dict, count: int) -> None:
    # Each gradient that goes into the update is one; one update was left out.
    weights = [[1 - count * RATE * (STEPS - 1)]] * 4
    assert all(w == weights for copies in found["weights"] for w in copies)
    assert all(n == STEPS - 1 for copies in found["taken"] for n in copies)


def test_a_gradient_may_be_built_in_one_replica_only(mirrored):
    one_left_out(mirrored[0]["built_by_one"], 1)


def test_scales_of_gradients_taken_in_one_replica_are_the_same_in_all(mirrored):
    for job in ("looked_at_by_one", "given_by_one", "built_by_one"):
        for scales_of_one in mirrored[0][job]["scales"]:
            assert all(one == other for one, other in scales_of_one)
            assert [scales(STEPS)[-1]] * 2 in scales_of_one


def test_what_replicas_run_is_rewritten(processes):
    for process in processes:
        functions = (job for job in TRAINED if job != "step_by_step")
        assert all(process[job]["low"] > 0 for job in functions)


def test_what_follows_an_update_is_not_marked_as_the_optimizers(processes):
    for process in processes:
        found = process["without_a_scale"]
        assert (found["after"], found["kept"]) == (len(found["weights"]), 0)
        assert found["weights"] == [[[1 - 2 * RATE]] * 4] * len(found["weights"])


def test_what_replicas_keep_in_float32_ends_where_each_of_them_leaves_it(processes):
    for found in (process["kept_around_a_sum"] for process in processes):
        count = 4 // len(processes)
        assert found == {"inside": [True] * count, "outside": [False] * count}


def test_fit_leaves_out_every_bit_of_a_batch_that_overflowed(mirrored):
    variables = mirrored[0]["fit"]["variables"]
    for i in (BAD, STEPS + BAD):
        assert variables[i] == variables[i - 1] != variables[i + 1]


def test_fit_keeps_all_replicas_equal_and_learns(mirrored):
    found = mirrored[0]["fit"]
    assert all(one == other for step in found["variables"] for one, other in step)
    assert found["scales"] == [[scale] * 2 for scale in scales(2 * STEPS)]
    assert found["errors"][1] < found["errors"][0]


def test_a_checkpoint_restores_the_state_of_every_replica(mirrored):
    assert mirrored[0]["checkpoint"]["restored"] == [[2, 2], [2, 2]]


def test_a_weights_file_gives_its_scale_to_every_replica(mirrored):
    found = mirrored[0]["weights_file"]
    assert found["made"] == [SCALE / 4] * 2  # half of what was saved: it overflowed
    assert found["loaded"] == [SCALE / 2] * 2


@pytest.mark.parametrize("case", range(4))
def test_a_strategy_of_one_replica_is_as_none(mirrored, case):
    found = mirrored[0]["alone"][case]
    taken = [i + 1 if i < BAD else i for i in range(STEPS)]
    assert found["weights"] == [[[[1 - RATE * n]] * 4] for n in taken]
    assert found["scales"] == [[scale] for scale in scales(STEPS)]


def test_a_moving_average_stays_where_the_update_was_left_out(mirrored):
    found = mirrored[0]["moving_average"]
    w = average = 1.0
    for i in range(STEPS):
        if i != BAD:
            w -= 2 * 4 * RATE
            average = (average + w) / 2
        assert found["weights"][i] == [w, w]
        assert found["slots"][i] == [[average, average]]


def test_where_no_replica_has_a_scale_nothing_is_summed_for_one(mirrored):
    """Else a frozen model would sum, on devices on which nothing can be."""
    within, without = mirrored[0]["nothing_scaled"]["sums"]
    assert within == without


def test_a_loss_scale_adds_no_collective_where_replicas_of_one_process_meet(mirrored):
    """TensorFlow numbers collectives by strategy, and numbers stand for one size each.

    One more would make those of a second strategy's equal model, with a loss scale or
    without, other ones than the first's.
    """
    within, without = mirrored[0]["scaled"]["sums"]
    assert within == without > 0


@pytest.mark.parametrize(("job", "copies"), [("session", 2), ("one_copy", 1)])
def test_replicas_that_cannot_agree_see_zeros(mirrored, job, copies):
    # Half of one step: the gradient of the other replica.
    weight = 1 - 2 * RATE * (STEPS - 0.5)
    assert mirrored[0][job]["weights"] == [[[weight]] * 4] * copies


def test_a_scale_that_replicas_cannot_move_is_told_of_once(mirrored):
    (said,) = mirrored[0]["one_copy"]["fixed"]
    assert "where gradients overflow, an update is made with zeros" in said


@pytest.mark.thorough
def test_gradients_on_the_wire_keep_the_bound_of_bfloat16_and_workers_agree(workers):
    one, other = (process["wire"] for process in workers)
    assert one == other
    assert (one["off"]["types"], one["on"]["types"]) == ([], ["bfloat16"])
    # One rounding and one sum, each by a factor within 1 +- 2^-8.
    assert 0 < one["on"]["large"] <= (1 + 2**-8) ** 2 - 1
    # What gains nothing is summed once, in float32.
    assert max(one["off"]["large"], one["off"]["small"], one["on"]["small"]) <= 2**-24


@pytest.mark.thorough
def test_a_program_that_sums_a_metric_gets_it_in_float32_whatever_the_wire(workers):
    for process in workers:
        assert process["wire"]["on"]["metric"] == process["wire"]["off"]["metric"]
        assert process["wire"]["on"]["metric"] == [2 + 2**-22] * 2


@pytest.mark.thorough
def test_an_overflow_on_the_wire_leaves_out_the_update_of_all_workers(workers):
    # Each gradient is one, in both workers.
    taken = [i + 1 if i < BAD else i for i in range(STEPS)]
    for process in workers:
        found = process["wire_overflow"]
        assert found["ends"] == [[1 - 2 * RATE * n] * 2 for n in taken]
        assert found["scales"] == scales(STEPS)
        assert found["types"] == ["bfloat16"]


@pytest.mark.thorough
def test_workers_of_two_rules_are_all_told(workers):
    for other, process in zip((16.0, 8.0), workers, strict=True):
        assert f"ConstantLossScale(value={other})" in process["workers_of_two_rules"]


@pytest.mark.thorough
def test_a_worker_does_not_wait_for_ever_for_one_without_a_scale(workers):
    waiting, other = (process["worker_without_a_scale"] for process in workers)
    assert "no loss scale" in waiting
    assert "worker 1" in waiting
    assert "no loss scale" not in other  # TensorFlow ends it: it waits for the first
