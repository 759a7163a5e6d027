"""Drops all plans of a module if their predicted gain is less than `min_gain`.

Works on predicted seconds only; no node is priced here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp.graph_rewrite.assign.nominee import CUT, Nominee
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import CastsSaved, CastsToMake, Interface, Plan, Reason


def keep_if_gains(
    plans: Mapping[FunctionUse, Plan], priced: Priced, nominee: Nominee = CUT
) -> Mapping[FunctionUse, Plan]:
    """The plans as they are, or plans that change nothing if the gain is too small.

    Plans for emulation and those of everything always stay.

    Args:
      plans: the plan of each use.
      priced: the module's analysis, with the weight of each use.
      nominee: the plan that was asked for.
    """
    uses = priced.analysis.uses
    policy = next(iter(uses.values())).context.policy
    before = sum(uses[use].weight * plan.seconds32 for use, plan in plans.items())
    after = sum(uses[use].weight * plan.seconds16 for use, plan in plans.items())
    gain = 1 - after / before if before else 0.0
    forced = policy.emulate or nominee.forced(policy)
    if forced or gain >= policy.min_gain:
        return plans
    reason = f"predicted gain {gain:.1%}, under min_gain {policy.min_gain:.1%}"
    return {use: _dropped(plan, reason) for use, plan in plans.items()}


def _dropped(plan: Plan, cause: str) -> Plan:
    reasons = dict(plan.reasons)
    reasons.update((name, Reason("gain", cause)) for name in plan.low)
    return dataclasses.replace(
        plan,
        low=frozenset(),
        attrs={},
        reasons=reasons,
        casts=frozenset(),
        seconds16=plan.seconds32,
        interface=Interface(),
        casts_saved=CastsSaved(),
        late={},
        to_make=CastsToMake(),
    )
