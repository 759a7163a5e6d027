"""The test finds wrong values and says what a step gains, and no more than that."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from amp.integration.doctor import self_test
from amp.integration.doctor.findings import NOTE, OK, WRONG
from amp.integration.doctor.self_test import Result
from amp.policy import Policy

RESULT = Result("bfloat16", False, "a CPU", 9, 0.006, 0.09, 2e-3, 1e-3, (1.9, 2.0, 2.1))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(self_test, "SIZES", {"CPU": (16, 32), "GPU": (16, 32)})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_emulated_step_is_right_within_what_roundings_give(dtype, monkeypatch):
    policy = Policy(dtype=dtype, emulate=True, assignment="all", strict=True)
    monkeypatch.setattr(self_test, "_policy", lambda: policy)
    result = self_test.run(0.0)
    assert result.nodes
    assert 0 < result.error <= result.bound
    assert not result.gains
    assert self_test.finding(result).status == OK


def test_the_step_of_this_machine_is_right():
    result = self_test.run(0.0)
    assert result.error <= result.bound
    assert result.emulated or len(result.gains) == self_test.LEAST_ROUNDS


def test_wrong_values_are_found(monkeypatch):
    step = self_test._step()

    def off(weights, x, y):
        first, *rest = step(weights, x, y)
        return [first * 1.5, *rest]

    monkeypatch.setattr(self_test, "_in_scope", lambda step, policy: off)
    finding = self_test.finding(self_test.run(0.0))
    assert finding.status == WRONG
    assert "computes wrong values" in finding.text


def test_values_that_are_no_numbers_are_found():
    finding = self_test.finding(dataclasses.replace(RESULT, error=float("nan")))
    assert finding.status == WRONG


@pytest.mark.parametrize(
    ("gains", "status", "text"),
    [
        ((1.9, 2.0, 2.1), OK, "is 2.00x faster (2.00 ms in float32, 1.00 ms in"),
        ((0.9, 1.01, 1.1), NOTE, "is no faster"),
        ((0.7, 0.8, 0.9), NOTE, "is 1.25x slower"),
    ],
)
def test_what_a_step_gains_is_said_with_the_spread(gains, status, text):
    finding = self_test.finding(dataclasses.replace(RESULT, gains=gains))
    assert finding.status == status
    assert text in finding.text
    half = (gains[0] + gains[1]) / 2, (gains[1] + gains[2]) / 2
    assert "3 rounds, half of them {:.2f} to {:.2f}".format(*half) in finding.text
    assert "gradients off by 0.006, 0.09 allowed" in finding.text


def test_emulation_claims_no_gain():
    finding = self_test.finding(dataclasses.replace(RESULT, emulated=True, gains=()))
    assert finding.status == OK
    assert "faster" not in finding.text


def test_a_step_that_stays_float32_is_told_of():
    finding = self_test.finding(dataclasses.replace(RESULT, nodes=0))
    assert finding.status == NOTE
    assert "nothing of the step ran in bfloat16" in finding.text


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "no memory"), "free memory"),
        (RuntimeError("a bug"), "please report"),
    ],
)
def test_a_step_that_fails_is_a_finding(monkeypatch, error, remedy):
    def fails(seconds=0.0):
        raise error

    monkeypatch.setattr(self_test, "run", fails)
    (finding,) = self_test.check()
    assert finding.status == WRONG
    assert remedy in finding.remedy


def test_a_malformed_variable_does_not_spoil_the_test(monkeypatch):
    monkeypatch.setenv("AMP_DTYPE", "flaot16")
    monkeypatch.setenv("AMP_TUNE_BUDGET", "much")
    assert self_test.run(0.0).error < 1


def test_the_steps_leave_the_weights_as_they_are():
    weights, x, y = self_test._arguments("CPU")
    before = [weight.numpy() for weight in weights]
    self_test._step()(weights, x, y)
    for weight, old in zip(weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)
