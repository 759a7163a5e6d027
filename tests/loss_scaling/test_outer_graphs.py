"""`outward` yields a graph, then those around it, from the inside out."""

import tensorflow as tf

from amp.loss_scaling.outer_graphs import outward


def test_a_branch_in_a_function_in_a_graph_is_left_from_the_inside_out():
    seen = []

    def branch():
        seen.extend(outward(tf.compat.v1.get_default_graph()))
        return tf.constant(1.0)

    @tf.function
    def function(yes):
        return tf.cond(yes, branch, lambda: tf.constant(2.0))

    with tf.Graph().as_default() as whole:
        inside = function.get_concrete_function(tf.TensorSpec([], tf.bool)).graph
    assert len(seen) == 3
    assert seen[1:] == [inside, whole]


def test_a_graph_with_none_around_it_is_yielded_alone():
    graph = tf.Graph()
    assert [*outward(graph)] == [graph]
    assert not [*outward(None)]
