"""The loss and its gradient stay float32, wherever they are built."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from rewriting import graph_def, nodes, rewritten, rules, settled, spec, traced, v1

from amp.graph_rewrite.rewrite import rewrite

WIDTH = 8


def product(x: tf.Tensor, name: str) -> tf.Tensor:
    return tf.matmul(x, tf.ones([WIDTH, WIDTH]), name=name)


def forward(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    hidden = tf.nn.relu(product(x, "one"), name="act")
    out = tf.nn.bias_add(product(hidden, "two"), tf.ones([WIDTH]), name="bias")
    return tf.subtract(tf.reshape(out, [-1], name="flat"), target, name="off")


def step(gradient: bool = True) -> None:
    x = v1.placeholder(tf.float32, [WIDTH, WIDTH], name="x")
    target = v1.placeholder(tf.float32, [WIDTH * WIDTH], name="target")
    off = forward(x, target)
    if gradient:
        loss = tf.reduce_mean(tf.square(off, name="square"), name="loss")
        tf.identity(tf.gradients(loss, x)[0], name="grad")


FORWARD = ("bias", "off")


def test_what_no_product_follows_is_the_loss() -> None:
    found = rules(rewritten(graph_def(step), fetches=["grad"]).report)
    assert {found[name] for name in FORWARD} == {"loss"}
    assert found["square"] in ("loss", "scalar")
    assert (found["one"], found["act"], found["two"]) == (
        "compute",
        "follow",
        "compute",
    )


def test_the_gradient_is_float32_up_to_its_first_product() -> None:
    proto = graph_def(step)
    twin = rewritten(proto, fetches=["grad"])
    found = rules(twin.report)
    opening = {n for n in found if n.startswith("gradients/square")}
    assert {found[name] for name in opening} <= {"loss", "unlisted", "unreached"}
    assert "loss" in {found[name] for name in opening}
    backward = [n for n in found if n.startswith("gradients/act")]
    assert "follow" in {found[name] for name in backward}
    first = nodes(proto)["gradients/two_grad/MatMul"].name
    assert found[first] == "compute"


def test_the_cast_stands_on_the_output_of_the_last_product() -> None:
    twin = nodes(rewritten(graph_def(step), fetches=["grad"]).graph)
    assert list(twin["bias"].input)[0] == "two/amp_to_float32"


def test_what_reads_only_a_shape_is_no_part_of_the_loss() -> None:
    def shaped() -> None:
        x = v1.placeholder(tf.float32, [None, WIDTH], name="x")
        out = product(product(x, "one"), "two")
        tf.identity(tf.shape(out, name="read"), name="count")
        loss = tf.reduce_mean(tf.square(out))
        tf.identity(tf.gradients(loss, x)[0], name="grad")

    twin = rewritten(graph_def(shaped), fetches=["grad", "count"])
    assert rules(twin.report)["read"] == "follow"
    assert list(nodes(twin.graph)["read"].input) == ["two"]


def test_inference_has_no_loss_but_results() -> None:
    """A bias after the last product is not rounded; what is only scaled may be."""
    found = rules(rewritten(graph_def(lambda: step(False)), fetches=["off"]).report)
    assert {found[name] for name in FORWARD} == {"result"}

    def scaled() -> None:
        x = v1.placeholder(tf.float32, [WIDTH, WIDTH], name="x")
        tf.nn.softmax(product(x, "one") * 0.5, name="end")

    assert rules(rewritten(graph_def(scaled)).report)["end"] == "follow"


def found_in(fn: Any, *specs: Any) -> dict[str, str]:
    """The rules by the last part of each name."""
    found = rules(rewrite(traced(fn, *specs)[0], settled()).report)
    return {name.rpartition("/")[2]: rule for name, rule in found.items()}


def test_a_loss_in_a_loop_and_in_a_branch_is_one_too() -> None:
    def fn(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor, sum_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            y = tf.nn.relu(product(y, "inside"), name="state")
            off = tf.cond(
                tf.reduce_sum(target) > 0.0,
                lambda: tf.abs(tf.subtract(y, target, name="off")),
                lambda: tf.zeros_like(y),
            )
            return i + 1, y, sum_ + tf.reduce_sum(off)

        start = [tf.constant(0), x, tf.constant(0.0)]
        _, _, loss = tf.while_loop(lambda i, *_: i < 3, body, start)
        return tf.gradients(loss, x)[0]

    found = found_in(tf.function(fn), spec(WIDTH, WIDTH), spec(WIDTH, WIDTH))
    assert found["state"] == "follow"
    assert found["off"] == "loss"


def test_the_penalty_of_a_gradient_is_a_loss() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = product(tf.nn.softplus(product(x, "one")), "two")
            slope = inner.gradient(score, x)
            off = tf.subtract(tf.norm(slope, axis=-1), 1.0, name="off")
            loss = tf.reduce_mean(tf.abs(off, name="size"))
        return outer.gradient(loss, x)

    found = found_in(tf.function(fn), spec(WIDTH, WIDTH))
    assert found["off"] in ("loss", "unreached")
    assert found["size"] in ("loss", "unreached", "scalar")


def test_operands_of_products_may_be_moved_in_sixteen_bits() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [WIDTH, WIDTH], name="x")
        y = product(x, "one")
        heads = tf.transpose(
            product(tf.transpose(y, name="before"), "two"), name="after"
        )
        both = tf.concat([heads, tf.ones([1, WIDTH]) / 3.0], 0, name="both")
        tf.identity(tf.gradients(tf.square(both), x)[0], name="grad")

    found = rules(rewritten(graph_def(build), fetches=["grad"]).report)
    assert (found["before"], found["after"]) == ("move", "move")
    assert found["both"] == "loss"  # a third would be rounded
