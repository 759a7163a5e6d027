"""What a benchmark ran on: versions, and what the plugin makes of the machine."""

from __future__ import annotations

import json

import tensorflow as tf

import amp
from benchmarks import machine


def test_the_machine_tells_versions_and_type() -> None:
    found = machine.machine()
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["tensorflow"] == tf.__version__
    assert found["cores"] >= 1
    assert found["cpu"]
    assert set(found["flags"]) <= machine.FLAGS


def test_the_policy_of_the_environment_decides_the_type(monkeypatch) -> None:
    monkeypatch.setenv("AMP_DTYPE", "bfloat16")
    monkeypatch.setenv("AMP_EMULATE", "1")
    found = machine.machine()
    assert found["dtype"] == "bfloat16"
    assert found["reason"] == amp.resolve(amp.Policy.from_env()).reason
