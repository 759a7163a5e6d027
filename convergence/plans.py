"""What the package's plan of a training step was: how much of it, and a digest.

Asks `amp.reports()`; plans nothing itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection

import amp
from convergence import audit
from convergence.errors import ResultError


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A plan of the step.

    Attributes:
      low, every: nodes in 16 bits, and all.
      digest: of which nodes are held in which type, and why; "" in float32.
    """

    low: int
    every: int
    digest: str


def plan(policy: amp.Policy | None, earlier: Collection[str]) -> Plan:
    """The plan of the training step; of several stages, that of the largest.

    Args:
      policy: of the setting; None for float32.
      earlier: functions that were rewritten before the step was traced.

    Raises:
      ResultError: the policy converted nothing.
    """
    if policy is None:
        return Plan(0, 0, "")
    reports = [
        report
        for report in amp.reports()
        if "_train_" in report.function and report.function not in earlier
    ]
    most = max(reports, key=lambda r: r.nodes_total, default=None)
    if most is None or not most.nodes_low:
        raise ResultError(
            "nothing of the training step was converted",
            where=f"the setting with {policy}",
            allowed="a step with nodes in 16 bits",
            remedy="read amp.reports(); without it nothing is compared",
        )
    # Names hold numbers that depend on what else the process traced.
    decided = Counter(
        "|".join((_NUMBER.sub("", d.node), d.op, d.dtype, d.rule))
        for d in most.decisions
    )
    return Plan(most.nodes_low, most.nodes_total, audit.of(sorted(decided.items())))


_NUMBER = re.compile(r"_?\d+")
