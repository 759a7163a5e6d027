"""`keep_if_gains`: all plans together gain enough, or nothing is done at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from rewriting import context_of, graph_def, matmul_chain, module_of, priced_of

from amp.graph_rewrite.assign.decide import decide
from amp.graph_rewrite.assign.gain import keep_if_gains
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.cost.shipped_devices import A100
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
    cause = f"predicted gain {gain(plans):.1%}, under min_gain 99.0%"
    for name in before.low:
        assert after.reasons[name] == Reason("gain", cause)
    for name in before.reasons.keys() - before.low:
        assert after.reasons[name] == before.reasons[name]


@pytest.mark.parametrize("asked", [{"emulate": True}, {"assignment": "all"}])
def test_emulation_and_every_candidate_are_not_asked_for_a_gain(
    asked: dict[str, Any],
) -> None:
    priced, plans = decided(min_gain=0.99, **asked)
    assert keep_if_gains(plans, priced) is plans
