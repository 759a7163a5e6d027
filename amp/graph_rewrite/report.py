"""`Report`: what a rewrite did, as data, as text and as JSON.

Nothing is decided, measured or drawn here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from amp.graph_rewrite import decisions as of_nodes
from amp.graph_rewrite import explanation, figures, json_fields
from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.outcomes import (
    AccuracyOutcome,
    PlanSize,
    Prices,
    RacedPlan,
    TrialOutcome,
)
from amp.graph_rewrite.plan import RULES
from amp.report_page import page

_MOST_LISTED = 6  # arguments and nodes in one line
_REWRITTEN = "rewritten"  # what a verdict begins with, before its gains


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
      device_source: where the device's figures come from.
      source_text: the text of the lines of code that decisions name as their source.
      part: which part of a file alone it is on, and what is left out; "" for all.
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
    device_source: str = ""
    source_text: Mapping[str, str] = dataclasses.field(default_factory=dict)
    part: str = ""

    def __str__(self) -> str:
        low = f"{self.dtype or '16 bits'}{' (emulated)' if self.emulated else ''}"
        high, made = figures.time(self.seconds32), figures.time(self.seconds16)
        times = f"{high} in float32, {made} rewritten, on {self.device}"
        share = self.measured_share
        priced = f"measurement {share:.0%}, model {1 - share:.0%}"
        lines = [
            f"{self.function or 'graph'}: {self.verdict}",
            *([f"  part         {self.part}"] if self.part else []),
            f"  nodes        {self.nodes_total}, of them {self.nodes_low} in {low}",
            *self._memory_lines(),
            f"  casts        {self.casts}{self._casts_saved()}",
            *([f"  clusters     {self.clusters}"] if self.clusters else []),
            f"  predicted    {times}",
            *self._trial_lines(),
            *self._accuracy_lines(),
            *self._size_lines(),
            f"  priced by    {priced}",
            *([f"  figures      {self.device_source}"] if self.device_source else []),
            f"  loss scale   {self.loss_scale}",
        ]
        return "\n".join(lines + self._node_lines())

    def _memory_lines(self) -> list[str]:
        """The bytes of all results by their types, and as they would be in float32."""
        found = self.summary
        if not found.bytes:
            return []
        parts = [
            f"{figures.size(size)} in {name}" for name, size in found.bytes.items()
        ]
        told = f"results of {' and '.join(parts)}"
        return [f"  memory       {told}; {figures.size(found.bytes32)} all in float32"]

    def _node_lines(self) -> list[str]:
        """The costliest nodes, and every rule that keeps nodes in float32."""
        places = of_nodes.costliest(self.decisions)
        costly = [self.decisions[place] for place in places]
        lines = ["  costliest"] if costly else []
        for one in costly:
            time = figures.time(one.seconds)
            lines.append(f"    {time:>9}  {one.node} ({one.op}) in {one.dtype}")
        kept = of_nodes.kept_in_float32(self.decisions)
        lines += ["  float32 because"] if kept else []
        for rule in kept:
            words = f"{rule.rule}: {RULES.get(rule.rule, rule.rule)}"
            times = figures.time(rule.seconds)
            if rule.seconds and rule.nodes > 1:
                op, seconds = of_nodes.costliest_op(self.decisions, rule.rule)
                times += f", {op} {figures.time(seconds)} of it"
            lines.append(f"    {rule.nodes:6d}  {words} ({times})")
        return lines

    def _trial_lines(self) -> list[str]:
        lines = [f"  trial        {self.trial}"] if self.trial else []
        if self.measured32 is not None and self.measured16 is not None:
            high, made = figures.time(self.measured32), figures.time(self.measured16)
            times = f"{high} in float32, {made} rewritten"
            when = f"over {self.timed} calls" if self.timed else "in an earlier run"
            lines.insert(0, f"  measured     {times}, {when}")
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

    @property
    def summary(self) -> of_nodes.Summary:
        """What the decisions come to: by type, by cost and by reason."""
        return of_nodes.summarize(self.decisions, emulated=self.emulated)

    @property
    def size(self) -> PlanSize:
        """What the plan makes of the function, besides its time."""
        bytes_of = of_nodes.bytes_by_type(self.decisions, emulated=self.emulated)
        return PlanSize(self.nodes_low, self.casts, sum(bytes_of.values()))

    @property
    def size32(self) -> PlanSize:
        """The same of the function as it was given."""
        already = sum(one.rule == "already" for one in self.decisions)
        elements = sum(one.elements for one in self.decisions)
        return PlanSize(already, 0, 4 * elements)

    def after(self, outcome: TrialOutcome) -> Report:
        """The report with the result of a race, or of a later check of its winner.

        If the original runs from now on, only the nodes that were 16-bit as given are
        listed as 16-bit. The predicted times stay, for comparison.
        """
        report = dataclasses.replace(
            self,
            measured32=outcome.seconds32,
            measured16=outcome.seconds16,
            timed=outcome.timed,
            trial=outcome.text,
            plans=outcome.plans,
        )
        result = report._gains()
        if not outcome.twin:
            timed = None not in (outcome.seconds32, outcome.seconds16)
            return report.left(result if timed else f"{result}; {outcome.text}")
        return dataclasses.replace(report, verdict=f"{self._how}, {result}")

    def as_measured(self, high: float | None, low: float | None) -> Report:
        """The report with the times of a call that an earlier run of the job measured.

        Args:
          high, low: seconds of the original, and of the winner; None if not known.
        """
        report = dataclasses.replace(self, measured32=high, measured16=low)
        return dataclasses.replace(report, verdict=f"{self._how}, {report._gains()}")

    @property
    def rewritten(self) -> bool:
        """Whether the function runs in another form than as it was given."""
        return self.verdict.startswith(_REWRITTEN)

    @property
    def _how(self) -> str:
        # The nodes do not tell: some may have been 16-bit as given.
        float32 = f"{_REWRITTEN} in float32"
        return float32 if self.verdict.startswith(float32) else _REWRITTEN

    def _gains(self) -> str:
        """The predicted gain, and the measured one if there is one."""
        result = f"predicted {figures.gain(self.seconds32, self.seconds16)}"
        if self.measured32 is None or self.measured16 is None:
            return result
        when = f"over {self.timed} calls" if self.timed else "in an earlier run"
        gain = figures.gain(self.measured32, self.measured16)
        return f"{result}, measured {gain} {when}"

    def repriced(self, prices: Prices) -> Report:
        """The report with the predictions of other prices, on the same plan.

        Args:
          prices: of the plan that was made, also where the original runs now.
        """
        found = {name: iter(times) for name, times in prices.nodes.items()}
        decisions = []
        for one in self.decisions:
            known = one.seconds32, one.seconds16
            high, low = next(found.get(one.node, iter(())), known)
            decisions.append(dataclasses.replace(one, seconds32=high, seconds16=low))
        # Clusters save the same part of the time, which their prices are not here for.
        fused = prices.seconds16 * _part(self.fused_seconds, self.seconds16)
        report = dataclasses.replace(
            self,
            seconds32=prices.seconds32,
            seconds16=prices.seconds16 - fused,
            fused_seconds=fused,
            measured_share=prices.measured_share,
            decisions=tuple(decisions),
        )
        if not self.verdict.startswith(f"{self._how}, predicted"):
            return report
        return dataclasses.replace(report, verdict=f"{self._how}, {report._gains()}")

    def left(self, cause: str) -> Report:
        """The report with the original running from now on.

        Args:
          cause: why.
        """
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

    def lost(self, cause: str) -> Report:
        """The report with the original running because a check has failed.

        What was measured of the plan is left out: float32 has not won by it.

        Args:
          cause: what failed.
        """
        unmeasured = dataclasses.replace(
            self, measured32=None, measured16=None, timed=0
        )
        return unmeasured.left(cause)

    def stopped(self, cause: str) -> Report:
        """As `lost`, where that ends a race too, if there is one.

        Args:
          cause: what was found out.
        """
        return dataclasses.replace(self.lost(cause), trial=f"ended: {cause}")

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
        """Why a node has its type: the chain of causes, and what would change it.

        Args:
          node: its name. What is in a function may be named without the names before
            its own; then all that are so named are explained. For a name that no node
            has the text says which may be meant.
        """
        return explanation.explain(self.decisions, node, self.source_text)

    def to_json(self) -> str:
        """The report as JSON, with the attributes as keys; what comes first sums up."""
        return json.dumps(self._fields(), indent=1)

    def _fields(self) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["decisions"]
        fields["summary"] = dataclasses.asdict(self.summary)
        fields["plans"] = [dataclasses.asdict(plan) for plan in self.plans]
        if self.accuracy is not None:
            fields["accuracy"] = dataclasses.asdict(self.accuracy)
        fields["decisions"] = [
            {name: getattr(one, name) for name in _DECISION} for one in self.decisions
        ]
        return fields

    def to_html(self) -> str:
        """The report as one HTML page that works offline, with the graph drawn."""
        causes = of_nodes.causes(self.decisions)
        data = {
            "report": self._fields(),
            "rules": dict(RULES),
            "causes": [-1 if place is None else place for place in causes],
            "changes": dict(explanation.CHANGES),
        }
        return page.page(self.function or "graph", data)

    @staticmethod
    def from_json(text: str) -> Report:
        """Reads what `to_json` wrote, also by an earlier version with fewer fields.

        Raises:
          ValueError: it is something else, or of a later version.
        """
        read: Any = json.loads(text)
        if isinstance(read, dict):
            read.pop("summary", None)  # it follows from the decisions
        return json_fields.made(Report, read)


_DECISION = tuple(field.name for field in dataclasses.fields(Decision))


def _part(saved: float, rest: float) -> float:
    """Which part of a time was saved, if the rest of it is left."""
    return saved / (saved + rest) if saved else 0.0


def _listed(items: Iterable[str]) -> str:
    """Items in a line; those beyond the first few are counted."""
    found = list(items)
    more = len(found) - _MOST_LISTED
    return ", ".join(found[:_MOST_LISTED]) + (f", {more} more" if more > 0 else "")
