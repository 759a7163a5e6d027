"""The casts made are those planned; a second rewrite is judged as the first was."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
import random_graphs
import tensorflow as tf
from rewriting import graph_def, module_of, settled, spec, v1

from amp.errors import VerifyError
from amp.graph_rewrite.apply import casts
from amp.graph_rewrite.cost import model
from amp.graph_rewrite.cost.op_instance import Instance, Times
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.graph import bridges, ir
from amp.graph_rewrite.rewrite import rewrite


@pytest.mark.parametrize("seed", [87, 177])
def test_what_holding_a_tensor_is_worth_counts_as_it_did_in_the_choice(
    seed: int,
) -> None:
    """By seconds alone these two were refused: they gain by tensors held in 16 bits,
    which are in no plan's seconds.
    """
    policy = {"dtype": "float16", "emulate": True, "assignment": "cost"}
    module = random_graphs.module(seed)
    rewrite(module, settled(CPU_AMX, **policy), fetches=frozenset({"end"}))


def block() -> None:
    """Products of what is reshaped, of unknown sizes, with their gradients."""
    x = v1.placeholder(tf.float32, [None, None, 512], name="x")
    w = v1.placeholder(tf.float32, [512, 2048], name="w")
    flat = tf.reshape(x, [-1, 512])
    hidden = tf.nn.gelu(tf.matmul(flat, w))
    shape = tf.shape(x)
    back = tf.reshape(tf.matmul(hidden, w, transpose_b=True), shape)
    weights = tf.nn.softmax(tf.matmul(back, x, transpose_b=True))
    loss = tf.reduce_sum(tf.square(tf.matmul(weights, back) - x))
    tf.gradients(loss, [x, w])


@pytest.mark.parametrize("seed", range(12))
def test_no_prices_and_no_unknown_shapes_break_the_law(seed: int) -> None:
    draw = random.Random(seed)
    times: dict[str, Times] = {}

    def timer(instances: Sequence[Instance]) -> Mapping[str, Times]:
        for one in instances:
            high = one.predicted[0] * 10 ** draw.uniform(-1, 1)
            times[one.key] = (high, high * 10 ** draw.uniform(-1, 0.5))
        return times

    policy = settled(CPU_AMX, dtype="bfloat16", assignment="cost")
    rewrite(module_of(graph_def(block)), policy, timer=timer)
    assert any(key.startswith("MatMul ") for key in times)


def step() -> None:
    """A Relu between products, whose output its gradient reads too."""
    x = v1.placeholder(tf.float32, [4096, 512], name="x")
    w = v1.placeholder(tf.float32, [512, 512], name="w")
    hidden = tf.nn.relu(tf.matmul(x, w))
    loss = tf.reduce_mean(tf.matmul(hidden, w, transpose_b=True))
    tf.gradients(loss, [x, w])


def test_a_tensor_made_and_read_in_float32_may_be_stored_in_16_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is so dear here that the two casts of the Relu's output pay."""
    monkeypatch.setattr(model, "HOLD", 100 * model.HOLD)

    def timer(instances: Sequence[Instance]) -> Mapping[str, Times]:
        gains = {"MatMul": 10.0, "Relu": 0.1, "ReluGrad": 0.1, "Mul": 0.1}
        times = {}
        for one in instances:
            seconds, op = one.predicted[0], one.key.split()[0]
            times[one.key] = (seconds, seconds / gains.get(op, 1.0))
        return times

    policy = settled(CPU_AMX, dtype="bfloat16", assignment="cost")
    made = rewrite(module_of(graph_def(step)), policy, timer=timer).graph.main
    late = {n.inputs[0] for n in made.nodes.values() if n.has(ir.LATE)}
    assert ("Relu/amp_to_bfloat16", 0) in late


def reused() -> None:
    """A 16-bit product that float32 nodes read, and a tensor read by two products."""
    x = v1.placeholder(tf.float32, [8, 8], name="x")
    y = tf.matmul(x, tf.matmul(x, x, name="inner"), name="outer")
    tf.math.lgamma(y, name="one")
    tf.math.lgamma(tf.math.lgamma(y), name="two")


def test_a_cast_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casts.Casts, "up", lambda self, edge: edge)
    with pytest.raises(VerifyError, match=r"outer:0 has 0 casts of the form 'up'"):
        rewrite(module_of(graph_def(reused)), settled())


def test_a_cast_that_is_made_for_every_reader_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(casts.Casts, "_once", lambda self, edge, kind, make: make(edge))
    with pytest.raises(VerifyError, match=r"outer:0 has 2 casts of the form 'up'"):
        rewrite(module_of(graph_def(reused)), settled())


@pytest.mark.parametrize("seed", range(20))
def test_the_casts_made_are_those_planned_whatever_is_fetched_and_fed(
    seed: int,
) -> None:
    """The check is made of each: none is refused."""
    draw, module = random.Random(seed), random_graphs.module(seed)
    nodes = list(module.main.nodes)
    fetches = frozenset(draw.sample(nodes, len(nodes) // 4))
    feeds = frozenset(draw.sample(nodes, len(nodes) // 10))
    report = rewrite(module, settled(), fetches=fetches, feeds=feeds).report
    assert report.decisions


@pytest.mark.parametrize("denied", ["MatMul", "Tanh", "AddV2", "Mul"])
@pytest.mark.parametrize("seed", range(3))
def test_graphs_that_come_with_casts_are_rewritten(seed: int, denied: str) -> None:
    """Their own casts may serve a reader or be left over, and no law forbids it."""
    module = random_graphs.module(seed)
    first = rewrite(module, settled(deny=(denied,)), fetches=frozenset({"end"}))
    rewrite(first.graph, settled(), fetches=frozenset({"end"}))


def loop() -> None:
    """A loop of a GraphDef whose invariant is read behind it, in float32."""
    x = v1.placeholder(tf.float32, [8, 8], name="x")
    w = v1.placeholder(tf.float32, [8, 8], name="w")
    made = tf.raw_ops.StatelessWhile(
        input=[tf.constant(0), x, w],
        cond=tf.function(lambda i, x, w: i < 3).get_concrete_function(
            spec(dtype=tf.int32), spec(8, 8), spec(8, 8)
        ),
        body=tf.function(lambda i, x, w: (i + 1, x @ w, w)).get_concrete_function(
            spec(dtype=tf.int32), spec(8, 8), spec(8, 8)
        ),
        name="loop",
    )
    tf.math.lgamma(made[2], name="end")


def test_a_cast_of_what_a_loop_hands_on_is_planned_too() -> None:
    made = rewrite(module_of(graph_def(loop)), settled()).graph.main
    added = {
        node.inputs[0]
        for node in made.nodes.values()
        if bridges.is_up(node, ir.BFLOAT16)
    }
    assert ("loop", 2) in added
