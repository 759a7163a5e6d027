"""Branches are v1 control flow in session graphs, and only there."""

from __future__ import annotations

import pytest
import tensorflow as tf

from amp.loss_scaling import branches

v1 = tf.compat.v1


def chosen(pred):
    return branches.cond(pred, lambda: tf.constant(1.0), lambda: tf.constant(2.0))


def test_a_session_graph_gets_switches_and_keeps_its_setting():
    assert v1.control_flow_v2_enabled()
    with tf.Graph().as_default() as graph, v1.Session() as session:
        found = [chosen(tf.constant(True)), chosen(tf.constant(False))]
        assert session.run(found) == [1.0, 2.0]
        kinds = {op.type for op in graph.get_operations()}
    assert "Switch" in kinds
    assert not kinds & {"If", "StatelessIf"}
    assert v1.control_flow_v2_enabled()


def test_a_failing_branch_keeps_the_setting_too():
    def fail():
        raise LookupError("lost")

    with tf.Graph().as_default(), pytest.raises(LookupError, match="lost"):
        branches.cond(tf.constant(True), fail, fail)
    assert v1.control_flow_v2_enabled()


def test_functions_and_eager_code_have_their_own():
    assert chosen(tf.constant(True)).numpy() == 1.0
    function = tf.function(chosen).get_concrete_function(tf.TensorSpec([], tf.bool))
    kinds = {op.type for op in function.graph.get_operations()}
    assert kinds & {"If", "StatelessIf"}
    assert "Switch" not in kinds
    assert function(tf.constant(False)).numpy() == 2.0
