"""A tally counts calls, and for each variable those with a gradient out of range."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from amp.loss_scaling import tally
from amp.loss_scaling.tally import Tally


def added(checks, owners, count):
    flags = {index: tf.constant(flag) for index, flag in checks.items()}
    return tally.added(flags, owners, count).numpy().tolist()


def test_a_call_counts_and_each_gradient_that_is_not_finite_for_its_variable():
    assert added({0: True, 1: False}, (0, 1), 2) == [1, 0, 1]
    assert added({0: True, 1: False}, (1, 0), 2) == [1, 1, 0]


def test_what_is_no_gradient_of_a_variable_counts_for_none():
    assert added({0: False, 2: True}, (None, 0, 1), 2) == [1, 0, 0]


def test_calls_in_which_several_replicas_overflow_count_once():
    """So an overflow in half of the calls, in both replicas, is none in each call."""
    found = tally.read([np.array([4, 0, 2]), np.array([4, 1, 2])], ["a", "b"])
    assert found == Tally(4, {"a": 1, "b": 2})
    assert not found.never_finite


def test_the_variable_that_a_backward_pass_meets_first_is_named_first():
    assert Tally(3, {"first": 2, "fine": 0, "last": 2}).names == ["last", "first"]


def test_never_finite_means_that_one_gradient_failed_in_every_call():
    assert Tally(2, {"a": 2, "b": 0}).never_finite
    assert not Tally(2, {"a": 1, "b": 1}).never_finite
    assert not Tally(0, {"a": 0}).never_finite


def test_what_came_since_an_earlier_reading():
    assert Tally(5, {"a": 3}).since(Tally(2, {"a": 2})) == Tally(3, {"a": 1})
    assert Tally(5, {"a": 3}).since(None) == Tally(5, {"a": 3})


def test_a_tally_that_began_anew_counts_whole():
    """A restored state has it begin at 0: less than before is no negative count."""
    assert Tally(2, {"a": 1}).since(Tally(6, {"a": 3})) == Tally(2, {"a": 1})
