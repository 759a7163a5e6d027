"""Scalers kept as numbers go on as they were, made before or only afterwards."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

from amp.errors import CheckpointError
from amp.loss_scaling import ConstantLossScale, DynamicLossScale, backup, state
from amp.loss_scaling.process import SCALING

RULE = DynamicLossScale(initial=8.0, hysteresis=3)
# Off every default, and the largest step count that fits.
ROW = [4.0, 7.0, 2.0, 2.0**31 - 1]


@pytest.fixture(autouse=True)
def nothing_waits():
    yield
    assert SCALING.waiting == []


@pytest.fixture
def sources():
    return [tf.Variable(1.0), tf.Variable(2.0)]


def scaler_of(variables, line=1, rule=RULE):
    return state.find(("here.py", line), variables, rule)


def numbers(*rows):
    return np.array(rows, np.float64)


def test_what_is_kept_is_given_back(sources):
    scaler = scaler_of(sources)
    for field, value in zip(backup.FIELDS, ROW, strict=True):
        default = getattr(scaler, field)
        assert default.numpy() != value
        default.assign(default.dtype.as_numpy_dtype(value))
    scaler.overflow.assign([1, 0])
    kept = backup.checked(state.kept(sources), "here")
    assert kept.tolist() == [ROW]
    others = [tf.Variable(1.0)]
    state.give_back(others, kept)
    assert scaler_of(others).overflow.numpy().tolist() == [0]
    assert state.kept(others).tolist() == [ROW]


def test_a_living_scaler_forgets_overflows_of_before(sources):
    scaler = scaler_of(sources)
    scaler.overflow.assign([1, 1])
    state.give_back(sources, numbers(ROW))
    assert state.kept(sources).tolist() == [ROW]
    assert scaler.overflow.numpy().tolist() == [0, 0]


def test_scalers_take_their_rows_in_the_order_they_are_made(sources):
    first = scaler_of(sources)
    rows = numbers(ROW, [2.0, 1, 0, 0], [16.0, 3, 1, 2])
    state.give_back(sources, rows)
    assert first.scale.numpy() == 4.0
    scaler_of(sources[:1], line=2)
    scaler_of(sources[1:], line=3)
    assert state.kept(sources).tolist() == rows.tolist()
    assert scaler_of(sources, line=4).scale.numpy() == RULE.initial


def test_a_scaler_made_while_tracing_takes_its_row(sources):
    state.give_back(sources, numbers(ROW))
    tf.function(lambda: scaler_of(sources).factor()).get_concrete_function()
    assert state.kept(sources).tolist() == [ROW]


def test_rows_are_for_the_variables_they_were_given_for(sources):
    state.give_back(sources[:1], numbers(ROW))
    assert scaler_of(sources[1:]).scale.numpy() == RULE.initial
    assert scaler_of(sources[:1]).scale.numpy() == 4.0


def test_what_is_given_later_counts(sources):
    state.give_back(sources, numbers(ROW, ROW))
    state.give_back(sources, numbers([2.0, 0, 0, 0]))
    assert scaler_of(sources).scale.numpy() == 2.0
    assert scaler_of(sources, line=2).scale.numpy() == RULE.initial


def test_rows_of_variables_that_are_gone_are_dropped(sources):
    passing = [tf.Variable(1.0)]
    state.give_back(passing, numbers(ROW))
    del passing
    gc.collect()
    assert scaler_of(sources).scale.numpy() == RULE.initial


def test_a_constant_scale_stays_and_its_skipped_steps_go_on(sources):
    scaler = scaler_of(sources, rule=ConstantLossScale(64.0))
    state.give_back(sources, numbers(ROW))
    assert scaler.scale.numpy() == 64.0
    assert scaler.skipped_steps.numpy() == ROW[3]


@pytest.mark.parametrize(
    "found",
    [
        np.ones([1, 3]),
        np.ones([4]),
        np.float64(1.0),
        np.array([[b"1"] * 4]),
        numbers([0.0, 0, 0, 0]),
        numbers([np.nan, 0, 0, 0]),
        numbers([2.0**127, 0, 0, 0]),
        numbers([1.0, -1, 0, 0]),
        numbers([1.0, 0, 0.5, 0]),
        numbers([1.0, 0, 0, np.inf]),
    ],
)
def test_what_cannot_have_been_kept_is_refused(found):
    with pytest.raises(CheckpointError, match="cannot be read") as error:
        backup.checked(found, "the place")
    assert error.value.where == "the place"
    for part in ("scale, good_steps", "goes on as it is"):
        assert part in str(error.value)


def test_nothing_kept_is_nothing_given(sources):
    assert state.kept(sources).shape == (0, 4)
    state.give_back(sources, backup.checked(state.kept(sources), "here"))
    assert scaler_of(sources).scale.numpy() == RULE.initial
