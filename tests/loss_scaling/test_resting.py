"""`resting`: gradients that depend on the scale are not scaled, and it is said once."""

from __future__ import annotations

import logging

import pytest
import tensorflow as tf

from amp.loss_scaling import resting, state, traced_updates
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.scale import DynamicLossScale
from amp.loss_scaling.scaler import Scaler


@pytest.fixture
def scaler() -> Scaler:
    variables = [tf.Variable(1.0, name="one"), tf.Variable(2.0, name="two")]
    found = state.find(("job.py", 7), variables, DynamicLossScale())
    found.held = variables  # scalers hold their variables weakly
    return found


def test_a_scaler_rests_once_it_is_told_to(
    scaler: Scaler, caplog: pytest.LogCaptureFixture
) -> None:
    assert not resting.rests(scaler)
    before = traced_updates.generation()
    with caplog.at_level(logging.WARNING, "amp"):
        resting.rest([scaler.label(1)])
        resting.rest([scaler.label(1), scaler.label(0)])
    assert resting.rests(scaler)
    assert traced_updates.generation() == before + 1  # so that functions trace again
    (said,) = caplog.messages
    assert "job.py:7 rests: the gradients of two depend on the loss scale" in said


@pytest.mark.parametrize("label", ["", "12345:one", "x"])
def test_a_label_of_no_scaler_is_passed_over(scaler: Scaler, label: str) -> None:
    before = traced_updates.generation()
    resting.rest([label])
    assert not resting.rests(scaler)
    assert traced_updates.generation() == before


def test_where_nothing_is_bent_no_group_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job without a scaler saves none."""
    monkeypatch.setattr(SCALING, "group", [])
    resting.rest([])
    resting.rest([""])
    assert SCALING.group == []


def test_no_scaler_does_not_rest() -> None:
    assert not resting.rests(None)
