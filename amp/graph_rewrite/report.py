"""`Report`: what a rewrite did, as data, as text and as JSON.

Nothing is decided, measured or drawn here.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping

from amp.graph_rewrite import figures
from amp.graph_rewrite.plan import RULES

_MOST_LISTED = 6  # arguments and nodes in one line


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """One node's type and why.

    Attributes:
      node: the node's name, after "function::" if it is in a function.
      op: its op.
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
class RacedPlan:
    """What a race found about one plan of a function.

    Attributes:
      name: of the plan; "float32" is the function as it was given.
      predicted: seconds of a call, by the cost model; None if the plan was not made.
      seconds: median time of a call, None if it was never timed.
      timed: number of its timed calls.
      fate: "won", or why it is not called any more.
    """

    name: str
    predicted: float | None
    seconds: float | None
    timed: int
    fate: str

    def __str__(self) -> str:
        measured = "not timed"
        if self.seconds is not None:
            measured = f"{figures.time(self.seconds)} over {self.timed} calls"
        parts = [self.fate, measured]
        if self.predicted is not None:
            parts.append(f"predicted {figures.time(self.predicted)}")
        return f"{self.name}: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of a race, in which plans and the original are timed in turn.

    Attributes:
      twin: whether a plan's function runs from now on, and not the original.
      seconds32, seconds16: median time of a call of the original, and of the winner (of
        the fastest plan, if the original won); None for what was never timed.
      timed: number of timed calls of all together.
      text: how it ended, for the report.
      plans: each one that raced, the original among them.
    """

    twin: bool
    seconds32: float | None
    seconds16: float | None
    timed: int
    text: str
    plans: tuple[RacedPlan, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class GradientError:
    """The error of one gradient in 16 bits, in units of its norm in float32.

    Attributes:
      name: the node that makes the gradient.
      error: as planned.
      products: with products only in 16 bits.
    """

    name: str
    error: float
    products: float


@dataclasses.dataclass(frozen=True, slots=True)
class AccuracyOutcome:
    """What a comparison of gradients in the job found.

    Attributes:
      text: in one line.
      kept: number of nodes that were at fault and stay float32.
      error, products: the error of all gradients together, as planned and with products
        only in 16 bits; None where nothing was compared.
      worst: the gradients with the largest errors, the worst first; without those of
        which products only lose half.
    """

    text: str
    kept: int = 0
    error: float | None = None
    products: float | None = None
    worst: tuple[GradientError, ...] = ()


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
      measured32, measured16: median time of a call, in seconds, of the original and of
        the winner (of the fastest plan, if the original won); None before a race has
        ended, and where there is none.
      timed: number of timed calls of all plans together.
      plans: what the race found about each plan, once it has ended.
      trial: how a race stands, or why there is none; "" where there is nothing to try.
      measured_share: share of the candidates' float32 seconds that was measured at
        their own shapes; the cost model gives the rest.
      casts_spared: the casts saved, by how (as in `CastsSaved`, and "fused").
      clusters: number of calls of clusters.
      fused_seconds: predicted saving of the clusters, already in `seconds16`.
      accuracy: what a comparison of gradients found, None before there was one.
      made_for: the sizes of the call that the plan was made for, by argument or node;
        of those only that were traced with unknown dimensions.
      sizes_assumed: arguments and nodes whose sizes no call told before the plan.
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
    measured32: float | None = None
    measured16: float | None = None
    timed: int = 0
    trial: str = ""
    measured_share: float = 0.0
    casts_spared: Mapping[str, int] = dataclasses.field(default_factory=dict)
    clusters: int = 0
    fused_seconds: float = 0.0
    accuracy: AccuracyOutcome | None = None
    made_for: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)
    sizes_assumed: tuple[str, ...] = ()
    plans: tuple[RacedPlan, ...] = ()

    def __str__(self) -> str:
        rules = Counter(d.rule for d in self.decisions if d.dtype == "float32")
        low = f"{self.dtype or '16 bits'}{' (emulated)' if self.emulated else ''}"
        high, mixed = figures.time(self.seconds32), figures.time(self.seconds16)
        times = f"{high} in float32, {mixed} mixed, on {self.device}"
        share = self.measured_share
        priced = f"measurement {share:.0%}, model {1 - share:.0%}"
        lines = [
            f"{self.function or 'graph'}: {self.verdict}",
            f"  nodes        {self.nodes_total}, of them {self.nodes_low} in {low}",
            f"  casts        {self.casts}{self._casts_saved()}",
            *([f"  clusters     {self.clusters}"] if self.clusters else []),
            f"  predicted    {times}",
            *self._trial_lines(),
            *self._accuracy_lines(),
            *self._size_lines(),
            f"  priced by    {priced}",
            f"  loss scale   {self.loss_scale}",
        ]
        if rules:
            lines.append("  float32 because")
        for rule, count in rules.most_common():
            lines.append(f"    {count:6d}  {rule}: {RULES.get(rule, rule)}")
        return "\n".join(lines)

    def _trial_lines(self) -> list[str]:
        lines = [f"  trial        {self.trial}"] if self.trial else []
        if self.measured32 is not None and self.measured16 is not None:
            high, mixed = figures.time(self.measured32), figures.time(self.measured16)
            times = f"{high} in float32, {mixed} mixed"
            lines.insert(0, f"  measured     {times}, over {self.timed} calls")
        for number, plan in enumerate(self.plans):
            lines.append(f"  {'' if number else 'plans':<12} {plan}")
        return lines

    def _accuracy_lines(self) -> list[str]:
        if self.accuracy is None:
            return []
        return [f"  accuracy     {self.accuracy.text}"] + [
            f"    {one.error:8.2g}  {one.name} ({one.products:.2g} by products only)"
            for one in self.accuracy.worst
        ]

    def _size_lines(self) -> list[str]:
        given = (f"{name} {sizes}" for name, sizes in self.made_for.items())
        lines = []
        if self.made_for:
            lines.append(f"  made for     sizes {_listed(given)}")
        if self.sizes_assumed:
            lines.append(f"  assumed      the sizes of {_listed(self.sizes_assumed)}")
        return lines

    def after(self, outcome: TrialOutcome) -> Report:
        """The report with the result of a race, or of a later check of its winner.

        If the original runs from now on, only the nodes that were 16-bit as given are
        listed as 16-bit. The predicted times stay, for comparison.
        """
        result = f"predicted {self.seconds32 / self.seconds16:.2f}x"
        before, after = outcome.seconds32, outcome.seconds16
        if before is not None and after is not None:
            result += f", measured {before / after:.2f}x over {outcome.timed} calls"
        report = dataclasses.replace(
            self,
            measured32=before,
            measured16=after,
            timed=outcome.timed,
            trial=outcome.text,
            plans=outcome.plans,
            verdict=f"rewritten, {result}",
        )
        return report if outcome.twin else report._left(result)

    def _left(self, cause: str) -> Report:
        decisions = tuple(
            d
            if d.dtype == "float32" or d.rule == "already"
            else dataclasses.replace(d, dtype="float32", rule="trial", cause=cause)
            for d in self.decisions
        )
        return dataclasses.replace(
            self,
            nodes_low=sum(d.dtype != "float32" for d in decisions),
            casts=0,
            casts_spared={},
            clusters=0,
            decisions=decisions,
            verdict=f"left in float32: {cause}",
        )

    def _casts_saved(self) -> str:
        parts = [
            f"{count} {kind}" for kind, count in self.casts_spared.items() if count
        ]
        if not parts:
            return ""
        # A hoisted cast is made, at another place, so it is in `casts` already.
        spared = sum(n for kind, n in self.casts_spared.items() if kind != "hoisted")
        return f" of {self.casts + spared} reads in another type ({', '.join(parts)})"

    def explain(self, node: str) -> str:
        """Why a node has its type; one line for each name that is or ends in `node`."""
        ends = (f"::{node}", f"/{node}")
        found = [d for d in self.decisions if d.node == node or d.node.endswith(ends)]
        return "\n".join(
            f"{d.node} ({d.op}) is {d.dtype}: {RULES[d.rule]} [{d.rule}: {d.cause}]"
            for d in found
        )

    def to_json(self) -> str:
        """The report as JSON, with the attributes as keys."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def _listed(items: Iterable[str]) -> str:
    """Items in a line; those beyond the first few are counted."""
    found = list(items)
    more = len(found) - _MOST_LISTED
    return ", ".join(found[:_MOST_LISTED]) + (f", {more} more" if more > 0 else "")
