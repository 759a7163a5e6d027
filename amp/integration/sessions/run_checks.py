"""`RunCheck`: compares the gradients of a run by a plan with those in float32.

Made by `run_plans` and used by `plan_checks` before a plan makes its first step. That
step is made in float32, and what it takes from elsewhere (a batch of an iterator,
random numbers) is fetched with it. Before the next one, the gradients in float32, with
the plan's products only in 16 bits and by the plan are fetched, in runs that are fed
the same and change nothing, one after the other as each needs memory. What they are
worth is `observing.judge`'s to say. No plan is chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from amp.graph_rewrite.assign.nominee import PRODUCTS, Nominee
from amp.graph_rewrite.candidates.context import FORMATS
from amp.graph_rewrite.graph import calls, frames, generators, ir, op_schema
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.normalize import wanted_gradients
from amp.graph_rewrite.normalize.wanted_gradients import NotRepeatable
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.graph_rewrite.outcomes import AccuracyOutcome
from amp.graph_rewrite.plan import Reason
from amp.integration.contests.entrants import nominee_under
from amp.integration.functions.twins import Twins
from amp.integration.observing import gradient_copies
from amp.integration.observing.accuracy import Errors
from amp.integration.observing.judge import NONE_FINITE, Judge
from amp.integration.sessions.graph_views import GraphViews
from amp.integration.sessions.planned_parts import Plan, Planned
from amp.integration.sessions.policy_view import PolicyView, Run, edge_of

LOSES = "it makes noise of gradients that another plan has"
GUARDED = "a check of the job's own fails in 16 bits"

Make: TypeAlias = Callable[[Run], Any]  # makes a run of the twin


@dataclasses.dataclass(frozen=True, slots=True)
class RunGradients:
    """The gradients of a run, by the names of the user's nodes.

    Attributes:
      markers: that unscale them, one for each gradient.
      names: for each, the node that makes it.
      scales, inverses: the edges of loss scales, and of what unscales by them.
      taken: the edges that come from what cannot run twice.
      weights: the variables that gradients depend on.
    """

    markers: tuple[str, ...]
    names: Sequence[str]
    scales: Sequence[ir.Edge]
    inverses: Sequence[ir.Edge]
    taken: Sequence[ir.Edge]
    weights: frozenset[str]


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
    """The gradients in float32, by the plan, or with products only.

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
      gradients: of the run.
    """

    def __init__(
        self, views: GraphViews, twins: Twins, plan: str, gradients: RunGradients
    ) -> None:
        assert twins.settled.policy is not None
        self._views, self._twins, self._plan = views, twins, plan
        self._policy, self._gradients = twins.settled.policy, gradients
        self._batch: _Batch | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What is compared: another run of the session may take the same gradients."""
        return self._twins, self._plan, self._gradients.markers

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
        taken = self._tensors(self._gradients.taken)
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
        """Compares the gradients of the batch of the first step.

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
        unit = FORMATS[self._policy.dtype].unit
        judge = Judge(self._fetched(run, exact), unit, self._gradients.names)
        try:
            finite = judge.yardstick(self._fetched(run, products))
            errors = judge.errors(self._fetched(run, planned))
        except tf.errors.InvalidArgumentError:  # float32 has none
            return Judged(AccuracyOutcome(GUARDED), GUARDED)
        loses = best is not None and judge.loses(errors, best[1])
        if best is not None and loses:  # on another batch, and of other weights
            with self._views.lock:
                form = self._form(self._views.view(self._twins, best[0]))
            loses = judge.loses(errors, judge.errors(self._fetched(run, form)))
        fine = finite and not loses and judge.is_fine(errors)
        if not fine and judge.moved(self._fetched(run, exact)):
            raise NotRepeatable("its variables change meanwhile, by another thread")
        if not finite:
            return Judged(AccuracyOutcome(NONE_FINITE), NONE_FINITE)
        outcome = judge.outcome(errors, 0)
        if loses:
            return Judged(outcome, LOSES, errors=errors)
        if not fine:
            return Judged(outcome, judge.cause(errors), errors=errors)
        lost = judge.lost(lambda: self._fetched(run, exact))
        weights = self._gradients.weights if lost else frozenset()
        return Judged(outcome, lost=weights, errors=errors)

    def _forms(self) -> list[_Form]:
        """The gradients in float32, with products only, and by the plan."""
        views = self._views
        view = views.view(self._twins, self._plan)
        only = Plan(self._twins, views.parts(self._twins), self._products(view.planned))
        forms = (views.float32, PolicyView(views.twin, only), view)
        return [self._form(form) for form in forms]

    def _form(self, view: PolicyView) -> _Form:
        """The gradients as a view has them."""
        assert self._batch is not None
        wanted, batch = self._gradients, self._batch
        markers = self._tensors((name, 0) for name in wanted.markers)
        scales, inverses = map(self._tensors, (wanted.scales, wanted.inverses))
        fed = dict.fromkeys((each.ref() for each in (*scales, *inverses)), ())
        run = view.run((), markers, {**batch.shapes, **fed})
        for tensor in (reference.deref() for reference in batch.values):
            if not view.accepts(tensor):
                why = f"tensor {tensor.name} is another one in the plan"
                raise NotRepeatable(why)
        values = {run.feeds[ref]: value for ref, value in batch.values.items()}
        seeds, ends = (
            frozenset(run.feeds[tensor.ref()] for tensor in tensors)
            for tensors in (scales, inverses)
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
        """The gradients of a form, at the first loss scale at which they are finite."""
        found: Sequence[Any] = ()
        scales = [1.0]
        if form.scales:
            scales = gradient_copies.scales(self._policy.loss_scale)
        for scale in scales:
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


def gradients_of(
    module: ir.Module, feeds: Iterable[Any], executed: Container[str]
) -> RunGradients | None:
    """The gradients of a run; None if it takes none.

    Args:
      module: the run as a graph of its own, as the user built it.
      feeds: references of the tensors that are fed.
      executed: the nodes that the run executes: gradients may be fed as well.

    Raises:
      NotRepeatable: they cannot be computed without changing something.
    """
    fed: Container[ir.Edge] = {edge_of(reference.deref()) for reference in feeds}
    graph, lookup = module.main, op_schema.lookup_of(module)
    hidden = frames.not_every_run(graph)
    first: dict[ir.Edge, str] = {}  # by gradient, one of the markers that read it
    stops: dict[ir.Edge, None] = {}  # the inverses of loss scales
    for node in graph.nodes.values():
        taken_here = node.name in executed and (node.name, 0) not in fed
        known = lookup(node.op) if taken_here and node.flag(ir.UNSCALE) else None
        if known is not None and known.signature(node).ins[0].type == ir.FLOAT:
            first.setdefault(node.inputs[0], node.name)
            stops.update(dict.fromkeys(node.inputs[1:]))
    if not first:
        return None
    seeds = [node for node in graph.nodes.values() if node.flag(ir.SEED)]
    scales = dict.fromkeys(node.inputs[1] for node in seeds)
    taken: dict[ir.Edge, None] = {}
    waiting, seen = [*first.values()], set(first.values())
    while waiting:
        node = graph.nodes[waiting.pop()]
        if node.name in hidden and (node.flag(ir.SEED) or node.flag(ir.UNSCALE)):
            raise NotRepeatable("its gradients are taken in a loop or branch")
        sources = [*node.controls]
        for edge in node.inputs:
            if edge in fed or edge in stops or edge in scales:
                continue
            if not _may_run_twice(graph.nodes[edge[0]], module, lookup):
                taken[edge] = None
                continue
            sources.append(edge[0])
        for name in node.controls:
            if not _may_run_twice(graph.nodes[name], module, lookup):
                raise NotRepeatable(f"node {name} cannot run twice")
        waiting += [name for name in sources if name not in seen]
        seen.update(sources)
    for name, port in taken:
        node = graph.nodes[name]
        known = lookup(node.op)
        type_ = known.signature(node).outs[port].type if known is not None else 0
        # TensorFlow takes a call apart before it looks at what is fed.
        call = calls.call_of(node, module.functions) is not None
        apart = call or name in hidden
        if apart or type_ in ir.HANDLES or not 0 < type_ < ir.REF_OFFSET:
            raise NotRepeatable(f"node {name} ({node.op}) cannot run twice")
    names = tuple(name for name, _ in first)
    markers, weights = tuple(first.values()), _weights(graph, seen, lookup)
    return RunGradients(markers, names, [*scales], [*stops], [*taken], weights)


def _weights(
    graph: ir.Graph, names: Iterable[str], lookup: op_schema.Lookup
) -> frozenset[str]:
    """The variables of floating-point numbers among some nodes."""
    nodes = map(graph.nodes.__getitem__, names)
    return frozenset(
        node.name
        for node in nodes
        if not ir.FLOATS.isdisjoint(node.types("dtype"))
        and (known := lookup(node.op)) is not None
        and _names_variable(known.signature(node))
    )


def _names_variable(signature: op_schema.Signature) -> bool:
    """Whether an op makes handles, or references, of nothing."""
    outs = {slot.type for slot in signature.outs}
    handles = outs <= ir.HANDLES or min(outs) > ir.REF_OFFSET
    return not signature.ins and bool(outs) and handles


def _may_run_twice(node: ir.Node, module: ir.Module, lookup: op_schema.Lookup) -> bool:
    """Whether a node, and all that it calls, may; see `_repeats`."""
    run = wanted_gradients.run_by(node, module)
    return all(_repeats(each, module, lookup) for each in run)


def _repeats(node: ir.Node, module: ir.Module, lookup: op_schema.Lookup) -> bool:
    """Whether a second run of a node gives the same, and changes nothing.

    Case 1: TensorFlow says so. Case 2: it works on an array or a stack, which are of
    one run. Case 3: it names a variable. Case 4: it checks something. What prints would
    print again.
    """
    if generators.is_random(node) or facts(node.op).kind is Kind.PRINT:
        return False
    if not wanted_gradients.takes_from_elsewhere(node, module):
        return True  # Case 1
    row, known = facts(node.op), lookup(node.op)
    if row.same_list or row.hands_on_list:
        return True  # Case 2
    if known is None:
        return False
    signature = known.signature(node)
    ins, outs = signature.ins, signature.outs
    if not ins:
        return _names_variable(signature)  # Case 3
    return not outs and ins[0].type == ir.BOOL  # Case 4
