"""`AccuracyCheck`: compares a function's gradients as planned with those in float32.

Used by `function_checks` before a twin runs for the first time. The gradients are
computed on the job's own batch in float32, as planned, and with products only in 16
bits. If the plan is worse than `accuracy` allows, the nodes at fault are found and kept
in float32. So it is with the results of a function that takes no gradient; there are
none with products only, as products may be at fault.

How values are computed is in `value_copies`; when a twin runs, in `twins`. Only those
in float32 are copied; all others are let go of once they were compared.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from amp.graph_rewrite.assign.nominee import Nodes, Nominee
from amp.graph_rewrite.candidates.context import FORMATS
from amp.graph_rewrite.fusion import fuse
from amp.graph_rewrite.normalize.wanted import NotRepeatable
from amp.graph_rewrite.outcomes import AccuracyOutcome
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Prepared, Rewrite
from amp.integration.contests.stored_checks import Low, covers
from amp.integration.observing import accuracy, plan_nodes
from amp.integration.observing.accuracy import Errors, Value
from amp.integration.observing.judge import MOVES, NONE_FINITE, GradientJudge, Judge
from amp.integration.observing.result_judge import ResultJudge
from amp.integration.observing.value_copies import Recorded, Step, ValueCopies
from amp.integration.racing import exemptions
from amp.integration.runtime import clusters, definitions
from amp.policy import Policy

STEPS = 5  # a check may take this many times as long as its first run in float32,
RESULT_STEPS = 2  # that of results so many times, where every node may be at fault,
SECONDS = 5.0  # or this long, whichever is more,
MOST = 40  # and compare this many plans
LONGEST = 10.0  # seconds of a call that may be made once more for a check


def why_not(policy: Policy) -> str:
    """Returns the reason why no function is checked under a policy, "" for none."""
    if policy.check is False:
        return "check=False, AMP_CHECK=0"
    if policy.check == "auto" and policy.assignment == "all":
        return "assignment='all' is to convert everything"
    if clusters.is_in_one():
        return "several workers take a step together, and would decide apart"
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check.

    Attributes:
      outcome: the figures, for the report.
      nominee: the plan to use instead, None if the one that was checked is fine.
      prepared: the function, to make that plan of; None where nothing was compared.
      bent: the scalers and variables (`ir.SOURCE`) of gradients that depend on the loss
        scale.
      lost: the numbers of the function's arguments that hold its weights, if products
        alone lose every gradient.
      borne: the 16-bit nodes that other plans may have: those of any of these; None
        where nothing was found against any plan.
      untaken: whether nothing was compared because the calls that were recorded took
        no gradients.
    """

    outcome: AccuracyOutcome
    nominee: Nominee | None = None
    prepared: Prepared | None = None
    bent: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()
    borne: tuple[Low, ...] | None = None
    untaken: bool = False

    def noted_in(self, report: Report) -> Report:
        """The report on the function, with these figures.

        What an earlier check found stays where nothing was compared.
        """
        if self.prepared is None and report.accuracy is not None:
            return report
        return dataclasses.replace(report, accuracy=self.outcome)


class AccuracyCheck:
    """The check of one function.

    Args:
      context: TensorFlow's eager context.
      prepared: the function, analyzed and priced.
      made: its twin.
      nominee: the plan that the twin was made by.
      rivals: *products only* and *everything*, where others are to race it.

    Raises:
      NotRepeatable: its values cannot be computed a second time.
    """

    def __init__(
        self,
        context: Any,
        prepared: Prepared,
        made: Rewrite,
        nominee: Nominee,
        rivals: tuple[Nominee, Nominee] | None = None,
    ) -> None:
        policy = prepared.settled.policy
        assert policy is not None
        self._policy: Policy = policy
        self._prepared, self._made, self._nominee = prepared, made, nominee
        self._rivals = rivals
        self._suffix = f"{definitions.new_suffix()}_check"
        self._float32 = prepared.in_float32(self._suffix)
        self._copies = ValueCopies(
            context, self._float32, prepared.given, policy.loss_scale
        )
        self._unit = FORMATS[policy.dtype].unit
        self._took = 0.0  # seconds of the job's first step

    @property
    def has_step(self) -> bool:
        """Whether a step was made by `first`, so that `compare` has what it needs."""
        return self._copies.has_step

    def begin_with(self, recorded: Recorded) -> None:
        """Takes what an earlier step in float32 recorded, in place of `first`."""
        self._copies.begin_with(recorded)

    def first(self, call: Step) -> Any:
        """Makes the job's first step, in float32 (see `ValueCopies.first`)."""
        start = time.perf_counter()
        try:
            return self._copies.first(call)
        finally:
            self._took = time.perf_counter() - start

    def drop(self) -> None:
        """Forgets the step that `first` made."""
        self._copies.drop()

    def compare(self) -> Checked:
        """Compares values, and finds the nodes to keep in float32.

        Raises:
          NotRepeatable: float32 gives no finite gradients, a plan depends on more
            than the step in float32 does, other threads train meanwhile, or results
            take long.
        """
        try:
            if not self._copies.wanted.gradients and self._took > LONGEST:
                raise NotRepeatable(f"a call takes {self._took:.0f} s in float32")
            return self._compare()
        finally:
            self._copies.drop()

    def _compare(self) -> Checked:
        start = time.perf_counter()
        exact = self._copies.exact()
        alone = self._alone(exact)
        steps = STEPS if self._copies.wanted.gradients else RESULT_STEPS
        limit = max(steps * (time.perf_counter() - start), SECONDS)
        judge = self._judge(exact)
        bent = self._yardstick(judge, alone)
        if bent is None:
            self._still(judge)
            return self._none_in_16_bits()
        # Without its clusters, which take long to compile.
        first = judge.errors(self._copies.values(fuse.unfuse(self._made.graph)))
        spoilers = self._spoilers(judge, first)
        plan, low = self._nominee.keeping(spoilers), self._made.low
        before = first, plan_nodes.count(plan) - plan_nodes.count(self._nominee)
        if spoilers:
            low, first = self._low(plan), judge.errors(self._of(plan))
        fine = judge.is_fine(first)
        if bent or spoilers or not fine:
            self._still(judge)
        if fine:
            outcome = judge.outcome(
                first, plan_nodes.count(plan), before if spoilers else None
            )
            lost = self._copies.weights if judge.lost(self._copies.again) else ()
            borne = self._borne(judge, first, plan.kept)
            changed = plan if spoilers else None
            return Checked(outcome, changed, self._prepared, bent, lost, borne)
        only = self._copies.computing_only(judge.faults(first))
        suspects = plan_nodes.suspects(self._prepared, low, judge.roles, only)
        cause = judge.cause(first)
        met: dict[frozenset[int], Errors] = {}

        def nominee(kept: frozenset[int]) -> Nominee:
            nodes = (suspects.nodes[i] for i in sorted(kept))
            return plan.keeping(plan_nodes.kept(nodes, cause))

        def is_fine(kept: frozenset[int]) -> bool:
            met[kept] = judge.errors(self._of(nominee(kept)))
            return judge.is_fine(met[kept])

        def spent() -> bool:
            late = time.perf_counter() - start > limit
            # What runs must not depend on time where calls are to repeat bit for bit.
            timed = self._policy.check is not True and not exemptions.repeats(
                self._policy
            )
            return len(met) >= MOST or (late and timed)

        kept = accuracy.search(suspects, is_fine, spent)
        self._still(judge)
        after = met.get(kept, judge.least)
        before = before[0], before[1] + len(kept)
        outcome = judge.outcome(after, plan_nodes.count(nominee(kept)), before)
        borne = self._borne(judge, after, nominee(kept).kept)
        return Checked(outcome, nominee(kept), self._prepared, bent, (), borne)

    def _judge(self, exact: Sequence[Value]) -> Judge:
        names, wanted = self._copies.names, self._copies.wanted
        if wanted.gradients:
            return GradientJudge(exact, self._unit, names)
        written = [bool(read.node) for read in wanted.reads]
        return ResultJudge(exact, self._unit, names, written)

    def _borne(self, judge: Judge, own: Errors, kept: Nodes) -> tuple[Low, ...] | None:
        """The 16-bit nodes that plans may have (see `Checked.borne`).

        All plans that may race are of the nodes of *everything*. Where the plan that
        was checked has a product in float32, rounding it may spoil what its gradients
        are good for. What is only worse than its products explain may race: where it
        wins it is checked, and mended.

        Args:
          judge: of the plan that was checked.
          own: its errors.
          kept: the nodes that stay float32 in every plan.
        """
        if self._rivals is None:
            return None
        products, everything = (each.keeping(kept) for each in self._rivals)
        fine = [self._low(self._nominee.keeping(kept))]
        if covers(fine, self._low(everything)):
            return None
        try:
            if not judge.loses(judge.errors(self._of(everything)), own):
                return None
            low = self._low(products)
            if not covers(fine, low):
                alone = judge.errors(self._of(products))
                fine += [] if judge.loses(alone, own) else [low]
        except NotRepeatable:  # what cannot be compared does not race
            return tuple(fine)
        try:
            self._still(judge)
        except NotRepeatable:
            return None
        return tuple(fine)

    def _low(self, nominee: Nominee) -> Low:
        return self._prepared.foreseen(nominee).low

    def _still(self, judge: Judge) -> None:
        """Makes sure, before anything is accused, that all copies had the same weights.

        Copies read the job's own variables, which other threads may update.

        Raises:
          NotRepeatable: they have changed.
        """
        if judge.moved(self._copies.again()):
            raise NotRepeatable(MOVES)

    def _none_in_16_bits(self) -> Checked:
        """What is to be done where products alone leave no finite gradients.

        They are finite in float32: a factorization or a quotient of what a product
        gives does not bear its rounding, or its range. No scale of the rule helps.
        """
        nodes = plan_nodes.all_products(self._prepared, self._made.low)
        kept = self._nominee.keeping(plan_nodes.kept(nodes, NONE_FINITE))
        outcome = AccuracyOutcome(NONE_FINITE, plan_nodes.count(kept))
        return Checked(outcome, kept, self._prepared)

    def _alone(self, exact: Sequence[Value]) -> Errors | None:
        """How far those in float32 with a loss scale and without are apart.

        None where there is no scale.
        """
        plain = self._copies.plain()
        return None if plain is None else accuracy.apart(exact, plain)

    def _yardstick(self, judge: Judge, alone: Errors | None) -> tuple[str, ...] | None:
        """Sets the errors with products only, by which others are judged.

        Args:
          judge: that is to judge by them.
          alone: how far those of float32 with a scale and without are apart.

        Returns:
          The gradients that depend on the loss scale, by scaler and variable; None if
          those with products only are not finite.
        """
        if not isinstance(judge, GradientJudge):
            return ()
        products = self._of(plan_nodes.products_only(self._prepared, self._made.low))
        if not judge.yardstick(products):
            return None
        if alone is None or max(alone.each) <= self._unit:
            return ()
        # They may have another scale than those in float32.
        noise = accuracy.errors(products, self._copies.exact_at(self._copies.scale))
        found = accuracy.bent(alone, noise, self._unit)
        return tuple(self._copies.labels[number] for number in found)

    def _spoilers(self, judge: Judge, plan: Errors) -> Nodes:
        """The plan's products that are better left in float32.

        They are some that steep functions read, which multiply their rounding. If they
        make most of the error, the judge's yardstick is without them from now on.

        Args:
          judge: of the plan.
          plan: the plan's errors.
        """
        low, takes = self._made.low, self._copies.wanted.gradients
        places = plan_nodes.before_steep(self._prepared, low)
        before = judge.products if isinstance(judge, GradientJudge) else plan
        if not places or max(before.each) <= accuracy.ONE * self._unit:
            return {}
        given = (
            plan_nodes.products_only(self._prepared, low) if takes else self._nominee
        )
        values = self._of(given.keeping(plan_nodes.kept(places, "")))
        without = judge.errors(values)
        spoilt = accuracy.spoilt(before, without, self._unit)
        if not spoilt:
            return {}
        if isinstance(judge, GradientJudge):
            judge.yardstick(values)
        name, off, least = (
            each[spoilt[0]] for each in (self._copies.names, before.each, without.each)
        )
        cause = (
            f"{name} off by {off:.2g}, {least:.2g} where steep functions read float32"
        )
        return plan_nodes.kept(places, cause)

    def _of(self, nominee: Nominee) -> Sequence[Value]:
        suffix = f"{definitions.new_suffix()}_check"
        return self._copies.values(self._prepared.draft(nominee, suffix))
