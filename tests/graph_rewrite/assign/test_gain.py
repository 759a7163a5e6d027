"""`keep_if_gains`: all plans together gain enough, or nothing is done at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import random_graphs
import tensorflow as tf
from rewriting import context_of, graph_def, matmul_chain, module_of, priced_of, v1

from amp.graph_rewrite.assign import decide as decide_lib
from amp.graph_rewrite.assign.decide import decide
from amp.graph_rewrite.assign.gain import keep_if_gains, without_memory_if_needed
from amp.graph_rewrite.cost import model as model_lib
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.cost.shipped_devices import A100, CPU_AMX
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import CastsToMake, Interface, Plan, Reason


def decided(**fields: Any) -> tuple[Priced, Mapping[FunctionUse, Plan]]:
    """A policy of `fields`, and plans as if every candidate were chosen."""
    module = module_of(graph_def(matmul_chain))
    model = CostModel(A100, "bfloat16")
    chosen = priced_of(module, context_of(module, A100), model)
    asked = {"assignment": "cost", **fields}
    return priced_of(module, context_of(module, A100, **asked), model), decide(chosen)


def gain(plans: Mapping[FunctionUse, Plan]) -> float:
    (plan,) = plans.values()
    return 1 - plan.seconds16 / plan.seconds32


def test_what_gains_exactly_min_gain_is_kept_and_a_bit_less_is_not() -> None:
    priced, plans = decided(min_gain=0.25)
    ((use, plan),) = plans.items()
    for seconds, kept in ((0.75, True), (0.7501, False)):
        timed = {use: dataclasses.replace(plan, seconds32=1.0, seconds16=seconds)}
        assert (keep_if_gains(timed, priced) == timed) is kept


def test_what_only_the_function_as_given_has_to_do_counts_as_gained() -> None:
    priced, plans = decided(min_gain=0.25)
    ((use, plan),) = plans.items()
    for spared, kept in ((0.21, True), (0.19, False)):
        times = {"seconds32": 1.0, "seconds16": 0.9, "spared": spared}
        timed = {use: dataclasses.replace(plan, **times)}
        assert (keep_if_gains(timed, priced) == timed) is kept


def step() -> None:
    """Small products, whose activations stay float32, and a large one that gains."""
    large = v1.placeholder(tf.float32, [2048, 2048])
    tf.matmul(large, large)
    x = v1.placeholder(tf.float32, [4096, 256])
    weights = [v1.placeholder(tf.float32, [256, 256]) for _ in range(3)]
    y = x
    for w in weights:
        y = tf.math.softplus(tf.matmul(y, w))
    v1.gradients(tf.reduce_sum(y), weights)


def bent(monkeypatch: pytest.MonkeyPatch, min_gain: float) -> Priced:
    """Prices by which memory is worth far more than time."""
    monkeypatch.setattr(model_lib, "HOLD", 1e3)
    module = module_of(graph_def(step))
    asked = {"assignment": "cost", "deny": ("Softplus",), "min_gain": min_gain}
    context = context_of(module, A100, **asked)
    return priced_of(module, context, CostModel(A100, "bfloat16"))


def test_a_plan_bent_by_memory_gives_way_to_the_fastest_before_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priced = bent(monkeypatch, 0.0)
    slow = gain(decide(priced))
    fast = gain(decide(priced.without_memory()))
    assert 0.0 < slow < fast < 0.9
    between, above = (slow + fast) / 2, (fast + 1) / 2
    for least, memory in ((slow / 2, True), (between, False), (above, True)):
        priced = bent(monkeypatch, least)
        plans = decide(priced)
        settled = without_memory_if_needed(plans, priced)
        assert settled.prices_memory is memory
        kept = keep_if_gains(plans, settled)
        assert bool(next(iter(kept.values())).low) is (least < fast)
        assert gain(kept) == {slow / 2: slow, between: fast, above: 0.0}[least]


def test_what_a_plan_saves_is_what_the_cut_minimised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seconds by which plans are kept, and by which they are chosen, are the same."""
    random = [random_graphs.module(seed) for seed in range(20)]
    for module in (module_of(graph_def(step)), *random):
        context = context_of(module, CPU_AMX, assignment="cost")
        priced = priced_of(module, context, CostModel(CPU_AMX, "bfloat16"))
        priced = priced.without_memory()
        uses, plans = priced.analysis.uses, decide(priced)
        saved = sum(
            uses[use].weight * (plan.seconds32 - plan.seconds16)
            for use, plan in plans.items()
        )
        tie = max(plan.tie for plan in plans.values())
        assert saved == pytest.approx(decide_lib.gain(priced), rel=1e-6, abs=tie)


def test_a_dropped_plan_changes_nothing_and_says_why() -> None:
    priced, plans = decided(min_gain=0.99)
    (before,) = plans.values()
    (after,) = keep_if_gains(plans, priced).values()
    assert before.low
    assert before.casts
    assert before.to_make.casts
    assert after.low == after.casts == frozenset()
    assert (after.attrs, after.late) == ({}, {})
    assert (after.interface, after.to_make) == (Interface(), CastsToMake())
    assert after.seconds16 == after.seconds32 == before.seconds32
    assert gain(plans) < 0.0
    cause = f"predicted {1 - gain(plans):.2f}x slower in 16 bits"
    for name in before.low:
        assert after.reasons[name] == Reason("gain", cause)
    for name in before.reasons.keys() - before.low:
        assert after.reasons[name] == before.reasons[name]


@pytest.mark.parametrize(
    ("times", "why"),
    [(1.25, "predicted 1.25x slower in 16 bits"), (1.0, "predicted gain 0.0%, under")],
)
def test_a_plan_that_is_slower_is_called_slower(times: float, why: str) -> None:
    priced, plans = decided(min_gain=0.5)
    slower = {
        use: dataclasses.replace(plan, seconds16=times * plan.seconds32)
        for use, plan in plans.items()
    }
    (dropped,) = keep_if_gains(slower, priced).values()
    causes = {r.cause for r in dropped.reasons.values() if r.rule == "gain"}
    assert len(causes) == 1
    assert causes.pop().startswith(why)


@pytest.mark.parametrize("asked", [{"emulate": True}, {"assignment": "all"}])
def test_emulation_and_every_candidate_are_not_asked_for_a_gain(
    asked: dict[str, Any],
) -> None:
    priced, plans = decided(min_gain=0.99, **asked)
    assert keep_if_gains(plans, priced) is plans
