"""A session graph's scaler: the task of the loss, and there beside the variables."""

from __future__ import annotations

import pytest

from amp.loss_scaling import placement

WORKER, SERVER = "/job:worker/replica:0/task:1", "/job:ps/replica:0/task:0"


@pytest.mark.parametrize(
    ("loss", "variable", "found"),
    [
        ("", "", ""),
        ("", "/device:GPU:1", "/device:GPU:1"),
        ("/device:GPU:0", "", "/device:GPU:0"),
        ("/device:GPU:0", "/device:GPU:1", "/device:GPU:1"),
        (WORKER, SERVER, WORKER),
        (f"{WORKER}/device:GPU:0", f"{SERVER}/device:CPU:0", f"{WORKER}/device:GPU:0"),
        (WORKER, f"{WORKER}/device:GPU:2", f"{WORKER}/device:GPU:2"),
    ],
)
def test_a_session_graphs_scaler_stands_in_the_task_of_the_loss(loss, variable, found):
    assert placement.in_session(loss, variable) == found


def test_a_task_is_what_is_left_of_a_device_without_its_kind():
    assert placement.task(f"{WORKER}/device:GPU:0") == WORKER
    assert placement.task("/device:GPU:0") is None


def test_this_process_is_not_elsewhere():
    assert not placement.elsewhere("")
    assert not placement.elsewhere("/job:localhost/replica:0/task:0/device:CPU:0")
    assert placement.elsewhere(SERVER)
