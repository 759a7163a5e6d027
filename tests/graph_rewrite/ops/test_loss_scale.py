"""The table of a loss scale says what a traced step has."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from rewriting import traced

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops import loss_scale

# Which rows of the table a step has: IndexedSlices are summed before their check.
SPARSE = {False: set(), True: {loss_scale.SUM_ROWS}}


@pytest.fixture(params=[False, True])
def step(request: pytest.FixtureRequest) -> tuple[ir.Graph, set[str]]:
    weights = tf.Variable(tf.ones([4, 4]))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weights])

    def update(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            rows = tf.gather(weights, [0, 2]) if request.param else weights
            loss = tf.reduce_mean(tf.matmul(rows, x))
        optimizer.apply([tape.gradient(loss, weights)], [weights])

    with amp.mixed_precision_scope(dtype="float16", trial=False, check=False):
        module, _ = traced(update, tf.TensorSpec([4, 4]))
    return module.main, SPARSE[request.param]


def test_each_part_of_a_scale_is_the_op_that_the_table_has(
    step: tuple[ir.Graph, set[str]],
) -> None:
    graph, sums = step
    nodes = graph.nodes.values()
    assert {n.op for n in nodes if n.flag(ir.SEED)} == {loss_scale.SCALE}
    (unscale,) = [node for node in nodes if node.flag(ir.UNSCALE)]
    assert unscale.op == loss_scale.UNSCALE
    ops = {node.op for node in nodes}
    checks = {loss_scale.FINITE, loss_scale.EVERY, loss_scale.OPPOSITE, *sums}
    assert checks <= ops
    (branch,) = [node for node in nodes if node.op in loss_scale.BRANCH]
    assert branch.inputs[0][0] in graph.nodes


@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("op", sorted(loss_scale.AGREE | {loss_scale.OPPOSITE}))
def test_operands_that_agree_give_what_the_table_says(op: str, value: bool) -> None:
    operand = tf.constant(value)
    given = {
        "All": lambda: tf.raw_ops.All(input=[operand, operand], axis=[0]),
        "Any": lambda: tf.raw_ops.Any(input=[operand, operand], axis=[0]),
        "Identity": lambda: tf.identity(operand),
        "LogicalAnd": lambda: tf.logical_and(operand, operand),
        "LogicalOr": lambda: tf.logical_or(operand, operand),
        "LogicalNot": lambda: tf.logical_not(operand),
        "Pack": lambda: tf.reduce_all(tf.stack([operand, operand]) == operand),
    }[op]()
    wanted = True if op == "Pack" else value != (op == loss_scale.OPPOSITE)
    assert bool(given) is wanted
