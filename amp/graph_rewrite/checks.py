"""The steps of the pipeline that check graphs by the laws of `verify`.

Rewritten graphs are analyzed and priced again for this. Nothing is corrected here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from amp.errors import GraphError, VerifyError
from amp.graph_rewrite import verify
from amp.graph_rewrite.apply import casts
from amp.graph_rewrite.apply.link import Linked
from amp.graph_rewrite.assign.decide import gain
from amp.graph_rewrite.assign.nominee import Nominee, nominated_again
from amp.graph_rewrite.candidates.analysis import Analysis, UseAnalysis, analyze_typed
from amp.graph_rewrite.candidates.context import TypedGraph, type_ports
from amp.graph_rewrite.cost.priced import Priced, price
from amp.graph_rewrite.cost.pricing import usable
from amp.graph_rewrite.fusion import outline
from amp.graph_rewrite.fusion.fuse import Fused
from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.graph.calls import Call, FunctionUse, graph_of
from amp.graph_rewrite.plan import Plan

_MEND = "mend the graph where it is built or saved"
_REPORT = "report this with the graph; the original runs unchanged"


def edges_given(given: ir.Module) -> None:
    """Checks that every graph of the module given is well formed.

    Raises:
      GraphError: one is not.
    """
    lookup = op_schema.lookup_of(given)
    for graph in given.graphs():
        laws = itertools.chain(
            verify.well_formed(graph), verify.well_counted(graph, lookup)
        )
        verify.enforce(laws, GraphError, _where(graph.name), _MEND)


def types_given(analysis: Analysis) -> None:
    """Checks that every graph of the module given is well typed.

    Raises:
      GraphError: one is not.
    """
    for use, one in analysis.uses.items():
        laws = verify.well_typed(one.graph, one.found.typed)
        verify.enforce(laws, GraphError, _where(use.name), _MEND)


def casts_made(
    priced: Priced,
    plans: Mapping[FunctionUse, Plan],
    applied: Mapping[FunctionUse, ir.Graph],
) -> None:
    """The casts of every native twin are those that its plan has.

    An emulated twin has pairs of casts where a native one has 16-bit kernels.

    Raises:
      VerifyError: one is missing, or is made twice, or was not planned.
    """
    for use, one in priced.analysis.uses.items():
        plan, before, after = plans[use], one.graph, applied[use]
        if one.context.policy.emulate or after is before:
            continue
        made = casts.casts_made(before, after, plan.dtype)
        laws = verify.casts_as_planned(plan.to_make, made)
        where = f"the twin of {use.name or 'the GraphDef'}"
        verify.enforce(laws, VerifyError, where, _REPORT)


def typed_made(linked: Linked, priced: Priced) -> dict[FunctionUse, TypedGraph]:
    """Types the nodes of the rewritten functions, by the use of each."""
    module, originals = linked.module, _originals(linked, priced)
    lookup = op_schema.lookup_of(module)
    found = {}
    for use in calls.uses_with_weights(module):
        graph, original = graph_of(module, use), originals[use]
        context = dataclasses.replace(original.context, lookup=lookup)
        typed = type_ports(graph, context, original.found.typed)
        found[use] = TypedGraph(graph, context, typed)
    return found


def analyze_made(linked: Linked, typed: Mapping[FunctionUse, TypedGraph]) -> Analysis:
    """Analyzes the rewritten functions, in the contexts of their originals."""
    return analyze_typed(
        linked.module,
        {use: one.context for use, one in typed.items()},
        {use: one.typed for use, one in typed.items()},
    )


def graphs_made(
    linked: Linked, priced: Priced, made: Mapping[FunctionUse, TypedGraph]
) -> None:
    """Checks every rewritten graph by all laws of `verify` that concern it.

    Args:
      linked: the module with the rewritten functions.
      priced: the analysis of the originals.
      made: the rewritten functions.

    Raises:
      VerifyError: one is broken.
    """
    module, originals = linked.module, _originals(linked, priced)
    for use, one in made.items():
        before, typed = originals[use], one.typed
        main = use.name == module.main.name
        laws = itertools.chain(
            verify.well_formed(one.graph),
            verify.well_typed(one.graph, typed),
            verify.calls_agree(typed, _calls(module, use)),
            verify.same_interface(before.graph, one.graph) if main else (),
            verify.float32_behind_markers(
                typed, before.found.typed, one.context.behind
            ),
        )
        where = f"the twin of {before.graph.name or 'the GraphDef'}"
        verify.enforce(laws, VerifyError, where, _REPORT)


def price_made(
    linked: Linked, priced: Priced, made: Analysis, nominee: Nominee
) -> Priced:
    """Prices the rewritten functions with the cost models of their originals.

    What the nominee left in float32 is no candidate there either.
    """
    originals = {linked.made_use(use): use for use in priced.uses}
    models = {linked.made_use(use): one.cost_model for use, one in priced.uses.items()}
    again = usable(price(made, models.__getitem__))
    return nominated_again(again, nominee, originals)


def second_rewrite(
    plans: Mapping[FunctionUse, Plan],
    again: Mapping[FunctionUse, Plan],
    made: Priced,
) -> None:
    """Checks that a second rewrite would change nothing.

    Args:
      plans: the plans that were applied.
      again: the plans of a second rewrite.
      made: the rewritten functions, priced.

    Raises:
      VerifyError: a second rewrite would save time.
    """
    names = [name for plan in again.values() for name in plan.low]
    if not names:
        return
    tie = max(p.tie for p in plans.values()) + max(p.tie for p in again.values())
    stable = verify.stable(gain(made), tie, names)
    main = next(iter(made.analysis.uses)).name
    verify.enforce(stable, VerifyError, _where(main), _REPORT)


def clusters_made(
    before: Linked, fused: Fused, made: Mapping[FunctionUse, TypedGraph]
) -> None:
    """Checks every graph with clusters by the laws of `verify` that concern them.

    Args:
      before: the graphs without clusters.
      fused: the graphs with clusters.
      made: the rewritten functions, without clusters.

    Raises:
      VerifyError: one is broken.
    """
    for use, graph in fused.linked.graphs.items():
        if graph is before.graphs[use]:
            continue
        one = made[before.made_use(use)]
        typed = type_ports(graph, one.context, one.typed)
        laws = itertools.chain(
            verify.well_formed(graph),
            verify.well_typed(graph, typed),
            verify.same_unfused(before.graphs[use], outline.unfuse(graph)),
        )
        where = f"the twin of {use.name or 'the GraphDef'}"
        verify.enforce(laws, VerifyError, where, _REPORT)


def _where(name: str) -> str:
    return f"function {name}" if name else "the GraphDef"


def _originals(linked: Linked, priced: Priced) -> dict[FunctionUse, UseAnalysis]:
    """For each use of the rewritten module, the analysis of its original."""
    uses = priced.analysis.uses
    return {linked.made_use(use): one for use, one in uses.items()}


def _calls(
    module: ir.Module, use: FunctionUse
) -> Iterator[tuple[ir.Node, Call, list[ir.Graph]]]:
    for node, call in calls.calls(graph_of(module, use), module.functions):
        names = calls.callees_of(node, call)
        found = [module.functions[name] for name in names if name in module.functions]
        yield node, call, found
