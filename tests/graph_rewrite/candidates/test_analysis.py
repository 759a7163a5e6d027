"""`analyze`: all that is known of a module before anything is chosen."""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from rewriting import (
    analysis_of,
    context_of,
    graph_def,
    module_of,
    rewritten,
    spec,
    traced,
    v1,
)

from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.plan import Reason


def test_every_use_is_analyzed_callers_first_with_its_weight() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        body = lambda i, y: (i + 1, tf.matmul(y, x))  # noqa: E731
        return tf.while_loop(lambda i, y: i < 7, body, [tf.constant(0), x])[1]

    module, _ = traced(fn, spec(4, 4))
    uses = analysis_of(module, context_of(module)).uses
    names = [use.name for use in uses]
    assert names[0] == module.main.name
    assert [one.weight for one in uses.values()] == [1.0, 7.0, 7.0]


def test_what_is_refused_later_no_longer_reaches_what_is_behind_it() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [4, 4])
        tf.tanh(tf.matmul(x, x, name="product"), name="after")

    module = module_of(graph_def(build))
    made = analysis_of(module, context_of(module))
    (use,) = made.uses
    assert set(made.uses[use].found.allowed) == {"product", "after"}
    found = made.eligible[use]
    gone = dataclasses.replace(
        found,
        allowed={n: r for n, r in found.allowed.items() if n != "product"},
        refused={**found.refused, "product": Reason("kernel", "a test")},
    )
    left = made.without({use: gone}).uses[use].found
    assert not left.allowed
    assert left.refused["product"].rule == "kernel"
    assert left.refused["after"].rule == "unreached"


def test_a_node_in_a_branch_runs_half_as_often_and_so_does_its_cast() -> None:
    """Its operand is cast inside: before the Switch the cast runs in any case."""

    def build() -> None:
        flag = v1.placeholder(tf.bool, [], name="flag")
        x = v1.placeholder(tf.float32, [1024, 1024], name="x")
        _, there = tf.raw_ops.Switch(data=tf.sin(x), pred=flag, name="Switch")
        other, _ = tf.raw_ops.Switch(data=tf.cos(x), pred=flag, name="other")
        product = tf.matmul(there, there, name="product")
        tf.raw_ops.Merge(inputs=[product, tf.identity(other)])

    module = module_of(graph_def(build))
    (one,) = analysis_of(module, context_of(module)).uses.values()
    assert one.switches == {"Switch", "other"}
    assert one.runs["product"] == 0.5
    assert one.runs.keys() == {"product", "Identity"}
    assert [one.runs_at(("Switch", i)) for i in range(2)] == [0.5, 0.5]
    assert one.runs_at(("x", 0)) == one.runs_at(("Merge", 0)) == 1.0
    made = rewritten(graph_def(build), CPU_AMX, assignment="cost", min_gain=0.0)
    casts = [node for node in made.graph.node if node.op == "Cast"]
    assert "Switch:1" in {cast.input[0] for cast in casts}
    assert "Sin" not in {cast.input[0] for cast in casts}
