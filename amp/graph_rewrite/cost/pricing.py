"""Prices a module with measured times from a timer, and refuses what failed in 16 bits.

Nothing is run here (the caller passes the timer), and nothing is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from amp.graph_rewrite.candidates.analysis import Analysis
from amp.graph_rewrite.cost import op_instance
from amp.graph_rewrite.cost.measurement_candidates import wanted
from amp.graph_rewrite.cost.model import Measured, Point
from amp.graph_rewrite.cost.op_instance import Instance, Timer, Times
from amp.graph_rewrite.cost.priced import (
    Priced,
    PricedUse,
    cost_models,
    key_of,
    price,
    repriced,
)
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.plan import Reason


def untimed(instances: Sequence[Instance]) -> Mapping[str, Times]:
    """A timer without any times, so that the model prices everything."""
    return {}


def measured_prices(analysis: Analysis, settled: Resolution, timer: Timer) -> Priced:
    """Prices a module by the timer's times where it has some, else by the model.

    Operations that failed in 16 bits when they were measured are no candidates any
    more. The timer is not called if the policy does not choose by cost.

    Args:
      analysis: of the module.
      settled: the policy and the device whose figures the model uses.
      timer: gives times of op instances.
    """
    priced = price(analysis, cost_models(settled))
    policy = settled.policy
    assert policy is not None
    weighs = policy.assignment == "cost" and not policy.emulate
    if not weighs or timer is untimed:
        return priced
    instances = wanted(list(priced.uses.values()))
    seen = timer(instances) if instances else {}
    known = [one for one in instances if one.key in seen]
    if not known:
        return priced
    models = {}
    for use, one in priced.uses.items():
        executor = op_instance.executor_of(one.use_analysis.context)
        own = [instance for instance in known if instance.executor == executor]
        points = [Point(o.op, o.work, o.predicted, seen[o.key]) for o in own]
        times = {o.key: seen[o.key] for o in own}
        found = Measured(times, points, one.cost_model.measured.keys)
        models[use] = one.cost_model.with_measured(found)
    return usable(repriced(priced, models.__getitem__))


def usable(priced: Priced) -> Priced:
    """The module without the candidates that failed in 16 bits when measured."""
    changed = {}
    for use, one in priced.uses.items():
        refused = _failed(one)
        if refused:
            changed[use] = priced.analysis.eligible[use].refusing(refused)
    return priced.narrowed(priced.analysis.without(changed)) if changed else priced


def _failed(one: PricedUse) -> dict[str, Reason]:
    known = one.cost_model.measured.times
    failed = {key for key, (_, low) in known.items() if math.isinf(low)}
    if not failed:
        return {}
    use_analysis = one.use_analysis
    name_of = use_analysis.context.format.name
    cause = f"fails in {name_of}, as was seen when it was measured"
    typed = use_analysis.found.typed
    return {
        name: Reason("kernel", f"{typed[name].node.op} {cause}")
        for name in use_analysis.found.allowed
        if key_of(use_analysis, typed[name], one.cost_model) in failed
    }
