"""A warning says what happened, where it began, and what to try."""

from __future__ import annotations

import dataclasses

import pytest

from amp.loss_scaling.advice import Case, Finding, listed, text

CASE = Case("stalled", "net", ["b", "a"], 20, "the loss scale is 2")
FOUND = Finding("b", "net/truediv", "RealDiv", "float16", True, "NaN", False, False)


def test_the_first_names_are_said_and_how_many_more_there_are():
    assert listed(["a", "b"]) == "a, b"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ("stalled", "20 updates were skipped because the gradients of b, a"),
        ("floor", "the loss scale is 2, which is its floor"),
        ("never", "not finite in any of 20 steps"),
    ],
)
def test_each_event_names_the_scaler_and_the_variables(event, says):
    said = text(dataclasses.replace(CASE, event=event), None)
    assert said.startswith("loss scaler 'net': ")
    assert says in said
    assert "a mean instead of a sum" in said
    assert "amp.compare(step, *batch)" in said


@pytest.mark.parametrize(
    "finding",
    [None, dataclasses.replace(FOUND, dtype="", rounded="float16")],
)
def test_a_session_is_told_the_command_as_its_step_cannot_be_called(finding):
    said = text(dataclasses.replace(CASE, in_session=True), finding)
    assert "`amp compare graph.pb --inputs batch.npz`" in said
    assert "amp.compare" not in said


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ("stalled", "b, a were not finite in 20 calls, and no optimizer skipped an"),
        ("never", "'net': the gradients of b, a were not finite in any of 20 calls"),
    ],
)
def test_no_update_is_said_to_be_skipped_where_none_was(event, says):
    case = dataclasses.replace(CASE, event=event, skipped=False)
    assert says in text(case, None)


@pytest.mark.parametrize(
    ("change", "where", "remedy"),
    [
        ({}, "net/truediv (RealDiv, float16): NaN", "a larger epsilon, or AMP_KEEP"),
        ({"readers": ("a", "b")}, "NaN", "AMP_KEEP='net/truediv,a,b' or"),
        ({"tensor": "next:1"}, "next:1 (RealDiv", "AMP_KEEP='next' or"),
        ({"own": True}, "float16", "a cast to float32 before it"),
        ({"op": "MatMul"}, "MatMul", "smaller values before it"),
        ({"op": "Cast"}, "Cast", "a constant that it can hold"),
        ({"dtype": ""}, "RealDiv, float32", "mixed precision is not the cause"),
        (
            {"dtype": "", "rounded": "float16"},
            "RealDiv, float32",
            "from values in float16",
        ),
        ({"op": ""}, "an input of the step, float16", "It is finite in float32"),
        ({"op": "IteratorGetNext"}, "IteratorGetNext, float16", "or dtype='bfloat16'"),
        ({"op": "", "readers": ("a",)}, "an input", "a mask), AMP_KEEP='a' or amp."),
        ({"op": ""}, "an input", "a mask), amp.keep_float32() around it, or"),
        ({"line": "net.py:3"}, "NaN (made at net.py:3). The gradient", "AMP_KEEP"),
        ({"op": "", "line": "f.py:3"}, "NaN (given at f.py:3). The gradient", "AMP_"),
        ({"op": "", "own": True}, "an input of the step", "look at what is fed"),
        ({"op": "", "dtype": ""}, "(an input of the step):", "look at what is fed"),
        ({"is_state": True}, "net/truediv", "past float16's range"),
        ({"is_state": True, "dtype": ""}, "net/truediv", "itself holds it"),
        ({"forward": False}, "The forward pass was finite", "a mean instead of a sum"),
    ],
)
def test_what_to_try_depends_on_the_first_tensor_that_was_not_finite(
    change, where, remedy
):
    said = text(CASE, dataclasses.replace(FOUND, **change))
    assert where in said
    assert remedy in said
    assert "gradient of b" in said
