"""Loops and branches of TensorFlow 1 in 16 bits, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import frames
import numpy as np
import pytest
import tensorflow as tf
from rewriting import (
    PAYING,
    GraphDef,
    casts,
    low,
    module_of,
    nodes,
    rewritten,
    rules,
    run,
)

from amp.graph_rewrite.graph import frames as frames_lib

every_loop = pytest.mark.parametrize("loop", frames.LOOPS, ids=lambda f: f.__name__)
every_form = pytest.mark.parametrize(
    "form",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
        {"dtype": "bfloat16", "emulate": True},
        {"dtype": "float16", "emulate": True},
    ],
    ids=str,
)
FED = frames.FEEDS.keys()


def twin_of(proto: GraphDef, **policy: Any) -> Any:
    return rewritten(proto, fetches=frames.ENDS, feeds=FED, **policy)


def types(proto: GraphDef, op: str, attr: str = "T") -> set[int]:
    return {node.attr[attr].type for node in proto.node if node.op == op}


@pytest.mark.kernels
@every_loop
@every_form
def test_values_and_gradients_that_16_bits_hold_stay_the_same(
    loop: Callable[[], frames.Ends], form: dict[str, Any]
) -> None:
    proto = frames.with_gradients(loop)
    twin = twin_of(proto, **form)
    assert low(twin.report)
    want = run(proto, frames.ENDS, frames.FEEDS)
    got = run(twin.graph, frames.ENDS, frames.FEEDS)
    for one, other in zip(want, got, strict=True):
        assert np.any(one)
        np.testing.assert_array_equal(one, other)


@every_loop
@every_form
@pytest.mark.parametrize("assignment", ["all", "cost"])
def test_a_second_rewrite_changes_nothing(
    loop: Callable[[], frames.Ends], form: dict[str, Any], assignment: str
) -> None:
    how = {"device": PAYING, "assignment": assignment, **form}
    once = twin_of(frames.with_gradients(loop), **how)
    assert low(once.report)
    assert twin_of(once.graph, **how).graph == once.graph


@every_loop
def test_the_nodes_of_a_loop_variable_have_one_type(
    loop: Callable[[], frames.Ends],
) -> None:
    twin = twin_of(frames.with_gradients(loop)).graph
    by_name = nodes(twin)
    variables = frames_lib.loop_variables(module_of(twin).main)
    kinds = [{by_name[n].attr["T"].type for n in v.nodes} for v in variables]
    assert all(len(found) == 1 for found in kinds)
    assert {tf.bfloat16.as_datatype_enum} in kinds or loop is frames.array_loop


@every_loop
def test_no_cast_stands_on_the_way_around_a_loop(
    loop: Callable[[], frames.Ends],
) -> None:
    twin = twin_of(frames.with_gradients(loop)).graph
    by_name = nodes(twin)
    for node in twin.node:
        sources = [by_name[text.partition(":")[0].strip("^")] for text in node.input]
        if node.op in ("Merge", "LoopCond", "Exit"):
            assert all(source.op != "Cast" for source in sources)


def test_a_loop_invariant_is_cast_outside_of_the_loop() -> None:
    """The weight, once for all trips, forward and backward, and outside of both."""
    proto = frames.with_gradients(frames.state_loop)
    twin = twin_of(proto).graph
    within = frames_lib.frames(module_of(twin).main)
    down = {n.name for n in casts(twin) if n.attr["DstT"].type != tf.float32}
    assert {name for name in down if "given" in name} == {"given/amp_to_bfloat16"}
    assert "x/amp_to_bfloat16" in down
    assert not within.keys() & down
    constant = [n for n in twin.node if n.op == "Enter" and n.attr["is_constant"].b]
    floats = {n.attr["T"].type for n in constant} - {
        tf.int32.as_datatype_enum,
        tf.resource.as_datatype_enum,
    }
    assert floats == {tf.bfloat16.as_datatype_enum}


def test_the_stacks_of_a_gradient_hold_16_bits() -> None:
    twin = twin_of(frames.with_gradients(frames.state_loop)).graph
    for op, attr in (("StackV2", "elem_type"), ("StackPopV2", "elem_type")):
        assert types(twin, op, attr) == {tf.bfloat16.as_datatype_enum}
    assert types(twin, "StackPushV2") == {tf.bfloat16.as_datatype_enum}


def test_arrays_hold_16_bits_and_their_flows_stay_float32() -> None:
    twin = twin_of(frames.with_gradients(frames.array_loop))
    for op, attr in (("TensorArrayV3", "dtype"), ("TensorArrayReadV3", "dtype")):
        assert types(twin.graph, op, attr) == {tf.bfloat16.as_datatype_enum}
    for op in ("TensorArrayWriteV3", "TensorArrayScatterV3"):
        assert types(twin.graph, op) == {tf.bfloat16.as_datatype_enum}
    assert rules(twin.report)["loop/Merge_1"] == "listed"


def test_the_gradient_of_an_invariant_is_added_up_in_float32() -> None:
    twin = twin_of(frames.with_gradients(frames.state_loop))
    assert rules(twin.report)["gradients_1/loop/product/Enter_grad/Add"] == "count"
    made = nodes(twin.graph)["gradients_1/loop/product/Enter_grad/Add"]
    assert made.attr["T"].type == tf.float32.as_datatype_enum
