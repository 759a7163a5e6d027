"""`bundles`: what passes through an IdentityN is read where it comes from."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
from rewriting import graph_def, module_of, nodes, rewritten, settled, spec, traced, v1

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.bundles import bypass
from amp.graph_rewrite.rewrite import Rewrite, rewrite

NOTHING: frozenset[str] = frozenset()


def swish(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.silu(x @ x) @ x


def mixed(x: tf.Tensor) -> tf.Tensor:
    """A product and a float32 value, handed on together to readers of their types."""
    product, single = tf.raw_ops.IdentityN(input=[x @ x, tf.math.lgamma(x)])
    return product @ product + tf.math.lgamma(single)


def casts(made: Rewrite) -> list[ir.Node]:
    return [n for n in made.graph.main.nodes.values() if n.op == "Cast"]


def test_readers_read_the_inputs_and_nothing_is_left_of_it_in_a_function() -> None:
    module, _ = traced(swish, spec(4, 4))
    (name,) = (n.name for n in module.main.nodes.values() if n.op == "IdentityN")
    main = bypass(module, NOTHING, False).main
    assert main.nodes[name].op == "NoOp"
    assert not any(edge[0] == name for edge in main.readers)
    inputs = {source for source, _ in module.main.nodes[name].inputs}
    assert set(main.nodes[name].controls) == inputs & main.nodes.keys()


def test_what_it_hands_on_has_the_type_that_each_reader_wants() -> None:
    module, _ = traced(mixed, spec(4, 4))
    made = rewrite(module, settled())
    down = [n for n in casts(made) if n.types("DstT") == (ir.BFLOAT16,)]
    assert {node.inputs[0] for node in down} == {("x", 0)}


def test_a_graph_that_gradients_may_be_taken_of_keeps_it() -> None:
    module, _ = traced(mixed, spec(4, 4))
    policy = dataclasses.replace(settled(), differentiable=True)
    made = rewrite(module, policy).graph.main.nodes
    assert [node.op for node in made.values()].count("IdentityN") == 1
    assert bypass(module, NOTHING, True) is module


def test_a_twin_to_differentiate_has_the_custom_gradient() -> None:
    @tf.custom_gradient
    def odd(x: tf.Tensor) -> tuple[tf.Tensor, object]:
        return tf.identity(x), lambda grad: 7.0 * grad

    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(odd(tf.matmul(x, x)), x)

    x = np.eye(4, dtype=np.float32)
    policy = amp.Policy(dtype="bfloat16", assignment="all", strict=True)
    twin = amp.twin(fn, x, policy=policy)
    ops = [operation.type for operation in twin.graph.get_operations()]
    assert "IdentityN" in ops


def test_in_a_graphdef_it_can_still_be_fetched_and_fed() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [4, 4], name="x")
        both = tf.raw_ops.IdentityN(input=[x @ x, x], name="both")
        tf.matmul(both[0], both[1], name="end")

    proto = graph_def(build)
    twin = nodes(rewritten(proto, fetches=["both", "end"]).graph)
    assert not any(name.startswith("both:") for name in twin["end"].input)
    assert twin["both"].op == "IdentityN"
    fed = bypass(module_of(proto), frozenset({"both"}), False).main
    assert fed.nodes["end"].inputs == (("both", 0), ("both", 1))


def test_what_waits_for_it_waits_for_its_inputs() -> None:
    counted = tf.Variable(0.0)

    def fn(x: tf.Tensor) -> tf.Tensor:
        first, _ = tf.raw_ops.IdentityN(input=[x @ x, x])
        with tf.control_dependencies([first.op]):
            counted.assign_add(1.0)
        return first @ x

    policy = amp.Policy(dtype="bfloat16", assignment="all", strict=True)
    function = tf.function(fn)
    with amp.mixed_precision_scope(policy):
        for _ in range(3):
            got = function(tf.eye(4))
    np.testing.assert_array_equal(got, np.eye(4))
    assert counted.numpy() == 3.0
