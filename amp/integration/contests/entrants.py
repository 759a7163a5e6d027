"""The plans that may race, by name, and whether one is worth a try beside the others.

Used by the twins of functions and of sessions' runs, which make them. Nothing is made,
called or timed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from amp.graph_rewrite.assign.nominee import (
    CUT,
    EVERYTHING,
    PRODUCTS,
    REWRITTEN,
    UNCLUSTERED,
    Nominee,
)
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Prepared
from amp.integration.racing import exemptions
from amp.policy import Policy

# The plans besides the cheapest, in the order in which they enter a race. The one in
# float32 is predicted to be close where 16 bits gain little, and is soon made ready.
OTHERS = (REWRITTEN, EVERYTHING, UNCLUSTERED, PRODUCTS)
# The cheapest by times that were measured after the others were made (`later_plan`).
MEASURED = dataclasses.replace(CUT, name="the cheapest as measured")
NOT_BORNE = "not made, it may lose gradients that another plan has"
# Plans that are as exact as the yardstick of the check of accuracy, which is one of
# them, or as the cheapest, whose nodes the other has in 16 bits.
AS_EXACT = (PRODUCTS.name, UNCLUSTERED.name)
NOMINEES: Mapping[str, Nominee] = {each.name: each for each in (CUT, *OTHERS, MEASURED)}
# A plan is worth trying if its predicted time is at most so many times the cheapest's;
# more, if less than half of the prediction rests on measured times, and as many times
# more as the predicted gain of the cheapest was found to be wrong by.
CLOSE, CLOSE_IF_MODELLED, MEASURED_PART = 1.15, 1.5, 0.5
# Where no plan is predicted to gain, a training step has no race that is predicted to
# take less than this (in seconds), as that could not pay for one, or of which the user
# asks a larger gain than this.
LEAST_STEP, USUAL_GAIN = 0.01, Policy().min_gain


def nominee_under(settled: Resolution, plan: str) -> Nominee:
    """The plan of a name, as it is made under a policy.

    Where plans do not race, nothing would show that compiling clusters for each new
    length takes longer than they save, nor what a loss scale costs.
    """
    policy = settled.policy
    races = policy is not None and not exemptions.why_not(policy)
    nominee = dataclasses.replace(NOMINEES[plan], lengths=races)
    unscaled = nominee.in_float32 and races and settled.scales_itself
    return dataclasses.replace(nominee, unscaled=unscaled)


@dataclasses.dataclass(frozen=True, slots=True)
class NotMade:
    """A plan that is not worth a function of its own.

    Attributes:
      why: for the report of a race.
      report: on the plan, where it would change nothing; else None.
    """

    why: str
    report: Report | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What is known when it is asked whether a further plan is worth a try.

    Attributes:
      prepared: what is planned, analyzed and priced.
      cheapest: the report on the plan that is predicted to be the fastest, as far as
        it was made.
      made: of each plan that was made, the nodes that it holds in 16 bits.
    """

    prepared: Prepared
    cheapest: Report
    made: Sequence[Mapping[FunctionUse, frozenset[str]]]


def why_not_made(found: Found, nominee: Nominee, doubt: float = 1.0) -> str:
    """Why a plan is not worth a try beside the cheapest, "" if it is.

    Args:
      found: what is known so far.
      nominee: the plan.
      doubt: by which factor predictions are known to be wrong here.
    """
    report = found.cheapest
    if nominee.name == UNCLUSTERED.name:
        if not report.clusters:
            return "not made, the cheapest has no clusters either"
        seconds = report.seconds16 + report.fused_seconds
    else:
        foreseen = found.prepared.foreseen(nominee)
        if any(foreseen.low == low for low in found.made):
            return "not made, it is the same as another plan"
        fused = report.fused_seconds if nominee.clusters else 0.0
        seconds = foreseen.seconds - fused
    if seconds <= doubt * _close(report) * report.seconds16:
        return ""
    ratio = seconds / report.seconds16
    return f"not made, predicted to take {ratio:.2f} times as long"


def beside_float32(
    prepared: Prepared, float32: Report, nominee: Callable[[str], Nominee]
) -> str:
    """The plan that is to race float32 though none is predicted to gain, "" for none.

    Predictions are wrong by more than a few per cent where operations run beside one
    another; a race is not. But no plan gains more than what it has in 16 bits takes in
    float32: where that is too little, none is worth a race.

    Args:
      prepared: what is planned.
      float32: the report on the cheapest plan, which changes nothing.
      nominee: the plan of a name, as it is made of this.
    """
    policy = prepared.settled.policy
    if policy is None or policy.min_gain > USUAL_GAIN:
        return ""
    step, close = float32.seconds32, _close(float32)
    if step < LEAST_STEP:
        return ""
    found: dict[str, float] = {}
    for plan in (EVERYTHING.name, PRODUCTS.name):
        foreseen = prepared.foreseen(nominee(plan))
        most = close * _seconds32(prepared, foreseen.low)
        if any(foreseen.low.values()) and most >= policy.min_gain * step:
            found[plan] = foreseen.seconds
    best = min(found, key=found.__getitem__, default="")
    return best if best and found[best] <= close * step else ""


def _seconds32(prepared: Prepared, low: Mapping[FunctionUse, frozenset[str]]) -> float:
    """What the nodes that a plan has in 16 bits are predicted to take in float32."""
    priced = prepared.priced
    return sum(
        priced.analysis.uses[use].weight * priced.uses[use].times[name][0]
        for use, names in low.items()
        for name in names
    )


def _close(report: Report) -> float:
    """How many times as long as predicted a plan may take that is worth a try."""
    modelled = report.measured_share < MEASURED_PART
    return CLOSE_IF_MODELLED if modelled else CLOSE
