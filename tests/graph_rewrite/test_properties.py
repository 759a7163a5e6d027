"""Laws that hold for any graph, on random ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import random_graphs
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewriting import (
    PAYING,
    GraphDef,
    casts,
    decisions,
    low,
    nodes,
    rewritten,
    run,
)

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops import op_table
from amp.integration.training import markers

UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
rule_numbers = st.integers(0, len(random_graphs.EVERY_RULE) - 1)
steps = st.tuples(rule_numbers, st.integers(0, 9), st.integers(0, 9))
programs = st.lists(steps, min_size=1, max_size=10)
# Without the branches of TensorFlow 1: one cast of what two Switches hand on costs as
# much as two in a branch that is taken half of the time, and rounding breaks the tie.
untied = programs.map(
    lambda program: [
        step
        for step in program
        if random_graphs.EVERY_RULE[step[0]] is not random_graphs.VERSION_1[1]
    ]
)
forms = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["bfloat16", "float16"]), "emulate": st.booleans()}
)


def laws(count: int) -> Any:
    return settings(
        derandomize=True,
        deadline=None,
        max_examples=count,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def made(
    program: list[tuple[int, int, int]], unit: float = 2.0**-8
) -> tuple[GraphDef, random_graphs.Bounded]:
    with tf.Graph().as_default() as graph:
        bounds = random_graphs.build(program, unit)
    return graph.as_graph_def(), bounds


def feeds(flag: bool) -> dict[str, Any]:
    random = np.random.default_rng(0)
    size = (2, random_graphs.N, random_graphs.N)
    x, y = random.uniform(-random_graphs.SIZE, random_graphs.SIZE, size)
    return {"x": x.astype("f"), "y": y.astype("f"), "flag": flag}


@given(programs, forms, st.booleans())
@laws(150)
@pytest.mark.slow
@pytest.mark.kernels
def test_values_agree_within_the_bound_that_the_format_gives(
    program: list[tuple[int, int, int]], form: dict[str, Any], flag: bool
) -> None:
    """`random_graphs` derives the bound. TensorFlow imports and runs every twin."""
    proto, bounds = made(program, UNITS[form["dtype"]])
    twin = rewritten(proto, fetches=["end"], **form)
    assert low(twin.report)
    (want,) = run(proto, ["end"], feeds(flag))
    (got,) = run(twin.graph, ["end"], feeds(flag))
    assert np.isfinite(got).all()
    assert np.abs(want).max() <= bounds.size * (1 + 1e-5)
    assert np.abs(got.astype(np.float64) - want).max() <= bounds.error


@given(programs, forms)
@laws(60)
def test_the_interface_is_unchanged(
    program: list[tuple[int, int, int]], form: dict[str, Any]
) -> None:
    proto, _ = made(program)
    twin = rewritten(proto, fetches=["end"], **form).graph
    assert {n.name for n in proto.node} <= {n.name for n in twin.node}
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(twin, name="")
    for name in ("x", "y", "end"):
        tensor = graph.get_tensor_by_name(f"{name}:0")
        assert tensor.dtype == tf.float32
        assert tensor.shape == [random_graphs.N, random_graphs.N]
    before = {f.signature.name: f for f in proto.library.function}
    after = {f.signature.name: f for f in twin.library.function}
    for name, function in before.items():
        assert after[name] == function  # originals stay as they were


@given(untied, forms, st.sampled_from(["all", "cost"]))
@laws(100)
def test_a_second_rewrite_changes_nothing(
    program: list[tuple[int, int, int]], form: dict[str, Any], assignment: str
) -> None:
    proto, _ = made(program)
    how = {"fetches": ["end"], "assignment": assignment, **form}
    once = rewritten(proto, PAYING, **how)
    assert low(once.report) or form["emulate"]
    twice = rewritten(once.graph, PAYING, **how)
    assert twice.graph == once.graph


@given(programs, forms)
@laws(40)
def test_nothing_denied_kept_or_unlisted_is_low(
    program: list[tuple[int, int, int]], form: dict[str, Any]
) -> None:
    proto, _ = made(program)
    denied = {"Tanh", "AddV2", "ConcatV2"}
    policy = {"deny": tuple(denied), "keep": ("*ransp*",), **form}
    report = rewritten(proto, fetches=["end"], **policy).report
    for decision in report.decisions:
        if decision.dtype != "float32":
            assert decision.op in op_table.TABLE
            assert decision.op not in denied
            assert "ransp" not in decision.node.rpartition("::")[2]


@given(programs, forms)
@laws(50)
def test_nothing_behind_a_marker_is_low(
    program: list[tuple[int, int, int]], form: dict[str, Any]
) -> None:
    with tf.Graph().as_default() as graph:
        end = random_graphs.build(program, 2.0**-8).tensor
        count = len(graph.get_operations())
        with markers.attribute_scope(ir.UNSCALE):
            unscaled = tf.multiply(end, 0.5)
        tf.tanh(tf.matmul(unscaled, end), name="last")
        behind = {op.name for op in graph.get_operations()[count:]}
    twin = rewritten(graph.as_graph_def(), fetches=["last"], **form)
    found = decisions(twin.report)
    checked = behind & found.keys()
    assert "last" in checked
    assert all(found[name].dtype == "float32" for name in checked)
    types = {nodes(twin.graph)[name].attr["T"].type for name in behind}
    assert not types & {ir.HALF, ir.BFLOAT16}


@given(programs, forms)
@laws(50)
def test_no_cast_feeds_a_cast_back_to_its_source(
    program: list[tuple[int, int, int]], form: dict[str, Any]
) -> None:
    twin = rewritten(made(program)[0], fetches=["end"], **form).graph
    by_name = nodes(twin)
    pairs = [
        (node.input[0], node.attr["DstT"].type, ir.LATE in node.attr)
        for node in casts(twin)
    ]
    assert len(pairs) == len(set(pairs))
    if not form["emulate"]:  # which rounds by casting down and up
        for node in casts(twin):
            assert by_name[node.input[0].partition(":")[0]].op != "Cast"


@pytest.mark.parametrize("rule", range(len(random_graphs.EVERY_RULE)))
def test_every_rule_of_the_generator_builds_and_turns_something_16_bit(
    rule: int,
) -> None:
    proto, bounds = made([(rule, 2, 0)], 2.0**-8)
    assert low(rewritten(proto, fetches=["end"]).report)
    assert 0 < bounds.error < bounds.size
