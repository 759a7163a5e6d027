"""Drops all plans of a module if their predicted gain is less than `min_gain`.

Works on predicted seconds only; no node is priced here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp.graph_rewrite import figures
from amp.graph_rewrite.assign.decide import decide
from amp.graph_rewrite.assign.nominee import CUT, Nominee
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import CastsSaved, CastsToMake, Interface, Plan, Reason
from amp.policy import Policy


def without_memory_if_needed(
    plans: Mapping[FunctionUse, Plan], priced: Priced, nominee: Nominee = CUT
) -> Priced:
    """The prices to decide by: without those for memory if plans with them are dropped.

    To store fewer bytes a plan may take casts that cost time. Where it then gains less
    than `min_gain`, and the fastest plan gains enough, the fastest is taken.

    Args:
      plans: the plan of each use, by the prices given.
      priced: the module's analysis and prices.
      nominee: the plan that was asked for.
    """
    if _gains(plans, priced, nominee):
        return priced
    fastest = priced.without_memory()
    return fastest if _gains(decide(fastest, nominee), fastest, nominee) else priced


def keep_if_gains(
    plans: Mapping[FunctionUse, Plan], priced: Priced, nominee: Nominee = CUT
) -> Mapping[FunctionUse, Plan]:
    """The plans as they are, or plans that change nothing if the gain is too small.

    Plans for emulation and those of everything always stay. If the prices have none for
    memory (`without_memory_if_needed`), the plans are decided anew by them.

    Args:
      plans: the plan of each use.
      priced: the module's analysis, with the weight of each use.
      nominee: the plan that was asked for.
    """
    if not priced.prices_memory:
        plans = decide(priced, nominee)
    if _gains(plans, priced, nominee):
        return plans
    reason = _too_little(plans, priced)
    return {use: _dropped(plan, reason) for use, plan in plans.items()}


def _too_little(plans: Mapping[FunctionUse, Plan], priced: Priced) -> str:
    gain, least = _gain(plans, priced), _policy(priced).min_gain
    if gain < 0:  # of plans that save memory, or that were asked for
        return f"predicted {figures.gain(1.0, 1 - gain)} in 16 bits"
    return f"predicted gain {gain:.1%}, under min_gain {least:.1%}"


def _gains(plans: Mapping[FunctionUse, Plan], priced: Priced, nominee: Nominee) -> bool:
    policy = _policy(priced)
    forced = policy.emulate or nominee.forced(policy)
    return forced or _gain(plans, priced) >= policy.min_gain


def _gain(plans: Mapping[FunctionUse, Plan], priced: Priced) -> float:
    """The part of a step's predicted seconds that the plans save."""
    before, after = seconds_of(plans, priced)
    return 1 - after / before if before else 0.0


def seconds_of(
    plans: Mapping[FunctionUse, Plan], priced: Priced
) -> tuple[float, float]:
    """The predicted seconds of a step as given and by plans, in all their uses."""
    weighted = [(priced.analysis.uses[use].weight, p) for use, p in plans.items()]
    before = sum(weight * plan.seconds_given for weight, plan in weighted)
    return before, sum(weight * plan.seconds16 for weight, plan in weighted)


def _policy(priced: Priced) -> Policy:
    return next(iter(priced.analysis.uses.values())).context.policy


def _dropped(plan: Plan, cause: str) -> Plan:
    reasons = dict(plan.reasons)
    reasons.update((name, Reason("gain", cause)) for name in plan.low)
    return dataclasses.replace(
        plan,
        low=frozenset(),
        attrs={},
        reasons=reasons,
        casts=frozenset(),
        seconds32=plan.seconds_given,
        seconds16=plan.seconds_given,
        spared=0.0,
        interface=Interface(),
        casts_saved=CastsSaved(),
        late={},
        to_make=CastsToMake(),
    )
