"""`exemptions`: which policies have no race."""

from __future__ import annotations

import sys
import types

import pytest
from tensorflow.python.eager import context as context_lib

from amp.integration.observing import accuracy_check
from amp.integration.racing import exemptions
from amp.policy import Policy

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, ""),
        ({"trial": False}, "AMP_TRIAL=0"),
        ({"assignment": "all"}, "assignment='all'"),
        ({"assignment": "all", "trial": True}, ""),
        ({"emulate": True}, "emulation"),
        ({"emulate": True, "trial": True}, "emulation"),
    ],
)
def test_a_function_races_unless_its_plan_is_not_for_speed(
    fields: dict[str, object], why: str
) -> None:
    found = exemptions.why_not(Policy(dtype="bfloat16", **fields))
    assert (why in found) if why else found == ""


def test_deterministic_operations_and_several_workers_have_no_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = Policy(dtype="bfloat16")
    with monkeypatch.context() as patch:
        config = exemptions.config_lib
        patch.setattr(config, "is_op_determinism_enabled", lambda: True)
        assert "deterministic" in exemptions.why_not(policy)
        assert exemptions.why_not(Policy(dtype="bfloat16", trial=True)) == ""
    with monkeypatch.context() as patch:
        context = context_lib.context()
        patch.setattr(context, "_collective_ops_server_def", object())
        assert "several workers" in exemptions.why_not(policy)
    assert exemptions.why_not(policy) == ""


def test_processes_of_horovod_neither_race_nor_are_checked_each_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, size = Policy(dtype="bfloat16"), 1
    library = types.SimpleNamespace(is_initialized=lambda: True, size=lambda: size)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", library)
    assert exemptions.why_not(policy) == accuracy_check.why_not(policy) == ""
    size = 2
    assert "several workers" in exemptions.why_not(policy)
    assert "several workers" in accuracy_check.why_not(policy)
