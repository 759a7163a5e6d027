"""What was the first tensor that was not finite is told by where the others came from.

That a variant is the step, with one more result, is tested where it runs, in
integration/observing/test_step_probes.py.
"""

from __future__ import annotations

import tensorflow as tf

from amp.graph_rewrite.graph import ir, serde
from amp.graph_rewrite.normalize import step_probes
from amp.graph_rewrite.normalize.step_probes import Tensor, first_bad
from amp.integration.training import markers

BACK = "gradient_tape/x"


def tensor(name, *sources):
    return Tensor((name, 0), "Mul", ir.FLOAT, sources, is_state=False)


def first(tensors, bad, name):
    found = first_bad(tensors, bad.__contains__, (name, 0))
    return None if found is None else tensors[found].edge[0]


CHAIN = [tensor("a"), tensor("b", 0), tensor("c", 1), tensor(BACK, 2, 0)]


def test_the_first_of_a_chain_is_found():
    assert first(CHAIN, {1, 2, 3}, BACK) == "b"
    assert first(CHAIN, {0, 1, 2, 3}, BACK) == "a"


def test_a_mask_of_infinities_is_not_to_blame_for_what_others_spoil():
    tensors = [tensor("mask"), tensor("softmax", 0), tensor("log", 1), tensor(BACK, 2)]
    assert first(tensors, {0, 2, 3}, BACK) == "log"


def test_the_backward_pass_is_blamed_only_if_the_forward_pass_is_finite():
    assert first(CHAIN, {3}, BACK) == BACK
    both = [*CHAIN, tensor("gradient_tape/y", 3, 0)]
    assert first(both, {0, 3, 4}, "gradient_tape/y") == "a"


def test_a_finite_gradient_has_no_first():
    assert first(CHAIN, {0, 1, 2}, BACK) is None


def graph_of(build):
    with tf.Graph().as_default() as graph:
        build()
    return serde.read_graph(graph.as_graph_def())


def unscaled(value, label="0:w"):
    factor = tf.constant(1.0)
    with (
        markers.attribute_scope(ir.UNSCALE),
        markers.attribute_scope(ir.SOURCE, text=label),
    ):
        tf.raw_ops.MulNoNan(x=value, y=factor)


def test_gradients_are_found_by_their_label_with_all_they_are_computed_from():
    def build():
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        index = tf.cast(x, tf.int32)
        unscaled(tf.cast(index, tf.float32, name="again") * 2.0)
        tf.exp(x, name="aside")

    module = graph_of(build)
    at = step_probes.holder(module)
    assert [gradient.label for gradient in at.gradients] == ["0:w"]
    found = step_probes.tensors(module, at)
    names = [each.edge[0] for each in found]
    assert "aside" not in names
    sources = {
        n: [names[s] for s in t.sources] for n, t in zip(names, found, strict=True)
    }
    assert sources["again"] == ["x"], "past what is no floating tensor"


def test_a_graph_without_scaled_gradients_has_no_holder():
    assert step_probes.holder(graph_of(lambda: tf.constant(1.0))) is None


def test_what_may_have_no_value_is_not_observed():
    def build():
        x = tf.compat.v1.placeholder(tf.float32, [], "x")
        dead, _ = tf.raw_ops.Switch(data=x, pred=tf.constant(True))
        unscaled(tf.exp(dead, name="in_a_branch") + tf.sqrt(x, name="outside"))

    module = graph_of(build)
    found = step_probes.tensors(module, step_probes.holder(module))
    assert {each.edge[0] for each in found} == {"x", "outside"}
