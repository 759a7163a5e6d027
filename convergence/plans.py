"""What the package made of a training step: how much is in 16 bits, and a digest.

Asks `amp.reports()`; plans nothing itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import amp
from amp.graph_rewrite.ops.op_table import Kind, facts
from convergence import audit
from convergence.errors import ResultError
from convergence.steps import Step


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A plan of the step.

    Attributes:
      low, every: nodes in 16 bits, and all.
      digest: of the step's graphs as they were traced, and of which nodes with values
        are held in which type; "" in float32.
    """

    low: int
    every: int
    digest: str


def plan(step: Step) -> Plan:
    """The plan of the training step; of several stages, that of the largest.

    Args:
      step: which has been taken once, unless it is in float32.

    Raises:
      ResultError: the policy converted nothing.
    """
    if step.policy is None:
        return Plan(0, 0, "")
    reports = [
        report
        for report in amp.reports()
        if "_train_" in report.function and report.function not in step.earlier
    ]
    most = max(reports, key=lambda r: r.nodes_total, default=None)
    if most is None or not most.nodes_low:
        raise ResultError(
            "nothing of the training step was converted",
            where=f"the setting with {step.policy}",
            allowed="a step with nodes in 16 bits",
            remedy="read amp.reports(); without it nothing is compared",
        )
    # Names hold numbers that depend on what else the process traced.
    decided = Counter(
        "|".join((_NUMBER.sub("", d.node), d.op, d.dtype))
        for d in most.decisions
        if facts(d.op).kind is not Kind.SHAPE  # which computes with no values
    )
    made = audit.of([step.traced, sorted(decided.items())])
    return Plan(most.nodes_low, most.nodes_total, made)


_NUMBER = re.compile(r"_?\d+")
