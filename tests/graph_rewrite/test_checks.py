"""A second rewrite is judged by the prices that the choice was made by."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
import random_graphs
import tensorflow as tf
from rewriting import module_of, settled, spec, traced

from amp.graph_rewrite.cost.device import CPU_AMX
from amp.graph_rewrite.cost.op_instance import Instance, Times
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.rewrite import rewrite


def random_module(seed: int) -> ir.Module:
    draw = random.Random(seed)
    program = [
        tuple(draw.randrange(1000) for _ in range(3))
        for _ in range(draw.randrange(1, 12))
    ]
    with tf.Graph().as_default() as graph:
        random_graphs.build(program, 2.0**-8)
    return module_of(graph.as_graph_def())


@pytest.mark.parametrize("seed", [87, 177])
def test_what_holding_a_tensor_is_worth_counts_as_it_did_in_the_choice(
    seed: int,
) -> None:
    """By seconds alone these two were refused: they gain by tensors held in 16 bits,
    which are in no plan's seconds.
    """
    policy = {"dtype": "float16", "emulate": True, "assignment": "cost"}
    module = random_module(seed)
    rewrite(module, settled(CPU_AMX, **policy), fetches=frozenset({"end"}))


def block(x: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
    """Products of what is reshaped, of unknown sizes, with their gradients."""
    flat = tf.reshape(x, [-1, 8])
    hidden = tf.nn.gelu(tf.matmul(flat, w))
    shape = tf.shape(x)
    back = tf.reshape(tf.matmul(hidden, w, transpose_b=True), shape)
    weights = tf.nn.softmax(tf.matmul(back, x, transpose_b=True))
    loss = tf.reduce_sum(tf.square(tf.matmul(weights, back) - x))
    return [tf.identity(grad) for grad in tf.gradients(loss, [x, w])]


@pytest.mark.parametrize("seed", range(12))
def test_no_prices_and_no_unknown_shapes_break_the_law(seed: int) -> None:
    draw = random.Random(seed)

    def timer(instances: Sequence[Instance]) -> Mapping[str, Times]:
        times = {}
        for one in instances:
            high = one.predicted[0] * 10 ** draw.uniform(-1, 1)
            times[one.key] = (high, high * 10 ** draw.uniform(-1, 0.5))
        return times

    module, _ = traced(block, spec(None, None, 8), spec(8, 16))
    policy = settled(CPU_AMX, dtype="bfloat16", assignment="cost", min_gain=0.0)
    rewrite(module, policy, timer=timer)
