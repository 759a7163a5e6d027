"""`RunCheck`: compares the gradients, or results, of a run by a plan with float32's.

Made by `run_plans` and used by `plan_checks` before a plan makes its first step. That
step is made in float32, and what it takes from elsewhere (a batch of an iterator,
random numbers) is fetched with it. Before the next one, the values in float32, with the
plan's products only in 16 bits and by the plan are fetched, in runs that are fed the
same and change nothing, one after the other as each needs memory. What is compared is
in `run_values`, and what it is worth `observing.judge`'s to say. No plan is chosen
here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from amp.graph_rewrite.assign.nominee import PRODUCTS, Nominee
from amp.graph_rewrite.candidates.context import FORMATS
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.normalize.wanted import NotRepeatable
from amp.graph_rewrite.outcomes import AccuracyOutcome
from amp.graph_rewrite.plan import Reason
from amp.integration.contests.entrants import nominee_under
from amp.integration.functions.twins import Twins
from amp.integration.observing import value_copies
from amp.integration.observing.accuracy import Errors
from amp.integration.observing.judge import MOVES, NONE_FINITE, GradientJudge, Judge
from amp.integration.observing.result_judge import ResultJudge
from amp.integration.racing.race_log import FLOAT32
from amp.integration.sessions.graph_views import GraphViews
from amp.integration.sessions.planned_parts import Planned
from amp.integration.sessions.policy_view import PolicyView, Run
from amp.integration.sessions.run_values import RunValues

LOSES = "it makes noise of gradients that another plan has"
GUARDED = "a check of the job's own fails in 16 bits"

Make: TypeAlias = Callable[[Run], Any]  # makes a run of the twin


class Judged(NamedTuple):
    """What a comparison found.

    Attributes:
      outcome: the figures, for the report.
      fault: what is wrong with the plan, "" if nothing is.
      lost: the user's variables of which products alone lose every gradient, by name.
      errors: the plan's, None where nothing was compared.
    """

    outcome: AccuracyOutcome
    fault: str = ""
    lost: frozenset[str] = frozenset()
    errors: Errors | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """What a step in float32 was computed from.

    Attributes:
      shapes: as of `Asked.feeds`, also of what it took from elsewhere.
      values: by the references of the user's tensors.
    """

    shapes: Mapping[Any, ir.Shape]
    values: Mapping[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """The values in float32, by the plan, or with products only.

    Attributes:
      fetches: the twin's tensors.
      values: what is fed, by the reference of the twin's tensor.
      scales, inverses: references of tensors to feed the loss scale, and its inverse.
    """

    fetches: Sequence[Any]
    values: Mapping[Any, Any]
    scales: frozenset[Any]
    inverses: frozenset[Any]


class RunCheck:
    """The comparison of one plan of a run.

    Args:
      views: of the graph.
      twins: of the policy.
      plan: the name of the plan.
      values: of the run.
    """

    def __init__(
        self, views: GraphViews, twins: Twins, plan: str, values: RunValues
    ) -> None:
        assert twins.settled.policy is not None
        self._views, self._twins, self._plan = views, twins, plan
        self._policy, self._values = twins.settled.policy, values
        self._batch: _Batch | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What is compared: another run of the session may give the same values."""
        return self._twins, self._plan, self._values.edges

    @property
    def has_batch(self) -> bool:
        """Whether the first step was made, so that `compare` may be called."""
        return self._batch is not None

    def first(self, run: Make, form: Run, feeds: Mapping[Any, Any]) -> Any:
        """Makes the step in float32, and returns its outputs.

        Args:
          run: makes a run of the twin, with what the user feeds.
          form: the run in float32.
          feeds: what the user feeds, by the references of the user's tensors.
        """
        taken = self._tensors(self._values.taken)
        with self._views.lock:
            more = self._views.float32.run((), taken, {}).fetches
        outputs = run(dataclasses.replace(form, fetches=[*form.fetches, *more]))
        count = len(form.fetches)
        values = dict(zip((t.ref() for t in taken), outputs[count:], strict=True))
        values |= feeds
        shapes = {ref: getattr(value, "shape", None) for ref, value in values.items()}
        self._batch = _Batch(shapes, values)
        return outputs[:count]

    def compare(self, run: Make, best: tuple[str, Errors] | None) -> Judged:
        """Compares the values of the batch of the first step.

        Args:
          run: makes a run of the twin.
          best: another plan, which was none at fault, and its errors on the batch that
            it was compared on; None without one.

        Returns:
          What was found.

        Raises:
          NotRepeatable: they are not finite in float32, other threads train meanwhile,
            or what a form is computed from is not in all of them.
          AmpError: what the rewrite found wrong.
        """
        with self._views.lock:
            exact, products, planned = self._forms()
        judge, finite = self._judge(self._fetched(run, exact)), True
        try:
            if isinstance(judge, GradientJudge) and products is not None:
                finite = judge.yardstick(self._fetched(run, products))
            errors = judge.errors(self._fetched(run, planned))
        except tf.errors.InvalidArgumentError:  # float32 has none
            return Judged(AccuracyOutcome(GUARDED), GUARDED)
        loses = best is not None and judge.loses(errors, best[1])
        if best is not None and loses:  # on another batch, and of other weights
            with self._views.lock:
                form = self._form(self._view(best[0]))
            loses = judge.loses(errors, judge.errors(self._fetched(run, form)))
        fine = finite and not loses and judge.is_fine(errors)
        if not fine and judge.moved(self._fetched(run, exact)):
            raise NotRepeatable(MOVES)
        if not finite:
            return Judged(AccuracyOutcome(NONE_FINITE), NONE_FINITE)
        outcome = judge.outcome(errors, 0)
        if loses:
            return Judged(outcome, LOSES, errors=errors)
        if not fine:
            return Judged(outcome, judge.cause(errors), errors=errors)
        lost = judge.lost(lambda: self._fetched(run, exact))
        weights = self._values.weights if lost else frozenset()
        return Judged(outcome, lost=weights, errors=errors)

    def _judge(self, exact: Sequence[Any]) -> Judge:
        unit = FORMATS[self._policy.dtype].unit
        if self._values.gradients:
            return GradientJudge(exact, unit, self._values.names)
        written = [False] * len(exact)
        return ResultJudge(exact, unit, self._values.names, written)

    def _forms(self) -> tuple[_Form, _Form | None, _Form]:
        """The values in float32, with products only if they count, and by the plan."""
        exact, planned = (self._form(self._view(n)) for n in (FLOAT32, self._plan))
        if not self._values.gradients:
            return exact, None, planned
        view = self._views.view(self._twins, self._plan)
        only = self._view(self._products(view.planned))
        return exact, self._form(only), planned

    def _view(self, plan: str | Nominee) -> PolicyView:
        return self._views.draft(self._twins, plan, self._values.unawaited)

    def _form(self, view: PolicyView) -> _Form:
        """The values as a view has them."""
        assert self._batch is not None
        wanted, batch = self._values, self._batch
        tensors = self._tensors(wanted.edges)
        scales, inverses = map(self._tensors, (wanted.scales, wanted.inverses))
        fed = dict.fromkeys((each.ref() for each in (*scales, *inverses)), ())
        run = view.run((), tensors, {**batch.shapes, **fed})
        for tensor in (reference.deref() for reference in batch.values):
            if not view.accepts(tensor):
                why = f"tensor {tensor.name} is another one in the plan"
                raise NotRepeatable(why)
        values = {run.feeds[ref]: value for ref, value in batch.values.items()}
        seeds, ends = (
            frozenset(run.feeds[tensor.ref()] for tensor in each)
            for each in (scales, inverses)
        )
        return _Form(run.fetches, values, seeds, ends)

    def _products(self, planned: Iterable[Planned]) -> Nominee:
        """The products that the plan has in 16 bits, and no other node."""
        why = Reason("products", "stays float32 in the plan")
        kept: dict[FunctionUse, dict[str, Reason]] = {}
        for part in planned:
            for use, names in part.high.items():
                kept.setdefault(use, {}).update(dict.fromkeys(names, why))
        return nominee_under(self._twins.settled, PRODUCTS.name).keeping(kept)

    def _fetched(self, run: Make, form: _Form) -> Sequence[Any]:
        """The values of a form, at the first loss scale at which they are finite."""
        found: Sequence[Any] = ()
        if not form.scales:
            found = run(Run([], [*form.fetches], {}, also=form.values, asked=False))
            return list(found)
        for scale in value_copies.scales(self._policy.loss_scale):
            also = {
                **form.values,
                **dict.fromkeys(form.scales, np.float32(scale)),
                **dict.fromkeys(form.inverses, np.float32(1 / scale)),
            }
            found = run(Run([], [*form.fetches], {}, also=also, asked=False))
            if all(np.isfinite(one).all() for one in found):
                break
        return found

    def _tensors(self, edges: Iterable[ir.Edge]) -> list[Any]:
        user = self._views.twin.user
        return [user.get_tensor_by_name(f"{name}:{port}") for name, port in edges]
