"""A parameter server and two workers over gRPC, in processes of their own.

One worker's loss overflows once. Synchronous training takes as many steps as in
float32, with zeros for that worker's share; asynchronous training leaves out that
worker's update alone. Every number is a dyadic fraction, which float32 holds exactly.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from parameter_server import BAD, JOBS, STEPS, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.thorough]

SCALE = "amp_loss_scale_0/scale"
SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "parameter_server.py"
LIMIT = 150.0  # seconds; it takes a tenth of that on one free core


def start(role: str, task: int, *rest: str) -> subprocess.Popen[str]:
    root = str(SCRIPT.parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), role, str(task), *rest]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def results(folder):
    """What each worker found, by job."""
    rest = ",".join(map(str, free_ports(3))), str(folder)
    server = start("ps", 0, *rest)
    workers = [start("worker", task, *rest) for task in range(2)]
    try:
        end = time.monotonic() + LIMIT
        found = []
        for worker in workers:
            out, err = worker.communicate(timeout=max(end - time.monotonic(), 0.1))
            assert worker.returncode == 0, err[-4000:]
            found.append(json.loads(out.splitlines()[-1]))
        return found
    finally:
        for process in [server, *workers]:
            process.kill()
            process.communicate()


def momentum(gradients):
    """The weight and its slot after these gradients, as the job trains them."""
    w, slot = 1.0, 0.0
    for gradient in gradients:
        slot = 0.5 * slot + gradient
        w -= 2.0**-6 * slot
    return [[w, w], [slot, slot]]


@pytest.mark.parametrize("job", [name for name in JOBS if name[:4] == "sync"])
def test_synchronous_workers_take_every_step(results, job):
    scaled, bad, _ = JOBS[job]
    shares = [1.0 if bad is None or i != BAD else 0.5 for i in range(STEPS)]
    weights, slot = momentum(shares)
    for task, found in enumerate(results):
        w, step, slots, *scale = found[job]
        assert (w, step, slots) == (weights, STEPS, slot)
        assert scale == ([] if task not in scaled else [4.0 if task == bad else 8.0])


@pytest.mark.parametrize("job", [name for name in JOBS if name[:5] == "async"])
def test_an_asynchronous_worker_leaves_out_its_own_update(results, job):
    weights, slot = momentum([1.0] * (2 * STEPS - 1))
    for task, found in enumerate(results):
        w, step, slots, scale = found[job]
        assert (w, step, slots) == (weights, 2 * STEPS - 1, slot)
        assert scale == (4.0 if task == 1 else 8.0)


@pytest.mark.parametrize("job", JOBS)
def test_the_chief_saves_its_own_scale(results, folder, job):
    scaled, bad, _ = JOBS[job]
    saved = tf.train.load_checkpoint(str(folder / job))
    assert saved.get_tensor("w").tolist() == results[0][job][0]
    assert saved.has_tensor(SCALE) == (0 in scaled)
    if 0 in scaled:
        assert saved.get_tensor(SCALE) == (4.0 if bad == 0 else 8.0)
