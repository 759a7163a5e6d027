"""`rewrite`, and its three parts: `begin`, `prepare` and making any number of plans.

Runs the lists of `phases`; no phase's work is here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from amp.graph_rewrite import report_builder
from amp.graph_rewrite.apply.link import link
from amp.graph_rewrite.assign.gain import seconds_of
from amp.graph_rewrite.assign.nominee import CUT, EVERYTHING, Nodes, Nominee
from amp.graph_rewrite.cost.op_instance import Timer
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.cost.pricing import untimed
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.fusion import fuse
from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.normalize import size_roots
from amp.graph_rewrite.normalize.element_sources import ElementSource, element_sources
from amp.graph_rewrite.normalize.sizes import SizesAtCall, sized
from amp.graph_rewrite.ops.op_table import COMPUTE
from amp.graph_rewrite.outcomes import Prices
from amp.graph_rewrite.phases import (
    BEGIN,
    BUILD,
    CHECK,
    DECIDE,
    FUSE,
    PREPARE,
    REPORT,
    SECOND,
)
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.steps import run, uncollected


def _nothing_left() -> None:
    """All checks of a rewrite were made."""


def _check_again(values: Mapping[str, Any]) -> None:
    """Checks that a second rewrite would save no time."""
    with uncollected():
        run(SECOND, values)


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewritten graph and the report on it.

    Attributes:
      graph: the rewritten graph: a GraphDef for users, an `ir.Module` in this package.
      report: what was done and why.
      low: the nodes made 16-bit, by the use of the function as given.
      left: makes the checks that were left for later, and raises VerifyError.
    """

    graph: Any
    report: Report
    low: Mapping[FunctionUse, frozenset[str]] = dataclasses.field(default_factory=dict)
    left: Callable[[], None] = _nothing_left


@dataclasses.dataclass(frozen=True, slots=True)
class Foreseen:
    """What a plan comes to, before its graph is made.

    Attributes:
      seconds: predicted time of a step, without what clusters save.
      low: the nodes to make 16-bit, by the use of the function as given.
      given: predicted time of a step of the function as given.
    """

    seconds: float
    low: Mapping[FunctionUse, frozenset[str]]
    given: float = 0.0

    @property
    def gains(self) -> bool:
        """Whether the plan changes the function, and so gains by `min_gain` or more."""
        return self.seconds < self.given


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """A module with calls inlined and sizes found, before it is analyzed.

    Attributes:
      settled: policy and device.
      values: what the steps of `BEGIN` gave, by name.
    """

    settled: Resolution
    values: Mapping[str, Any]

    @property
    def given(self) -> ir.Module:
        """The module as it was given."""
        given: ir.Module = self.values["given"]
        return given

    @property
    def roots(self) -> tuple[ir.Edge, ...]:
        """The tensors whose sizes are assumed, and that a first step might tell."""
        return size_roots.roots(self.values["sized"]) if "sized" in self.values else ()

    @property
    def element_sources(self) -> tuple[ElementSource, ...]:
        """The arguments to look at an element of, as the sizes of loops depend on it.

        Of a module without a product in a loop there are none.
        """
        if "sized" not in self.values or not self.values["sized"].hidden:
            return ()
        module: ir.Module = self.values["module"]
        nodes = (n for graph in module.functions.values() for n in graph.nodes.values())
        products = any(node.op in COMPUTE for node in nodes)
        return element_sources(module) if products else ()

    def in_float32(self, suffix: str) -> ir.Module:
        """The module as the plans start from: calls inlined, all in float32."""
        module = self.values["module"]
        uses = calls.uses_with_weights(module)
        graphs = {use: calls.graph_of(module, use) for use in uses}
        return link(self.values["unfused"], graphs, suffix).module

    def resized(self, sizes: SizesAtCall) -> Begun:
        """The same module, when more is known of the call that plans are made for."""
        given = {**self.values, "sizes": sizes}
        first = next(number for number, step in enumerate(BEGIN) if step.run is sized)
        with uncollected():
            return Begun(self.settled, run(BEGIN[first:], given))

    def prepared(self, timer: Timer = untimed) -> Prepared:
        """Analyzes and prices the module, for any number of plans.

        Raises:
          AmpError: as `rewrite`.
        """
        values = {**self.values, "timer": timer}
        if self.settled.policy is not None:
            with uncollected():
                values = run(PREPARE, values)
        return Prepared(self.settled, values)


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A module that was analyzed and priced, of which several plans can be made.

    Attributes:
      settled: policy and device; without a policy every plan is the module as given.
      values: what the steps of `BEGIN` and `PREPARE` gave, by name.
    """

    settled: Resolution
    values: Mapping[str, Any]

    def repriced(self, timer: Timer) -> Prepared:
        """The same module, priced with other measured times.

        Raises:
          AmpError: as `rewrite`.
        """
        if self.settled.policy is None:
            return self
        with uncollected():
            values = run(PREPARE[-1:], {**self.values, "timer": timer})
        return Prepared(self.settled, values)

    def made(
        self,
        nominee: Nominee = CUT,
        suffix: str = "__amp",
        *,
        later: bool = False,
    ) -> Rewrite:
        """Rewrites the main graph and every function that it reaches.

        Rewritten functions are added to the result under new names; the originals stay
        in it.

        Args:
          nominee: the plan to make.
          suffix: ending of the new functions' names.
          later: whether the caller checks, by `Rewrite.left`, that a second rewrite
            would save no time; that takes a third of the time of all.

        Raises:
          VerifyError: the result breaks a law; a fault of this package.
          RewriteError: a phase failed otherwise; a fault of this package.
        """
        module, settled = self.given, self.settled
        if settled.policy is None:
            return Rewrite(module, report_builder.switched_off(module, settled))
        with uncollected():
            values, left = self._decided(nominee, suffix), _nothing_left
            if any(plan.low or plan.spared for plan in values["plans"].values()):
                values = run((*BUILD, *CHECK), values)
                left = functools.partial(_check_again, values)
                if not later:
                    left()
                values = run(FUSE, values)
            values = run(REPORT, values)
        low = {use: plan.low for use, plan in values["plans"].items()}
        module = values["fused"].linked.module
        return Rewrite(module, values["report"], low, left if later else _nothing_left)

    def foreseen(self, nominee: Nominee) -> Foreseen:
        """What a nominee's plan comes to; takes a fraction of the time of `made`."""
        if self.settled.policy is None:
            return Foreseen(0.0, {})
        with uncollected():
            plans = self._decided(nominee, "")["plans"]
        given, seconds = seconds_of(plans, self.priced)
        return Foreseen(seconds, {use: plan.low for use, plan in plans.items()}, given)

    def reasons(self, nominee: Nominee) -> Nodes:
        """Why a nominee's plan has nodes in float32, by the use as given."""
        with uncollected():
            plans = self._decided(nominee, "")["plans"]
        return {use: plan.reasons for use, plan in plans.items()}

    def prices(self, nominee: Nominee) -> Prices:
        """What a nominee's plan costs, node by node, for the report on it."""
        with uncollected():
            plans = self._decided(nominee, "")["plans"]
        return report_builder.prices(self.priced, plans)

    def holding(self, low: Mapping[FunctionUse, frozenset[str]]) -> Nominee:
        """The nominee that holds just these nodes in 16 bits.

        Args:
          low: by the use of the function as given; of a plan that was made.
        """
        if not any(low.values()):
            return dataclasses.replace(EVERYTHING, in_float32=True)
        why = Reason("cost", "float32 in the plan that was made")
        uses = self.priced.analysis.uses
        return EVERYTHING.keeping(
            {
                use: {n: why for n in one.found.allowed if n not in low.get(use, ())}
                for use, one in uses.items()
            }
        )

    def draft(self, nominee: Nominee, suffix: str) -> ir.Module:
        """The module by one of its plans, without clusters and without most checks.

        To compute values with; not to be run in place of the original.
        """
        with uncollected():
            values = self._decided(nominee, suffix)
            module: ir.Module = run(BUILD, values)["linked"].module
        return module

    def _decided(self, nominee: Nominee, suffix: str) -> dict[str, Any]:
        device = self.settled.device
        if not nominee.clusters:
            device = device.without_clusters()
        fixed = self.values["sized"].lengths and not nominee.lengths
        fusing = fuse.Fusing(device, suffix, fixed)
        asked = {"nominee": nominee, "fusing": fusing, "suffix": suffix}
        nothing = fuse.unfused(self.given)
        return run(DECIDE, {**self.values, **asked, "fused": nothing})

    def in_float32(self, suffix: str) -> ir.Module:
        """The module as the plans start from: calls inlined, all in float32."""
        graphs = {use: one.graph for use, one in self.priced.analysis.uses.items()}
        return link(self.values["unfused"], graphs, suffix).module

    @property
    def given(self) -> ir.Module:
        """The module as it was given."""
        given: ir.Module = self.values["given"]
        return given

    @property
    def sizes(self) -> SizesAtCall | None:
        """What was known of the call that plans are made for."""
        sizes: SizesAtCall | None = self.values["sizes"]
        return sizes

    @property
    def timer(self) -> Timer:
        """What gave the measured times that the prices are made with."""
        timer: Timer = self.values.get("timer", untimed)
        return timer

    @property
    def spares(self) -> bool:
        """Whether a rewrite saves time by anything else than 16 bits."""
        off = self.settled.policy is None
        return not off and any(one.spared for one in self.priced.uses.values())

    @property
    def priced(self) -> Priced:
        """The candidates and prices of every use."""
        priced: Priced = self.values["all_priced"]
        return priced


def begin(
    module: ir.Module,
    settled: Resolution,
    *,
    fetches: frozenset[str] = frozenset(),
    feeds: frozenset[str] = frozenset(),
    sizes: SizesAtCall | None = None,
) -> Begun:
    """Checks a module, inlines its calls and finds its sizes.

    Args, Raises: as those of `rewrite`.
    """
    if calls.has_computations(module):
        settled = settled.as_written()
    values: dict[str, Any] = {
        "given": module,
        "settled": settled,
        "policy": settled.policy,
        "differentiable": settled.differentiable,
        "onednn": settled.onednn,
    }
    values |= {"fetches": fetches, "feeds": feeds, "sizes": sizes}
    if settled.policy is not None:
        with uncollected():
            values = run(BEGIN, values)
    return Begun(settled, values)


def prepare(
    module: ir.Module,
    settled: Resolution,
    *,
    fetches: frozenset[str] = frozenset(),
    feeds: frozenset[str] = frozenset(),
    timer: Timer = untimed,
    sizes: SizesAtCall | None = None,
) -> Prepared:
    """Analyzes and prices a module, for any number of plans.

    Args, Raises: as those of `rewrite`.
    """
    begun = begin(module, settled, fetches=fetches, feeds=feeds, sizes=sizes)
    return begun.prepared(timer)


def rewrite(
    module: ir.Module,
    settled: Resolution,
    *,
    fetches: frozenset[str] = frozenset(),
    feeds: frozenset[str] = frozenset(),
    suffix: str = "__amp",
    timer: Timer = untimed,
    sizes: SizesAtCall | None = None,
) -> Rewrite:
    """Rewrites the main graph and every function that it reaches, by the cheapest plan.

    The module given is not changed. Rewritten functions are added to the result under
    new names; the originals stay in it.

    Args:
      module: a graph with its functions.
      settled: policy and device; with a policy of None the module is returned as it is.
      fetches: nodes whose tensors the caller reads by name, in float32.
      feeds: nodes whose tensors the caller replaces by name, in float32.
      suffix: ending of the new functions' names.
      timer: gives measured times of operations, used instead of the model's.
      sizes: tells the sizes at a call of what was traced with unknown dimensions; None
        if nothing tells them.

    Raises:
      GraphError: the graph given is not well formed.
      PolicyError: an op type that TensorFlow does not know.
      VerifyError: the result breaks a law; a fault of this package.
      RewriteError: a phase failed otherwise; a fault of this package.
    """
    prepared = prepare(
        module, settled, fetches=fetches, feeds=feeds, timer=timer, sizes=sizes
    )
    return prepared.made(CUT, suffix)
