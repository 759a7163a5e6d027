"""`Handovers`: what calls, branches and loops give to and get of their functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from rewriting import spec, traced

from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.handovers import Handovers


def looped(x: tf.Tensor) -> Any:
    return tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: [y * 2.0], [x])[0]


def branched(x: tf.Tensor) -> Any:
    return tf.cond(tf.reduce_sum(x) < 9.0, lambda: x * 2.0, lambda: x + 1.0)


def handovers_of(fn: Callable[..., Any]) -> tuple[Handovers, calls.Site, Any]:
    """The handovers, the one site, and its functions' graphs."""
    module, _ = traced(fn, spec(4))
    weights = calls.uses_with_weights(module)
    (site,) = calls.sites(module, weights).values()
    graphs = {use: calls.graph_of(module, use) for use in weights}
    return Handovers(graphs, [site]), site, [graphs[each] for each in site.callees]


def test_a_loop_hands_on_what_it_begins_with_and_what_each_trip_makes() -> None:
    handovers, site, functions = handovers_of(looped)
    *_, body = functions
    (carried,) = (i for i, r in enumerate(body.results) if r.type == ir.FLOAT)
    args = {
        (use, (graph.args[carried].name, 0))
        for use, graph in zip(site.callees, functions, strict=True)
    }
    output = site.use, (site.node.name, carried)
    begins = site.use, site.node.inputs[carried]
    made = site.callees[-1], body.results[carried].edge
    # The condition reads what the trip before made, too.
    assert {*handovers.onward[begins]} == {*handovers.onward[made]} == {output, *args}
    assert all({*handovers.back[each]} == {begins, made} for each in (output, *args))


def test_a_branch_is_given_what_the_call_does_not_skip() -> None:
    handovers, site, branches = handovers_of(branched)
    chosen = site.use, site.node.inputs[0]
    assert chosen not in handovers.onward
    x = site.use, site.node.inputs[1]
    args = [
        (use, (g.args[0].name, 0))
        for use, g in zip(site.callees, branches, strict=True)
    ]
    assert handovers.onward[x] == args
    output = site.use, (site.node.name, 0)
    made = [
        (use, g.results[0].edge) for use, g in zip(site.callees, branches, strict=True)
    ]
    assert handovers.back[output] == made


@pytest.mark.parametrize("fn", [looped, branched])
def test_back_is_the_inverse_of_onward(fn: Callable[..., Any]) -> None:
    handovers, *_ = handovers_of(fn)
    onward = {(a, b) for a, others in handovers.onward.items() for b in others}
    assert onward == {(a, b) for b, others in handovers.back.items() for a in others}
    assert onward
