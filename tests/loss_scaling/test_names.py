"""Scalers are called after what people know: their variables, else their line."""

import gc

import pytest
import tensorflow as tf

from amp import loss_scaling
from amp.loss_scaling import DynamicLossScale, names, placement, state
from amp.loss_scaling.process import SCALING


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        (["dense/kernel:0"], "dense/kernel"),
        (["critic/a/w:0", "critic/b/w:0", "critic/b/c:0"], "critic (3 variables)"),
        (["net/first/w:0", "net/first/b:0"], "net/first (2 variables)"),
        (["net/w:0", "net/first/b:0"], "net (2 variables)"),
        (["w:0", "net/b:0"], "w and 1 more"),
        (["net/b:0", "network/b:0", "w"], "net/b and 2 more"),
        (["Variable:0"], "train.py:42"),
        (["Variable:0", "Variable_1:0"], "train.py:42"),
        (["Variable:0", "w:0"], "Variable and 1 more"),
    ],
)
def test_the_name_is_that_of_the_variables_else_the_line(variables, name):
    assert names.of(variables, names.line("/home/user/train.py", 42)) == name


def test_a_name_that_is_taken_gets_a_number():
    assert names.free("net", {"other"}) == "net"
    assert names.free("net", {"net", "net #2"}) == "net #3"


@pytest.fixture
def process():
    gc.collect()
    SCALING.reset()
    yield
    SCALING.reset()


def made(variables, line=7, **place):
    site = placement.ScalerSite(**place)
    return state.find(("/home/user/train.py", line), variables, RULE, site)


RULE = DynamicLossScale(initial=8.0)


def test_two_scalers_of_the_same_variables_have_two_names(process):
    kernel = tf.Variable(1.0, name="kernel")
    first, second = made([kernel]), made([kernel], line=9)
    assert (first.name, second.name) == ("kernel", "kernel #2")
    assert made([kernel]) is first
    assert loss_scaling.scalers() == [first, second]


def test_the_name_of_a_scaler_that_is_gone_is_free_again(process):
    kernel = tf.Variable(1.0, name="kernel")
    made([kernel])
    del kernel
    gc.collect()
    kernel = tf.Variable(1.0, name="kernel")
    assert made([kernel]).name == "kernel"


def test_a_scaler_shows_its_name_its_numbers_its_rule_and_its_line(process):
    kernel = tf.Variable(1.0, name="kernel")
    scaler = made([kernel])
    scaler.good_steps.assign(3)
    scaler.skipped_steps.assign(2)
    expected = (
        "<Scaler 'kernel': scale 8, good steps 3, skipped 2; rule dynamic, from 8; "
        "at train.py:7>"
    )
    assert repr(scaler) == expected
    assert repr(loss_scaling.current()) == expected


def test_a_scaler_shows_its_numbers_while_a_function_is_traced(process):
    kernel, shown = tf.Variable(1.0, name="kernel"), []
    made([kernel])
    tf.function(lambda: shown.append(repr(loss_scaling.scalers()[0])))()
    assert "scale 8," in shown[0]


def test_a_scaler_of_a_session_graph_shows_no_numbers(process):
    with tf.Graph().as_default():
        kernel = tf.compat.v1.get_variable("kernel", [])
        scaler = made([kernel])
        assert loss_scaling.scalers() == [scaler]
    assert repr(scaler) == ("<Scaler 'kernel': rule dynamic, from 8; at train.py:7>")
    assert repr(loss_scaling.current()) == "<no loss scalers>"


def test_variables_of_one_name_are_told_apart():
    assert names.distinct(["a:0", "b:0", "a:0"]) == ("a", "b", "a #2")
