"""`steps`: values go from step to step; a fault names its phase, function and node."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import typing

import pytest
import tensorflow as tf
from rewriting import graph_def, matmul_chain, module_of, settled, spec, traced

from amp.errors import GraphError, RewriteError
from amp.graph_rewrite import rewrite as pipeline
from amp.graph_rewrite.candidates import context, eligibility
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.steps import Step, run, uncollected

LISTS = ("BEGIN", "PREPARE", "DECIDE", "BUILD", "CHECK", "SECOND", "FUSE", "REPORT")
STEPS = [
    (name, index) for name in LISTS for index in range(len(getattr(pipeline, name)))
]


def names_of(place: tuple[str, int]) -> str:
    return getattr(pipeline, place[0])[place[1]].name


def test_what_a_step_gives_the_next_takes() -> None:
    steps = [
        Step("double", lambda x: 2 * x, ("x",), "y"),
        Step("look", lambda x, y: None, ("x", "y")),
        Step("add", lambda y, x: y + x, ("y", "x"), "z"),
    ]
    assert run(steps, {"x": 3}) == {"x": 3, "y": 6, "z": 9}


def test_an_error_of_ours_comes_through_as_it_is() -> None:
    error = GraphError("bad", where="here", allowed="good", remedy="mend it")

    def refuse() -> None:
        raise error

    with pytest.raises(GraphError) as caught:
        run([Step("refuse", refuse, ())], {})
    assert caught.value is error


@pytest.mark.parametrize("place", STEPS, ids=names_of)
def test_a_fault_in_any_phase_names_phase_function_and_node(
    monkeypatch: pytest.MonkeyPatch, place: tuple[str, int]
) -> None:
    steps = list(getattr(pipeline, place[0]))
    cause = ZeroDivisionError("planted")

    def faulty(*args: object) -> None:
        def visit(use: FunctionUse, node: ir.Node) -> None:
            raise cause

        visit(FunctionUse("f", False), module.main.nodes["tanh"])

    module = module_of(graph_def(matmul_chain))
    steps[place[1]] = dataclasses.replace(steps[place[1]], run=faulty)
    monkeypatch.setattr(pipeline, place[0], tuple(steps))
    with pytest.raises(RewriteError, match="ZeroDivisionError: planted") as caught:
        pipeline.rewrite(module, settled())
    where = f"phase {names_of(place)!r}, function f, node tanh"
    assert caught.value.where == where
    assert "the original runs unchanged" in caught.value.remedy
    assert caught.value.__cause__ is cause
    assert pickle.loads(pickle.dumps(caught.value)).where == where


def test_a_fault_in_a_function_that_is_called_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        body = lambda i, y: (i + 1, tf.nn.softplus(y, name="inside"))  # noqa: E731
        return tf.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x @ x])[1]

    honest = eligibility.eligible

    def faulty(view: context.Typed, circumstances: context.Context) -> object:
        if view.node.name.endswith("inside"):
            raise KeyError("planted")
        return honest(view, circumstances)

    monkeypatch.setattr(eligibility, "eligible", faulty)
    module, _ = traced(fn, spec(4, 4))
    ((body, node),) = [
        (body, name)
        for body, graph in module.functions.items()
        for name in graph.nodes
        if name.endswith("inside")
    ]
    with pytest.raises(RewriteError) as caught:
        pipeline.rewrite(module, settled())
    assert caught.value.where == f"phase 'analyze', function {body}, node {node}"


def test_every_value_is_given_before_it_is_taken_and_has_one_type() -> None:
    """What a type checker would say if the steps were calls, one after the other."""
    known = {"given", "settled", "policy", "fetches", "feeds", "suffix", "timer"}
    known |= {"sizes", "differentiable", "onednn"}
    known.add("fused")  # nothing, as long as nothing is made
    known |= {"nominee", "fusing"}
    types: dict[str, set[str]] = {}
    for step in (step for name in LISTS for step in getattr(pipeline, name)):
        assert set(step.takes) <= known, step.name
        hints = typing.get_type_hints(step.run)
        made = hints.pop("return")
        for name, kind in zip(step.takes, hints.values(), strict=True):
            types.setdefault(name, set()).add(_bare(kind))
        if step.gives:
            types.setdefault(step.gives, set()).add(_bare(made))
            known.add(step.gives)
        else:
            assert made is type(None), step.name
    assert {name for name, kinds in types.items() if len(kinds) > 1} == set()


def _bare(kind: object) -> str:
    """A type by its text, in which any mapping is a dict: what takes it only reads."""
    return str(kind).replace("collections.abc.Mapping", "dict").replace("typing.", "")


def test_the_collector_comes_back_where_ctrl_c_came_as_it_was_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = gc.disable

    def disable() -> None:
        honest()
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, "disable", disable)
    with pytest.raises(KeyboardInterrupt), uncollected():
        pass
    assert gc.isenabled()


def test_the_collector_rests_and_comes_back_whatever_happens() -> None:
    def stop() -> None:
        with uncollected():
            assert not gc.isenabled()
            raise ValueError("stop")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="stop"):
        stop()
    assert gc.isenabled()
