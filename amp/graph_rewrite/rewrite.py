"""The pipeline, on one screen: read -> candidates -> assign -> plan -> apply -> verify.

Phases are called in their order and their results handed on; no phase's work is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from amp.errors import GraphError, VerifyError
from amp.graph_rewrite import (
    apply,
    control_flow,
    cost,
    fuse,
    ir,
    op_schema,
    outline,
    verify,
)
from amp.graph_rewrite.context import FORMATS, Context, type_ports
from amp.graph_rewrite.control_flow import Use
from amp.graph_rewrite.decide import decide
from amp.graph_rewrite.device import Resolution
from amp.graph_rewrite.inline import inline
from amp.graph_rewrite.link import Linked, graph_of, link
from amp.graph_rewrite.names import check_op_names
from amp.graph_rewrite.plan import Plan, Reason
from amp.graph_rewrite.propagate import Candidates, candidates
from amp.graph_rewrite.report import Decision, Report
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Planned:
    """One use of a function on its way through the pipeline."""

    graph: ir.Graph
    context: Context
    found: Candidates
    plan: Plan


def rewrite(
    module: ir.Module,
    settled: Resolution,
    *,
    fetches: frozenset[str] = frozenset(),
    feeds: frozenset[str] = frozenset(),
    suffix: str = "__amp",
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

    Raises:
      GraphError: the graph given is not well formed.
      PolicyError: an op type that TensorFlow does not know.
      VerifyError: the result breaks a law; a fault of this package.
    """
    if settled.policy is None:
        return Rewrite(module, _off(module, settled))
    check_op_names(settled.policy)
    with _uncollected():
        return _rewritten(module, settled, fetches, feeds, suffix)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
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
    module: ir.Module,
    settled: Resolution,
    fetches: frozenset[str],
    feeds: frozenset[str],
    suffix: str,
) -> Rewrite:
    assert settled.policy is not None
    for graph in module.graphs():
        where = _where(graph.name)
        verify.enforce(verify.well_formed(graph), GraphError, where, _MEND)
    given, module = module, inline(fuse.apart(module))
    weights = control_flow.reached(module)
    planned = _planned(module, settled, weights, (fetches, feeds))
    planned, verdict = _gained(planned, weights, settled.policy)
    report = _report(module, planned, weights, settled, verdict)
    if not any(part.plan.low for part in planned.values()):
        return Rewrite(given, report)
    linked = link(module, _applied(planned, module, fetches), suffix)
    _check_made(linked, planned, settled)
    lookup = _lookup(linked.module)
    contexts = {
        use: dataclasses.replace(planned[use].context, lookup=lookup)
        for use in linked.graphs
    }
    fused = fuse.fuse(linked, contexts, weights, settled.device, suffix)
    _check_fused(linked, fused.linked, contexts)
    return Rewrite(fused.linked.module, report)


_MEND = "mend the graph where it is built or saved"


def _where(name: str) -> str:
    return f"function {name}" if name else "the GraphDef"


def _planned(
    module: ir.Module,
    settled: Resolution,
    weights: Mapping[Use, float],
    named: tuple[frozenset[str], frozenset[str]],
) -> dict[Use, _Planned]:
    """Decides for every use of a function; what the user gave is checked on the way."""
    policy = settled.policy
    assert policy is not None
    fetches, feeds = named
    behind = control_flow.behind_markers(module)
    lookup = _lookup(module)
    planned = {}
    for use in weights:
        graph = graph_of(module, use)
        context = Context(
            policy=policy,
            format=FORMATS[policy.dtype],
            device_type=settled.device.kind,
            native=policy.dtype in settled.device.native,
            xla=use.xla,
            behind=behind[use.name],
            held=feeds if graph is module.main else frozenset(),
            fetched=fetches if graph is module.main else frozenset(),
            lookup=lookup,
        )
        found = candidates(graph, context)
        typing = verify.well_typed(graph, found.typed)
        verify.enforce(typing, GraphError, _where(use.name), _MEND)
        clock = cost.Clock(settled.device.under(use.xla), policy.dtype)
        plan = decide(graph, found, context, clock)
        planned[use] = _Planned(graph, context, found, plan)
    return planned


def _lookup(module: ir.Module) -> op_schema.Lookup:
    origins = {name: graph.origin for name, graph in module.functions.items()}
    return op_schema.lookup_in(origins)


def _gained(
    planned: dict[Use, _Planned], weights: Mapping[Use, float], policy: Policy
) -> tuple[dict[Use, _Planned], str]:
    """Drops every plan if all together gain under `min_gain`; says what came out."""
    before = sum(weights[use] * part.plan.seconds32 for use, part in planned.items())
    after = sum(weights[use] * part.plan.seconds16 for use, part in planned.items())
    if not any(part.plan.low for part in planned.values()):
        already = any(part.found.already for part in planned.values())
        verdict = "nothing more to convert" if already else "left in float32: no gain"
        return planned, verdict
    gain = 1 - after / before if before else 0.0
    verdict = f"rewritten, predicted {before / after:.2f}x faster"
    if policy.emulate:
        verdict = "rewritten, emulated: values as in 16 bits, no faster"
    forced = policy.emulate or policy.assignment == "all"
    if forced or gain >= policy.min_gain:
        return planned, verdict
    reason = f"predicted gain {gain:.1%}, under min_gain {policy.min_gain:.1%}"
    dropped = {use: _drop(part, reason) for use, part in planned.items()}
    return dropped, f"left in float32: {reason}"


def _drop(part: _Planned, cause: str) -> _Planned:
    reasons = dict(part.plan.reasons)
    reasons.update((name, Reason("gain", cause)) for name in part.plan.low)
    plan = dataclasses.replace(
        part.plan,
        low=frozenset(),
        attrs={},
        reasons=reasons,
        casts=frozenset(),
        seconds16=part.plan.seconds32,
    )
    return dataclasses.replace(part, plan=plan)


def _applied(
    planned: Mapping[Use, _Planned], module: ir.Module, fetches: frozenset[str]
) -> dict[Use, ir.Graph]:
    graphs = {}
    for use, part in planned.items():
        graph = part.graph
        if part.plan.low:
            graph = apply.apply(graph, part.plan, part.found, part.context)
            if part.graph is module.main:
                graph = apply.expose(
                    graph, fetches, part.plan, part.found, part.context
                )
        graphs[use] = graph
    return graphs


def _check_made(
    linked: Linked, planned: Mapping[Use, _Planned], settled: Resolution
) -> None:
    """Every law of `verify`, on every graph that was made."""
    assert settled.policy is not None
    lookup = _lookup(linked.module)
    for use, graph in linked.graphs.items():
        part = planned[use]
        context = dataclasses.replace(part.context, lookup=lookup)
        found = candidates(graph, context)
        again = None
        if part.plan.low and found.allowed:
            clock = cost.Clock(settled.device.under(use.xla), settled.policy.dtype)
            again = decide(graph, found, context, clock)
        laws = itertools.chain(
            verify.well_formed(graph),
            verify.well_typed(graph, found.typed),
            verify.same_interface(part.graph, graph),
            verify.float32_behind_markers(
                found.typed, part.found.typed, context.behind
            ),
            verify.stable(part.plan, again) if again is not None else (),
        )
        verify.enforce(laws, VerifyError, _twin_of(use), _REMEDY)


_REMEDY = "report this with the graph; the original runs unchanged"


def _twin_of(use: Use) -> str:
    return f"the twin of {use.name or 'the GraphDef'}"


def _check_fused(
    linked: Linked, fused: Linked, contexts: Mapping[Use, Context]
) -> None:
    """The laws of `verify` that a graph with clusters keeps, where there are any."""
    for use, graph in fused.graphs.items():
        if graph is not linked.graphs[use]:
            laws = itertools.chain(
                verify.well_formed(graph),
                verify.well_typed(graph, type_ports(graph, contexts[use])),
                verify.same_apart(linked.graphs[use], outline.apart(graph)),
            )
            verify.enforce(laws, VerifyError, _twin_of(use), _REMEDY)


def _report(
    module: ir.Module,
    planned: Mapping[Use, _Planned],
    weights: Mapping[Use, float],
    settled: Resolution,
    verdict: str,
) -> Report:
    policy = settled.policy
    assert policy is not None
    return Report(
        function=module.main.name,
        dtype=policy.dtype,
        emulated=policy.emulate,
        device=settled.device.name,
        loss_scale=str(policy.loss_scale),
        nodes_total=sum(len(part.graph.nodes) for part in planned.values()),
        nodes_low=sum(len(p.plan.low | p.found.already) for p in planned.values()),
        casts=sum(len(part.plan.casts) for part in planned.values()),
        seconds32=sum(weights[u] * p.plan.seconds32 for u, p in planned.items()),
        seconds16=sum(weights[u] * p.plan.seconds16 for u, p in planned.items()),
        decisions=tuple(_decisions(module, planned)),
        verdict=verdict,
    )


def _decisions(
    module: ir.Module, planned: Mapping[Use, _Planned]
) -> Iterator[Decision]:
    for part in planned.values():
        prefix = "" if part.graph is module.main else f"{part.graph.name}::"
        low = part.plan.low | part.found.already
        for name, reason in part.plan.reasons.items():
            dtype = part.context.format.name if name in low else "float32"
            op = part.graph.nodes[name].op
            yield Decision(f"{prefix}{name}", op, dtype, reason.rule, reason.cause)


def _off(module: ir.Module, settled: Resolution) -> Report:
    total = sum(len(graph.nodes) for graph in module.graphs())
    return Report(
        function=module.main.name,
        dtype="",
        emulated=False,
        device=settled.device.name,
        loss_scale="none",
        nodes_total=total,
        nodes_low=0,
        casts=0,
        seconds32=0.0,
        seconds16=0.0,
        decisions=(),
        verdict=settled.reason,
    )
