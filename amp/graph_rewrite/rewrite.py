"""`rewrite`: the phases of a rewrite as lists of named steps, in their order.

Only the order is here; the work of each phase is in its own folder. A step takes values
by name and gives a value under a name for later steps.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from amp.graph_rewrite import checks
from amp.graph_rewrite.apply.apply import apply_plans
from amp.graph_rewrite.apply.link import link
from amp.graph_rewrite.assign.decide import decide
from amp.graph_rewrite.assign.gain import keep_if_gains
from amp.graph_rewrite.candidates.analysis import analyze
from amp.graph_rewrite.circumstances import contexts
from amp.graph_rewrite.cost.op_instance import Timer
from amp.graph_rewrite.cost.pricing import measured_prices, untimed
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.fusion import fuse
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.normalize.loop_invariants import hoist_invariants
from amp.graph_rewrite.ops.op_names import check_op_names
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.report_builder import report_on, switched_off
from amp.graph_rewrite.steps import Step, run, uncollected

# Checks and prepares the module, finds and prices the candidates, and makes the plans.
DECIDE = (
    Step("check the policy", check_op_names, ("policy",)),
    Step("check the graph given", checks.edges_given, ("given",)),
    Step("unfuse", fuse.unfuse, ("given",), "unfused"),
    Step("inline", inline, ("unfused",), "inlined"),
    Step("hoist invariants", hoist_invariants, ("inlined",), "module"),
    Step("contexts", contexts, ("module", "settled", "fetches", "feeds"), "contexts"),
    Step("analyze", analyze, ("module", "contexts"), "analysis"),
    Step("check the types given", checks.types_given, ("analysis",)),
    Step("price", measured_prices, ("analysis", "settled", "timer"), "priced"),
    Step("decide", decide, ("priced",), "chosen"),
    Step("keep if it gains", keep_if_gains, ("chosen", "priced"), "plans"),
)
# Builds the graphs that the plans describe, checks them, and makes clusters.
MAKE = (
    Step("apply", apply_plans, ("priced", "plans"), "applied"),
    Step("check the casts", checks.casts_made, ("priced", "plans", "applied")),
    Step("link", link, ("unfused", "applied", "suffix"), "linked"),
    Step("analyze again", checks.analyze_made, ("linked", "priced"), "made"),
    Step("check what was made", checks.graphs_made, ("linked", "priced", "made")),
    Step("price again", checks.price_made, ("linked", "priced", "made"), "repriced"),
    Step("decide again", decide, ("repriced",), "again"),
    Step("check a second time", checks.second_rewrite, ("plans", "again", "repriced")),
    Step("bypass", fuse.bypassed, ("linked", "settled"), "bypassed"),
    Step("fuse", fuse.fused, ("bypassed", "priced", "settled", "suffix"), "fused"),
    Step("check the clusters", checks.clusters_made, ("bypassed", "fused", "priced")),
)
REPORT = (Step("report", report_on, ("priced", "plans", "fused", "settled"), "report"),)


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewritten graph and the report on it.

    Attributes:
      graph: the rewritten graph: a GraphDef for users, an `ir.Module` in this package.
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
    """Rewrites the main graph and every function that it reaches.

    The module given is not changed. Rewritten functions are added to the result under
    new names; the originals stay in it.

    Args:
      module: a graph with its functions.
      settled: policy and device; with a policy of None the module is returned as it is.
      fetches: nodes whose tensors the caller reads by name, in float32.
      feeds: nodes whose tensors the caller replaces by name, in float32.
      suffix: ending of the new functions' names.
      timer: gives measured times of operations, used instead of the model's.

    Raises:
      GraphError: the graph given is not well formed.
      PolicyError: an op type that TensorFlow does not know.
      VerifyError: the result breaks a law; a fault of this package.
      RewriteError: a phase failed otherwise; a fault of this package.
    """
    if settled.policy is None:
        return Rewrite(module, switched_off(module, settled))
    values: dict[str, Any] = {
        "given": module,
        "settled": settled,
        "policy": settled.policy,
    }
    values |= {"fetches": fetches, "feeds": feeds, "suffix": suffix, "timer": timer}
    values["fused"] = fuse.unfused(module)
    with uncollected():
        values = run(DECIDE, values)
        if any(plan.low for plan in values["plans"].values()):
            values = run(MAKE, values)
        values = run(REPORT, values)
    return Rewrite(values["fused"].linked.module, values["report"])
