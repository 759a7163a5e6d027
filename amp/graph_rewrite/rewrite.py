"""The pipeline, on one screen: read -> candidates -> assign -> plan -> apply -> verify.

Phases are called in their order and their results handed on; no phase's work is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amp.errors import GraphError, VerifyError
from amp.graph_rewrite import verify
from amp.graph_rewrite.apply import apply
from amp.graph_rewrite.apply.link import Linked, graph_of, link
from amp.graph_rewrite.assign.decide import decide
from amp.graph_rewrite.candidates.analysis import Analysis, UseAnalysis, analyze
from amp.graph_rewrite.candidates.context import FORMATS, Context, type_ports
from amp.graph_rewrite.cost.device import Resolution
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.op_instance import Timer
from amp.graph_rewrite.cost.pricing import measured, untimed, usable
from amp.graph_rewrite.fusion import fuse, outline
from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.graph.calls import Call, FunctionUse
from amp.graph_rewrite.normalize import loop_invariants
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.ops.op_names import check_op_names
from amp.graph_rewrite.plan import CastsSaved, Interface, Plan, Reason
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.report_builder import report_on, switched_off
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewritten graph and the report on it.

    Attributes:
      graph: what was given, rewritten: a GraphDef (inside the package, a module).
      report: what was done and why.
    """

    graph: Any
    report: Report


def rewrite(
    module: ir.Module,
    settled: Resolution,
    *,
    fetches: frozenset[str] = frozenset(),
    feeds: frozenset[str] = frozenset(),
    suffix: str = "__amp",
    timer: Timer = untimed,
) -> Rewrite:
    """Rewrites the main graph and every function it reaches.

    A rewrite is whole or raises; the module given is not changed. Rewritten functions
    get new names and stand beside the originals.

    Args:
      module: a graph with its functions.
      settled: policy and device; a policy of None gives the graph back as it is.
      fetches: nodes whose tensors the caller reads by name, in float32.
      feeds: nodes whose tensors the caller replaces by name, in float32.
      suffix: ending of the new functions' names.
      timer: gives times of a job's own operations, which come before the model's.

    Raises:
      GraphError: the graph given is not well formed.
      PolicyError: an op type that TensorFlow does not know.
      VerifyError: the result breaks a law; a fault of this package.
    """
    if settled.policy is None:
        return Rewrite(module, switched_off(module, settled))
    check_op_names(settled.policy)
    with uncollected():
        return _rewritten(module, settled, (fetches, feeds), suffix, timer)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection: a rewrite makes many objects and no cycle of them.

    The collector walks all of them each time it runs, a third of a rewrite's time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _rewritten(
    given: ir.Module,
    settled: Resolution,
    named: tuple[frozenset[str], frozenset[str]],
    suffix: str,
    timer: Timer,
) -> Rewrite:
    assert settled.policy is not None
    for graph in given.graphs():
        where = _where(graph.name)
        verify.enforce(verify.well_formed(graph), GraphError, where, _MEND)
    whole = fuse.unfuse(given)
    module = loop_invariants.hoist_invariants(inline(whole))
    analysis = analyze(module, _contexts(module, settled, named), _cost_models(settled))
    _check_given(analysis)
    analysis = measured(analysis, timer)
    parts = analysis.parts
    plans = _gained(decide(analysis), parts, settled.policy)
    if not any(plan.low for plan in plans.values()):
        return Rewrite(given, report_on(module, parts, plans, settled))
    linked = link(whole, _applied(parts, plans, named[0]), suffix)
    _check_made(linked, analysis, plans)
    fused = _fused(linked, parts, settled, suffix)
    report = report_on(module, parts, plans, settled, fused.fusion)
    return Rewrite(fused.linked.module, report)


_MEND = "mend the graph where it is built or saved"


def _where(name: str) -> str:
    return f"function {name}" if name else "the GraphDef"


def _contexts(
    module: ir.Module,
    settled: Resolution,
    named: tuple[frozenset[str], frozenset[str]],
) -> Callable[[FunctionUse], Context]:
    policy, (fetches, feeds) = settled.policy, named
    assert policy is not None
    behind = calls.behind_markers(module)
    lookup = _lookup(module)
    nothing: frozenset[str] = frozenset()

    def context_of(use: FunctionUse) -> Context:
        main = use.name == module.main.name
        return Context(
            policy=policy,
            format=FORMATS[policy.dtype],
            device_type=settled.device.kind,
            native=policy.dtype in settled.device.native,
            xla=use.xla,
            behind=behind[use.name],
            fed=feeds if main else nothing,
            fetched=fetches if main else nothing,
            lookup=lookup,
        )

    return context_of


def _cost_models(settled: Resolution) -> Callable[[FunctionUse], CostModel]:
    policy = settled.policy
    assert policy is not None
    return lambda use: CostModel(settled.device.under(use.xla), policy.dtype)


def _lookup(module: ir.Module) -> op_schema.Lookup:
    origins = {name: graph.origin for name, graph in module.functions.items()}
    return op_schema.lookup_in(origins)


def _check_given(analysis: Analysis) -> None:
    for use, part in analysis.parts.items():
        typing = verify.well_typed(part.graph, part.found.typed)
        verify.enforce(typing, GraphError, _where(use.name), _MEND)


def _gained(
    plans: Mapping[FunctionUse, Plan],
    parts: Mapping[FunctionUse, UseAnalysis],
    policy: Policy,
) -> Mapping[FunctionUse, Plan]:
    """Drops every plan if all together gain under `min_gain`."""
    before = sum(parts[use].weight * plan.seconds32 for use, plan in plans.items())
    after = sum(parts[use].weight * plan.seconds16 for use, plan in plans.items())
    gain = 1 - after / before if before else 0.0
    forced = policy.emulate or policy.assignment == "all"
    if forced or gain >= policy.min_gain:
        return plans
    reason = f"predicted gain {gain:.1%}, under min_gain {policy.min_gain:.1%}"
    return {use: _drop(plan, reason) for use, plan in plans.items()}


def _drop(plan: Plan, cause: str) -> Plan:
    reasons = dict(plan.reasons)
    reasons.update((name, Reason("gain", cause)) for name in plan.low)
    return dataclasses.replace(
        plan,
        low=frozenset(),
        attrs={},
        reasons=reasons,
        casts=frozenset(),
        seconds16=plan.seconds32,
        interface=Interface(),
        casts_saved=CastsSaved(),
    )


def _applied(
    parts: Mapping[FunctionUse, UseAnalysis],
    plans: Mapping[FunctionUse, Plan],
    fetches: frozenset[str],
) -> dict[FunctionUse, ir.Graph]:
    graphs = {}
    for number, (use, part) in enumerate(parts.items()):
        graph, plan = part.graph, plans[use]
        if plan.low or plan.interface:
            graph = apply.apply(graph, plan, part.found, part.context)
            if number == 0:  # the main graph
                graph = apply.restore_fetched(
                    graph, fetches, plan, part.found, part.context
                )
        graphs[use] = graph
    return graphs


def _check_made(
    linked: Linked, analysis: Analysis, plans: Mapping[FunctionUse, Plan]
) -> None:
    """Every law of `verify`, on every graph that was made."""
    module, lookup = linked.module, _lookup(linked.module)
    first = {_made_use(use, linked): part for use, part in analysis.parts.items()}
    made = analyze(
        module,
        lambda use: dataclasses.replace(first[use].context, lookup=lookup),
        lambda use: first[use].cost_model,
    )
    for use, part in made.parts.items():
        before = first[use]
        main = use.name == module.main.name
        laws = itertools.chain(
            verify.well_formed(part.graph),
            verify.well_typed(part.graph, part.found.typed),
            verify.calls_agree(part.found.typed, _calls(module, use)),
            verify.same_interface(before.graph, part.graph) if main else (),
            verify.float32_behind_markers(
                part.found.typed, before.found.typed, part.context.behind
            ),
        )
        where = f"the twin of {before.graph.name or 'the GraphDef'}"
        verify.enforce(laws, VerifyError, where, _REPORT)
    again = decide(usable(made))
    gain = sum(
        made.parts[use].weight * (plan.seconds32 - plan.seconds16)
        for use, plan in again.items()
    )
    tie = max(p.tie for p in plans.values()) + max(p.tie for p in again.values())
    stable = verify.stable(gain, tie, (n for plan in again.values() for n in plan.low))
    verify.enforce(stable, VerifyError, _where(module.main.name), _REPORT)


def _fused(
    linked: Linked,
    parts: Mapping[FunctionUse, UseAnalysis],
    settled: Resolution,
    suffix: str,
) -> fuse.Fused:
    """With clusters, and the laws checked that concern them."""
    lookup = _lookup(linked.module)
    contexts = {
        use: dataclasses.replace(parts[use].context, lookup=lookup)
        for use in linked.graphs
    }
    weights = {use: parts[use].weight for use in linked.graphs}
    if settled.device.under(True).call == math.inf:
        return fuse.Fused(linked, fuse.Fusion())
    cost_models = {use: parts[use].cost_model for use in linked.graphs}
    linked = fuse.bypassed(linked)
    fused = fuse.fuse(linked, contexts, weights, cost_models, settled.device, suffix)
    for use, graph in fused.linked.graphs.items():
        if graph is not linked.graphs[use]:
            laws = itertools.chain(
                verify.well_formed(graph),
                verify.well_typed(graph, type_ports(graph, contexts[use])),
                verify.same_unfused(linked.graphs[use], outline.unfuse(graph)),
            )
            where = f"the twin of {use.name or 'the GraphDef'}"
            verify.enforce(laws, VerifyError, where, _REPORT)
    return fused


_REPORT = "report this with the graph; the original runs unchanged"


def _made_use(use: FunctionUse, linked: Linked) -> FunctionUse:
    made = linked.graphs.get(use)
    return use if made is None else FunctionUse(made.name, use.xla)


def _calls(
    module: ir.Module, use: FunctionUse
) -> Iterator[tuple[ir.Node, Call, list[ir.Graph]]]:
    for node, call in calls.calls(graph_of(module, use), module.functions):
        names = calls.callees_of(node, call)
        found = [module.functions[name] for name in names if name in module.functions]
        yield node, call, found
