"""`boundary`: what functions take and return follows from what is 16-bit in them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from rewriting import rewritten, settled, spec, traced

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.rewrite import rewrite

POLICY = amp.Policy(dtype="bfloat16", assignment="all", strict=True)


def body_of(fn: object, *specs: tf.TensorSpec) -> tuple[ir.Graph, ir.Module]:
    """The twin of the one loop body of a function, and the module that it is in."""
    module, _ = traced(fn, *specs)
    made = rewrite(module, settled()).graph
    (body,) = (
        graph
        for name, graph in made.functions.items()
        if "while_body" in name and name not in module.functions
    )
    return body, made


def casts(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph.nodes.values() if node.op == "Cast"]


def looped(body: object) -> object:
    def fn(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        step = lambda i, y: (i + 1, body(y, w))  # noqa: E731
        return tf.while_loop(lambda i, y: i < 3, step, [tf.constant(0), x])[1]

    return fn


def test_an_invariant_read_only_in_16_bits_turns_and_is_cast_once_outside() -> None:
    body, made = body_of(looped(tf.matmul), spec(4, 4), spec(4, 4))
    assert not casts(body)
    assert [arg.type for arg in body.args].count(ir.BFLOAT16) == 2
    assert len(body.args) == len(body.results)
    down = [n for n in casts(made.main) if n.types("DstT") == (ir.BFLOAT16,)]
    assert {node.inputs[0] for node in down} == {("x", 0), ("w", 0)}


def test_an_invariant_read_in_both_types_is_passed_in_both() -> None:
    def step(y: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return tf.matmul(y, w) * tf.reduce_max(tf.math.lgamma(w))

    body, _ = body_of(looped(step), spec(4, 4), spec(4, 4))
    inner = [n for n in casts(body) if n.inputs[0][0] in {a.name for a in body.args}]
    assert not inner
    kinds = [arg.type for arg in body.args]
    assert kinds[-1] == ir.BFLOAT16
    assert ir.FLOAT in kinds


def test_an_invariant_that_a_16_bit_node_reads_in_float32_does_not_turn() -> None:
    """As a normalization reads its scale."""

    def step(y: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        made = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(tf.matmul(y, y), [1, 2, 2, 4]),
            **dict.fromkeys(("scale", "offset", "mean", "variance"), w),
            is_training=False,
        )
        return tf.reshape(made.y, [4, 4])

    body, _ = body_of(looped(step), spec(4, 4), spec(4))
    (norm,) = (node for node in body.nodes.values() if node.op == "FusedBatchNormV3")
    assert norm.types("T") == (ir.BFLOAT16,)
    types = {arg.name: arg.type for arg in body.args}
    assert [types.get(name) for name, _ in norm.inputs[1:]] == [ir.FLOAT] * 4


def test_a_16_bit_tensor_that_a_loop_reads_in_both_types_is_passed_as_it_is() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        w = tf.matmul(x, x, name="product")
        body = lambda i, y: (i + 1, tf.matmul(y, w) + tf.math.lgamma(w))  # noqa: E731
        return tf.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x])[1]

    body, made = body_of(fn, spec(4, 4))
    assert [arg.type for arg in body.args][-1] == ir.BFLOAT16
    down = [n for n in casts(made.main) if n.types("DstT") == (ir.BFLOAT16,)]
    assert {node.inputs[0] for node in down} == {("x", 0)}


def test_both_branches_return_one_type() -> None:
    def fn(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        y = tf.cond(flag, lambda: tf.matmul(x, x), lambda: tf.matmul(x, x + 1.0))
        return tf.matmul(y, x)

    module, _ = traced(fn, spec(4, 4), spec(dtype=tf.bool))
    made = rewrite(module, settled()).graph
    new = [g for name, g in made.functions.items() if name not in module.functions]
    assert [[r.type for r in g.results] for g in new] == [[ir.BFLOAT16]] * 2


def test_a_call_that_is_fetched_by_name_keeps_its_boundary() -> None:
    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [4, 4], name="x")
        flag = tf.compat.v1.placeholder(tf.bool, [], name="flag")
        tf.cond(flag, lambda: tf.matmul(x, x), lambda: tf.matmul(x, 2 * x), name="two")

    with tf.Graph().as_default() as graph:
        build()
    proto = graph.as_graph_def()
    (call,) = (node.name for node in proto.node if node.op in ("If", "StatelessIf"))
    twin = rewritten(proto, fetches=[call]).graph
    (node,) = (node for node in twin.node if node.name == call)
    assert list(node.attr["Tout"].list.type) == [ir.FLOAT]


def test_a_recurrent_layer_and_its_gradient_cast_nothing_on_the_way() -> None:
    """Of the backward body only the weights' gradients, which are summed, turn up."""
    amp.enable(dtype="bfloat16")  # from here on shapes are remembered
    amp.disable()
    cell = tf.keras.layers.LSTM(8, return_sequences=True)

    @tf.function
    def step(x: tf.Tensor) -> object:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(cell(x) ** 2)
        return tape.gradient(loss, cell.trainable_variables)

    cell.build((4, 5, 6))
    module, _ = traced(step, spec(4, 5, 6))
    made = rewrite(module, settled()).graph
    new = [g for n, g in made.functions.items() if n not in module.functions]
    forward = [g for g in new if "while_body" in g.name and "grad" not in g.name]
    backward = [g for g in new if "while_body" in g.name and "grad" in g.name]
    assert [len(casts(graph)) for graph in forward] == [0]
    assert [
        {made.inputs[0][0].rpartition("/")[2] for made in casts(graph)}
        for graph in backward
    ] == [{"MatMul_1", "BiasAddGrad"}]


def test_values_agree_across_boundaries() -> None:
    fn = looped(lambda y, w: tf.tanh(tf.matmul(y, w)))
    x = np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(4, 4)
    for emulate in (False, True):
        policy = amp.Policy.make(POLICY, emulate=emulate)
        got, want = amp.twin(fn, x, x, policy=policy)(x, x), fn(x, x)
        # Three products of rows of absolute sum under 2: each adds three roundings of
        # 2**-8, and the next may double what came before.
        assert np.abs(got - want).max() <= 3 * 2.0**-8 * (1 + 2 + 4)
