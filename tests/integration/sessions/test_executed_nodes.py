"""A report on a run counts what the run executes, and nothing else of its graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from session_graphs import v1

import amp
from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.graph import calls, serde
from amp.graph_rewrite.report import Report
from amp.integration.observing import step_variants
from amp.integration.sessions.executed_nodes import (
    OTHERS,
    Executed,
    added,
    report_on_run,
)


def decision(node: str, dtype: str, seconds: float, *reads: int) -> Decision:
    return Decision(
        node, "MatMul", dtype, "compute", "", seconds, seconds / 2, 8, reads
    )


REPORT = Report(
    function="graph",
    dtype="bfloat16",
    emulated=False,
    device="CPU",
    loss_scale="none",
    nodes_total=20,
    nodes_low=3,
    casts=9,
    seconds32=20.0,
    seconds16=10.0,
    decisions=(
        decision("init", "float32", 4.0),
        decision("one", "bfloat16", 4.0),
        decision("two", "bfloat16", 4.0, 1),
        decision("body::two", "bfloat16", 4.0),
        decision("late", "float32", 4.0, 0, 2),
    ),
    verdict="rewritten, predicted 2.00x",
    casts_spared={"shared": 3},
    clusters=4,
    fused_seconds=1.0,
)
EVERY = frozenset({"init", "one", "two", "late"})


def test_nodes_that_do_not_run_are_in_no_figure() -> None:
    run = Executed(frozenset({"one", "two", "late", "x"}), {}, casts=2, clusters=1)
    cut = report_on_run(REPORT, run)
    assert [one.node for one in cut.decisions] == ["one", "two", "late"]
    assert [one.reads for one in cut.decisions] == [(), (0,), (1,)]
    assert (cut.nodes_total, cut.nodes_low, cut.casts, cut.clusters) == (4, 2, 2, 1)
    assert cut.seconds32 == pytest.approx(20.0 * 12 / 20)
    assert cut.seconds16 == pytest.approx(10.0 * 8 / 14)
    assert cut.fused_seconds == pytest.approx(1 / 4)
    assert cut.summary.nodes == {"bfloat16": 2, "float32": 1}
    assert cut.part == "what the run executes, 4 of the graph's 20 nodes"
    assert "2.10x" in cut.verdict


def test_a_run_that_executes_all_of_a_graph_has_its_times() -> None:
    cut = report_on_run(REPORT, Executed(EVERY, {"body": 3}, casts=9, clusters=4))
    assert cut.decisions == REPORT.decisions
    assert (cut.seconds32, cut.seconds16) == (20.0, 10.0)
    assert (cut.nodes_total, cut.casts, cut.fused_seconds) == (7, 9, 1.0)


def test_a_run_of_nothing_that_is_16_bit_is_float32() -> None:
    cut = report_on_run(REPORT, Executed(frozenset({"init"}), {}, casts=0, clusters=0))
    assert cut.verdict == OTHERS
    assert cut.seconds16 == cut.seconds32
    left = dataclasses.replace(REPORT, nodes_low=0, decisions=(), verdict="left: why")
    assert report_on_run(left, Executed(EVERY, {}, 0, 0)).verdict == "left: why"


def test_added_casts_are_told_from_those_of_the_program() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.ones([2, 2], name="x")
        low = tf.cast(x, tf.bfloat16, name="own")
        with tf.name_scope("x/"):
            made = tf.cast(x, tf.bfloat16, name="amp_to_bfloat16")
        out = tf.matmul(made, low).op
        module = step_variants.executed_part(graph, [out])
    assert added(module) == (1, 0)


def test_what_is_only_behind_a_fed_tensor_does_not_run() -> None:
    with tf.Graph().as_default():
        behind = tf.ones([2, 2], name="behind")
        fed = tf.identity(behind, name="fed")
        out = tf.matmul(fed, tf.zeros([2, 2], name="z"), name="out").op
        assert step_variants.executed([out]) == {"out", "fed", "behind", "z"}
        assert step_variants.executed([out], {fed.ref()}) == {"out", "z"}


def pruned(proto: Any, names: list[str]) -> set[str]:
    """The nodes that some nodes depend on, by the text of their inputs."""
    inputs = {node.name: node.input for node in proto.node}
    found: set[str] = set()
    while names:
        name = names.pop().removeprefix("^").partition(":")[0]
        if name not in found:
            found.add(name)
            names += inputs[name]
    return found


def test_the_report_on_a_training_step_is_without_initializers_and_evaluation() -> None:
    """Counted again here from the definition of the user's graph."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [8, 64], name="x")
        w = v1.get_variable("w", [64, 64])  # initialised by random numbers
        out = tf.matmul(x, w, name="out")
        loss = tf.reduce_mean(tf.square(out), name="loss")
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
        tf.matmul(tf.random.normal([64, 64]), w, name="evaluation")
        policy = amp.Policy(dtype="bfloat16", assignment="all", trial=False)
        before = len(amp.reports())
        with amp.mixed_precision_scope(policy), v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run([train, loss], {x: np.ones([8, 64], "f")})
        (report,) = amp.reports()[before:]
        asked = [train.name, loss.op.name]
        proto = graph.as_graph_def()
    named = pruned(proto, asked)
    assert report.function == "a session's run (train, loss)"
    assert report.nodes_total == len(named)
    assert {one.node for one in report.decisions} <= named
    assert "evaluation" not in {one.node for one in report.decisions}
    assert report.nodes_low == sum(one.dtype != "float32" for one in report.decisions)
    assert report.nodes_low
    assert report.casts


def test_the_functions_that_a_run_reaches_are_counted() -> None:
    with tf.Graph().as_default() as graph:
        body = tf.function(lambda a: tf.matmul(a, a)).get_concrete_function(
            tf.TensorSpec([4, 4])
        )
        out = tf.identity(body(tf.ones([4, 4])), name="out").op
        module = step_variants.executed_part(graph, [out])
        proto = graph.as_graph_def()
    assert len(calls.uses_with_weights(module)) == len(proto.library.function) + 1
    assert serde.read_graph(proto).main.nodes.keys() == module.main.nodes.keys()
