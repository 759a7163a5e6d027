"""`nominee`: one analysis gives several plans, each of which is what was asked for."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf
from rewriting import CPU, decisions, graph_def, low, module_of, settled

from amp.graph_rewrite.assign.nominee import (
    CUT,
    EVERYTHING,
    PRODUCTS,
    UNCLUSTERED,
    Nominee,
)
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.rewrite import Prepared, prepare, rewrite

v1 = tf.compat.v1


def chain() -> None:
    """product -> tanh -> reshape -> product, all named."""
    x = v1.placeholder(tf.float32, [256, 256], name="x")
    w = tf.ones([256, 256])
    y = tf.tanh(tf.matmul(x, w, name="first"), name="tanh")
    z = tf.matmul(tf.reshape(y, [128, 512]), tf.ones([512, 64]), name="second")
    tf.identity(z, name="end")


def prepared(**fields: object) -> Prepared:
    module = module_of(graph_def(chain))
    fields = {"assignment": "cost", **fields}
    return prepare(module, settled(**fields), fetches=frozenset({"end"}))


def low_of(one: Prepared, nominee: Nominee) -> set[str]:
    return low(one.made(nominee).report)


def test_the_cut_is_what_rewrite_makes() -> None:
    one = prepared()
    module, policy = one.values["given"], one.settled
    made = rewrite(module, policy, fetches=frozenset({"end"}))
    assert made.report == one.made(CUT).report


def test_products_only_converts_products_and_says_why_not_the_rest() -> None:
    report = prepared().made(PRODUCTS).report
    assert {"first", "second"} <= low(report)
    assert "tanh" not in low(report)
    assert decisions(report)["tanh"].rule == "products"


def test_everything_converts_what_the_cut_finds_too_dear() -> None:
    one = prepared()
    slow = {"bfloat16": {"elementwise": 1000.0}, "float32": {}}
    device = dataclasses.replace(CPU, slowdown=slow)
    module = one.values["given"]
    dear = prepare(module, settled(device, assignment="cost", min_gain=0.9))
    assert "tanh" not in low_of(dear, CUT)
    assert {"first", "tanh", "second"} <= low_of(dear, EVERYTHING)


def test_a_node_that_is_kept_stays_float32_for_the_reason_given() -> None:
    one = prepared()
    (use,) = one.priced.uses
    why = Reason("accuracy", "0.5 against 0.01")
    kept = CUT.keeping({use: {"tanh": why}})
    report = one.made(kept).report
    assert "tanh" in low(one.made(CUT).report)
    assert "tanh" not in low(report)
    found = decisions(report)["tanh"]
    assert (found.rule, found.cause) == (why.rule, why.cause)


def test_kept_nodes_add_up() -> None:
    use, other = FunctionUse("f", False), FunctionUse("g", False)
    a, b = Reason("accuracy", "a"), Reason("accuracy", "b")
    both = CUT.keeping({use: {"x": a}}).keeping({use: {"y": b}, other: {"z": b}})
    assert both.kept == {use: {"x": a, "y": b}, other: {"z": b}}


def test_a_plan_without_clusters_has_none() -> None:
    def gelu() -> None:
        x = v1.placeholder(tf.float32, [2048, 2048], name="x")
        y = tf.matmul(x, tf.ones([2048, 2048]))
        z = 0.5 * y * (1.0 + tf.tanh(0.8 * (y + 0.04 * y * y * y)))
        tf.matmul(z, tf.ones([2048, 2048]), name="end")

    one = prepare(
        module_of(graph_def(gelu)),
        settled(CPU_AMX, assignment="cost"),
        fetches=frozenset({"end"}),
    )
    assert one.made(CUT).report.clusters > 0
    assert one.made(UNCLUSTERED).report.clusters == 0


@pytest.mark.parametrize("nominee", [CUT, EVERYTHING, PRODUCTS, UNCLUSTERED])
def test_making_a_plan_leaves_what_was_prepared_as_it_was(nominee: Nominee) -> None:
    one = prepared()
    before = one.made(CUT).report
    one.made(nominee)
    assert one.made(CUT).report == before
