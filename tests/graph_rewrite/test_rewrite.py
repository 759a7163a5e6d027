"""`rewrite`: the pipeline as a whole; deterministic, pure, whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from rewriting import (
    graph_def,
    low,
    matmul_chain,
    module_of,
    nodes,
    rewritten,
    rules,
    run,
    settled,
    v1,
)

from amp.errors import GraphError, PolicyError
from amp.graph_rewrite import rewrite
from amp.graph_rewrite.cost.shipped_devices import A100, CPU_AMX
from amp.graph_rewrite.graph import serde
from amp.policy import Policy


def test_the_same_graph_gives_the_same_bytes() -> None:
    proto = graph_def(matmul_chain)
    once, again = (
        rewritten(proto).graph.SerializeToString(deterministic=True) for _ in range(2)
    )
    assert once == again


def test_the_module_given_is_not_changed() -> None:
    proto = graph_def(matmul_chain)
    module = module_of(proto)
    result = rewrite.rewrite(module, settled())
    assert result.graph is not module
    assert serde.write_graph(module) == proto


def test_nothing_to_convert_gives_the_module_back() -> None:
    module = module_of(graph_def(lambda: tf.exp(tf.ones([4]))))
    result = rewrite.rewrite(module, settled())
    assert result.graph is module
    assert result.report.verdict == "left in float32: no gain"


def test_off_gives_the_module_back_with_the_reason() -> None:
    from amp.graph_rewrite.cost.resolution import resolve
    from amp.graph_rewrite.cost.shipped_devices import CPU_PLAIN

    module = module_of(graph_def(matmul_chain))
    off = resolve(Policy(), CPU_PLAIN)
    result = rewrite.rewrite(module, off)
    assert result.graph is module
    assert result.report.verdict == off.reason


@pytest.mark.parametrize("device", [A100, CPU_AMX], ids=lambda d: d.name)
def test_a_planned_speed_up_is_what_the_report_predicts(device: object) -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [4096, 4096], name="x")
        tf.nn.relu(tf.matmul(x, x), name="relu")

    report = rewritten(graph_def(build), device, assignment="cost").report
    factor = report.seconds32 / report.seconds16
    assert factor > 1.3
    assert f"predicted {factor:.2f}x faster" in report.verdict
    # No assignment is faster than the one chosen.
    everything = rewritten(graph_def(build), device, assignment="all").report
    assert report.seconds16 <= everything.seconds16 * (1 + 1e-9)


def test_a_function_of_the_library_is_rewritten_where_it_is_called() -> None:
    inner = tf.function(lambda x: tf.matmul(x, x, name="inner"))

    def build() -> None:
        x = v1.placeholder(tf.float32, [8, 8], name="x")
        tf.identity(inner(x), name="out")

    proto = graph_def(build)
    made = rewritten(proto, fetches=["out"])
    assert made.report.nodes_low
    value = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    (got,) = run(made.graph, ["out"], {"x": value})
    (want,) = run(proto, ["out"], {"x": value})
    assert got.dtype == np.float32
    # Two operands and a result are rounded, by 2**-8 each; 8 terms of at most 1.
    assert 0 < np.abs(got - want).max() <= 8 * 3 * 2.0**-8


def test_v1_control_flow_runs_and_keeps_the_types_of_its_loop() -> None:
    def build() -> None:
        v1.disable_control_flow_v2()
        try:
            x = v1.placeholder(tf.float32, [4, 4], name="x")
            _, y = tf.while_loop(
                lambda i, y: i < 3,
                lambda i, y: (i + 1, tf.tanh(tf.matmul(y, x))),
                [tf.constant(0), x],
            )
            z = v1.cond(tf.reduce_sum(y) > 0, lambda: tf.matmul(y, y), lambda: y)
            tf.identity(z, name="out")
        finally:
            v1.enable_control_flow_v2()

    proto = graph_def(build)
    value = np.linspace(-0.2, 0.3, 16, dtype=np.float32).reshape(4, 4)
    (want,) = run(proto, ["out"], {"x": value})
    for emulate in (False, True):
        made = rewritten(proto, fetches=["out"], emulate=emulate)
        assert [d.op for d in made.report.decisions if d.dtype != "float32"]
        (got,) = run(made.graph, ["out"], {"x": value})
        # Four products with rows of absolute sum under 1.2, three roundings each.
        assert np.abs(got - want).max() <= 4 * 3 * 2.0**-8 * 1.2**4


def test_a_damaged_function_is_named() -> None:
    inner = tf.function(lambda x: tf.matmul(x, tf.tanh(x, name="tanh"), name="inner"))
    proto = graph_def(lambda: inner(v1.placeholder(tf.float32, [8, 8], name="x")))
    (function,) = proto.library.function
    (node,) = [node for node in function.node_def if node.name == "tanh"]
    node.attr["T"].type = tf.float64.as_datatype_enum
    module = serde.read_graph(proto)
    with pytest.raises(GraphError, match="says that input 'x' has type float64"):
        rewrite.rewrite(module, settled())


def test_a_policy_that_names_no_op_is_refused() -> None:
    module = module_of(graph_def(matmul_chain))
    with pytest.raises(PolicyError, match="there is no op 'Matmul'"):
        rewrite.rewrite(module, settled(allow=("Matmul",)))


def test_a_colocated_node_finds_its_partner_after_a_fetch_moved_aside() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [8, 8], name="x")
        product = tf.matmul(x, x, name="product")
        with v1.colocate_with(product.op):
            tf.nn.relu(product, name="relu")

    made = rewritten(graph_def(build), fetches=["product", "relu"])
    assert {"product", "relu"} <= low_or_moved(made)
    run(made.graph, ["relu"], {"x": np.eye(8, dtype=np.float32)})


def low_or_moved(made: rewrite.Rewrite) -> set[str]:
    return low(made.report) | set(nodes(made.graph)) & set(rules(made.report))


@pytest.mark.parametrize("assignment", ["cost", "all"])
def test_a_plan_costs_by_its_own_prices_what_its_report_says(assignment: str) -> None:
    """Also where a function is used twice, and a loop runs its body many times."""
    inner = tf.function(lambda x: tf.tanh(tf.matmul(x, x)))

    def build() -> None:
        x = v1.placeholder(tf.float32, [512, 512], name="x")
        y = inner(inner(x))
        z = tf.while_loop(
            lambda i, y: i < 7,
            lambda i, y: (i + 1, tf.nn.relu(tf.matmul(y, y))),
            [tf.constant(0), y],
        )[1]
        tf.exp(z, name="out")

    module = module_of(graph_def(build))
    made_for = settled(device=CPU_AMX, assignment=assignment, dtype="bfloat16")
    prepared = rewrite.prepare(module, made_for)
    made = prepared.made()
    report = made.report
    assert report.nodes_low > 0
    told = report.repriced(prepared.prices(prepared.holding(made.low)))
    assert told.seconds32 == pytest.approx(report.seconds32, rel=1e-12)
    assert told.seconds16 == pytest.approx(report.seconds16, rel=1e-12)
    assert told.decisions == report.decisions
    assert told.measured_share == report.measured_share
