"""`Report`: what a rewrite did, for a person and for a program.

Data and its text only; nothing is decided, measured or drawn here.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

from amp.graph_rewrite.plan import RULES


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """One node's type and why.

    Attributes:
      node, op: the node; its function stands before a slash-free "::" if it has one.
      dtype: the type it computes in.
      rule: name of the rule that decided (see `plan.RULES`).
      cause: the node, pattern or figure that made the rule apply.
    """

    node: str
    op: str
    dtype: str
    rule: str
    cause: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What one rewrite did.

    Attributes:
      function: name of the function or graph.
      dtype: the 16-bit type, "" if mixed precision was off.
      emulated: whether 16-bit values are held in float32 kernels.
      device: the device that costs were taken from.
      loss_scale: the loss-scaling rule, as text.
      nodes_total: nodes of the graph and the functions it reaches.
      nodes_low: nodes held in 16 bits.
      casts: casts between the types, one per tensor and direction; none for constants.
      seconds32, seconds16: predicted time of a step before and after.
      decisions: one per node that touches float32 or 16 bits.
      verdict: the outcome in one line.
      measured_share: share of the candidates' float32 seconds that was measured at
        their own shapes; the cost model gives the rest.
    """

    function: str
    dtype: str
    emulated: bool
    device: str
    loss_scale: str
    nodes_total: int
    nodes_low: int
    casts: int
    seconds32: float
    seconds16: float
    decisions: tuple[Decision, ...]
    verdict: str
    measured_share: float = 0.0

    def __str__(self) -> str:
        rules = Counter(d.rule for d in self.decisions if d.dtype == "float32")
        low = f"{self.dtype or '16 bits'}{' (emulated)' if self.emulated else ''}"
        times = (
            f"{_time(self.seconds32)} in float32, {_time(self.seconds16)} mixed, "
            f"on {self.device}"
        )
        share = self.measured_share
        priced = f"measurement {share:.0%}, model {1 - share:.0%}"
        lines = [
            f"{self.function or 'graph'}: {self.verdict}",
            f"  nodes        {self.nodes_total}, of them {self.nodes_low} in {low}",
            f"  casts        {self.casts}",
            f"  predicted    {times}",
            f"  priced by    {priced}",
            f"  loss scale   {self.loss_scale}",
        ]
        if rules:
            lines.append("  float32 because")
        for rule, count in rules.most_common():
            lines.append(f"    {count:6d}  {rule}: {RULES.get(rule, rule)}")
        return "\n".join(lines)

    def explain(self, node: str) -> str:
        """Why a node has its type, in one line a match (the name or its end)."""
        ends = (f"::{node}", f"/{node}")
        found = [d for d in self.decisions if d.node == node or d.node.endswith(ends)]
        return "\n".join(
            f"{d.node} ({d.op}) is {d.dtype}: {RULES[d.rule]} [{d.rule}: {d.cause}]"
            for d in found
        )

    def to_json(self) -> str:
        """The report as JSON, keys as the attributes."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
