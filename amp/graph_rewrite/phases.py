"""The phases of a rewrite as lists of named steps, in their order.

Only the order is here; the work of each phase is in its own folder. A step takes values
by name and gives a value under a name for later steps.
"""

from __future__ import annotations

from amp.graph_rewrite import checks
from amp.graph_rewrite.apply.apply import apply_plans
from amp.graph_rewrite.apply.link import link
from amp.graph_rewrite.apply.without_scale import priced_without_scale, without_scale
from amp.graph_rewrite.assign.decide import decide
from amp.graph_rewrite.assign.gain import keep_if_gains, without_memory_if_needed
from amp.graph_rewrite.assign.nominee import nominated
from amp.graph_rewrite.candidates.analysis import analyze
from amp.graph_rewrite.circumstances import contexts
from amp.graph_rewrite.cost.pricing import measured_prices
from amp.graph_rewrite.fusion import fuse
from amp.graph_rewrite.normalize.batch_norms import fuse_batch_norms
from amp.graph_rewrite.normalize.bundles import bypass
from amp.graph_rewrite.normalize.frame_reads import hoist_frame_reads
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.normalize.lone_convolutions import open_lone_convolutions
from amp.graph_rewrite.normalize.loop_invariants import hoist_invariants
from amp.graph_rewrite.normalize.row_reads import read_rows
from amp.graph_rewrite.normalize.sizes import sized, sized_module
from amp.graph_rewrite.ops.op_names import check_op_names
from amp.graph_rewrite.report_builder import report_on
from amp.graph_rewrite.steps import Step

_OPENED = ("unfused", "onednn", "differentiable")
_ROWS_READ = ("rows_read", "policy", "differentiable")
# Checks the module, inlines its calls, and finds the sizes of its tensors.
BEGIN = (
    Step("check the policy", check_op_names, ("policy",)),
    Step("check the graph given", checks.edges_given, ("given",)),
    Step("unfuse", fuse.unfuse, ("given",), "unfused"),
    Step("open lone convolutions", open_lone_convolutions, _OPENED, "opened"),
    Step("inline", inline, ("opened",), "inlined"),
    Step("bypass", bypass, ("inlined", "feeds", "differentiable"), "bypassed"),
    Step("read rows", read_rows, ("bypassed", "differentiable"), "rows_read"),
    Step("fuse batch norms", fuse_batch_norms, _ROWS_READ, "normed"),
    Step("hoist invariants", hoist_invariants, ("normed",), "hoisted"),
    Step("hoist reads", hoist_frame_reads, ("hoisted",), "reads_hoisted"),
    Step("size", sized, ("reads_hoisted", "sizes"), "sized"),
    Step("take the module", sized_module, ("sized",), "module"),
)
# Finds and prices the candidates.
PREPARE = (
    Step("contexts", contexts, ("module", "settled", "fetches", "feeds"), "contexts"),
    Step("analyze", analyze, ("module", "contexts"), "analysis"),
    Step("check the types given", checks.types_given, ("analysis",)),
    Step("price", measured_prices, ("analysis", "settled", "timer"), "all_priced"),
)
# Makes the plans that a nominee asks for.
_NOMINATED = ("nominated", "nominee")
_CHOSEN = ("chosen", "offered", "nominee")
DECIDE = (
    Step("nominate", nominated, ("all_priced", "nominee"), "nominated"),
    Step("price without the scale", priced_without_scale, _NOMINATED, "offered"),
    Step("decide", decide, ("offered", "nominee"), "chosen"),
    Step("price memory", without_memory_if_needed, _CHOSEN, "priced"),
    Step("keep if it gains", keep_if_gains, ("chosen", "priced", "nominee"), "plans"),
)
# Builds the graphs that the plans describe.
_APPLIED = ("applied", "priced", "nominee")
BUILD = (
    Step("apply", apply_plans, ("priced", "plans"), "applied"),
    Step("check the casts", checks.casts_made, ("priced", "plans", "applied")),
    Step("drop the scale", without_scale, _APPLIED, "scaleless"),
    Step("link", link, ("unfused", "scaleless", "suffix"), "linked"),
)
# Checks them.
CHECK = (
    Step("type again", checks.typed_made, ("linked", "priced"), "typed"),
    Step("check what was made", checks.graphs_made, ("linked", "priced", "typed")),
)
# Checks that a second rewrite would save no time; not for a plan of which an earlier
# run of the job has found that out.
_LINKED = ("linked", "priced", "made", "nominee")
SECOND = (
    Step("analyze again", checks.analyze_made, ("linked", "typed"), "made"),
    Step("price again", checks.price_made, _LINKED, "repriced"),
    Step("decide again", decide, ("repriced", "nominee"), "again"),
    Step("check a second time", checks.second_rewrite, ("plans", "again", "repriced")),
)
# Makes clusters.
FUSE = (
    Step("fuse", fuse.fused, ("linked", "priced", "typed", "fusing"), "fused"),
    Step("check the clusters", checks.clusters_made, ("linked", "fused", "typed")),
)
_REPORTED = ("all_priced", "priced", "plans", "fused", "settled", "sized")
REPORT = (Step("report", report_on, _REPORTED, "report"),)
