"""Prices the nodes of analysed functions: seconds in float32 and in 16 bits.

Applies the cost model to each node's shapes, and prefers measured times; nothing is
chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from amp.graph_rewrite.candidates.analysis import Analysis, UseAnalysis
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.cost import op_instance
from amp.graph_rewrite.cost.liveness import Liveness
from amp.graph_rewrite.cost.loads import Load, Loads, loads_of
from amp.graph_rewrite.cost.loops import Loops
from amp.graph_rewrite.cost.model import MOST_RATIO, CostModel
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import ir, shapes
from amp.graph_rewrite.graph.calls import FunctionUse


@dataclasses.dataclass(frozen=True, slots=True)
class PricedUse:
    """One use of a function, with the prices of its nodes and casts for one run.

    Nodes and casts in a loop of TensorFlow 1 have the price of all trips.

    Attributes:
      use_analysis: the use with its candidates.
      cost_model: predicts times on the device that runs it.
      times: seconds in (float32, 16 bits) of every node that has either type.
      loads: what the nodes do.
      liveness: which tensors are stored for the backward pass; the same for any plan.
      rest: seconds of all other nodes together, which no plan changes.
      spared: seconds of what only the function as given has to do.
      loops: those that XLA makes, if it compiles the function.
    """

    use_analysis: UseAnalysis
    cost_model: CostModel
    times: Mapping[str, Times]
    loads: Loads
    liveness: Liveness
    rest: float = 0.0
    spared: float = 0.0
    loops: Loops | None = None

    def cast(self, edge: ir.Edge) -> float:
        """Seconds of the cast of the tensor at an edge."""
        runs = self.use_analysis.runs_at(edge)
        size = self.use_analysis.graph.size(edge)
        in_loop = self.loops is not None and self.loops.touch(edge)
        return runs * self.cost_model.cast(size, in_loop)


@dataclasses.dataclass(frozen=True, slots=True)
class Priced:
    """A module's analysis with the prices of every use.

    Attributes:
      analysis: the analysis.
      uses: its uses in the same order, with their prices.
    """

    analysis: Analysis
    uses: Mapping[FunctionUse, PricedUse]

    @property
    def prices_memory(self) -> bool:
        """Whether storing a tensor for the backward pass has a price."""
        return any(one.cost_model.stores for one in self.uses.values())

    def without_memory(self) -> Priced:
        """The same prices, but none for storing tensors."""
        uses = {
            use: dataclasses.replace(one, cost_model=one.cost_model.without_memory())
            for use, one in self.uses.items()
        }
        return dataclasses.replace(self, uses=uses)

    def narrowed(self, analysis: Analysis) -> Priced:
        """The same prices for an analysis with fewer candidates."""
        uses = {
            use: dataclasses.replace(one, use_analysis=analysis.uses[use])
            for use, one in self.uses.items()
        }
        return Priced(analysis, uses)

    def sparing(self, nodes: Mapping[FunctionUse, frozenset[str]]) -> Priced:
        """The same prices, by which only the function as given has these nodes."""
        uses = dict(self.uses)
        for use, names in nodes.items():
            one = uses[use]
            own = {name: one.times[name][0] for name in names & one.times.keys()}
            times = {**one.times, **dict.fromkeys(own, (0.0, 0.0))}
            spared = one.spared + sum(own.values())
            uses[use] = dataclasses.replace(one, times=times, spared=spared)
        return dataclasses.replace(self, uses=uses)


def cost_models(settled: Resolution) -> Callable[[FunctionUse], CostModel]:
    """Returns the cost model for a use, with the figures of XLA if it compiles it."""
    policy = settled.policy
    assert policy is not None
    dtype, device = policy.dtype, settled.device
    return lambda use: CostModel(device.under(use.xla), dtype)


def price(
    analysis: Analysis, cost_model_of: Callable[[FunctionUse], CostModel]
) -> Priced:
    """Prices every node that has float32 or 16-bit tensors.

    Args:
      analysis: of the module.
      cost_model_of: gives the cost model of a use.
    """
    uses = {}
    for use, one in analysis.uses.items():
        loops = None
        if one.context.xla:
            device_type = one.context.device_type
            loops = Loops(one.graph, one.found.typed, device_type)
        uses[use] = _priced(
            PricedUse(
                use_analysis=one,
                cost_model=cost_model_of(use),
                times={},
                loads=loads_of(one),
                liveness=Liveness(one.graph, one.found.typed, one.context.fed),
                loops=loops,
            )
        )
    return Priced(analysis, uses)


def repriced(
    priced: Priced, cost_model_of: Callable[[FunctionUse], CostModel]
) -> Priced:
    """The same module, priced by other cost models.

    Args:
      priced: the module.
      cost_model_of: gives the cost model of a use.
    """
    uses = {
        use: _priced(dataclasses.replace(one, cost_model=cost_model_of(use)))
        for use, one in priced.uses.items()
    }
    return Priced(priced.analysis, uses)


def _priced(one: PricedUse) -> PricedUse:
    """A use with the prices of its cost model."""
    typed, runs = one.use_analysis.found.typed, one.use_analysis.runs
    times = {}
    for name, load in one.loads.own.items():
        seconds = _time(one, typed[name], load)
        times[name] = _compiled(one, typed[name], load, seconds)
    for name in runs.keys() & times.keys():
        high, low = times[name]
        times[name] = (runs[name] * high, runs[name] * low)
    return dataclasses.replace(
        one,
        times=times,
        rest=_together(one.cost_model, one.loads.rest),
        spared=_together(one.cost_model, one.loads.spared),
    )


def _together(cost_model: CostModel, loads: Sequence[tuple[float, Load]]) -> float:
    """Seconds of nodes that no plan changes, each with its runs."""
    seconds = 0.0
    for count, load in loads:
        seconds += count * cost_model.node(*load)[0]
    return seconds


def measured_share(priced: Priced) -> float:
    """The part (0 to 1) of the candidates' float32 seconds that was measured."""
    if not any(one.cost_model.measured.times for one in priced.uses.values()):
        return 0.0
    known = every = 0.0
    for one in priced.uses.values():
        for name in one.use_analysis.found.allowed:
            view = one.use_analysis.found.typed[name]
            seconds = one.use_analysis.weight * one.times[name][0]
            every += seconds
            seen = _measured(one.use_analysis, view, one.cost_model)
            known += seconds if seen is not None else 0.0
    return known / every if every else 0.0


def key_of(use_analysis: UseAnalysis, view: Typed, cost_model: CostModel) -> str:
    """The key of a node's op instance, made once per node."""
    keys = cost_model.measured.keys
    if view.node not in keys:
        graph, context = use_analysis.graph, use_analysis.context
        keys[view.node] = op_instance.key(graph, view, context)
    return keys[view.node]


def _measured(
    use_analysis: UseAnalysis, view: Typed, cost_model: CostModel
) -> Times | None:
    if view.node.op not in cost_model.measured.ops:
        return None
    return cost_model.measured.times.get(key_of(use_analysis, view, cost_model))


def _compiled(one: PricedUse, view: Typed, load: Load, product: Times) -> Times:
    """Seconds of a node where XLA compiles it, with what it moves through memory.

    Args:
      one: the use, of which the loops are known.
      view, load: the node and what it does.
      product: its seconds if it is in no loop.
    """
    loops, cost_model, graph = one.loops, one.cost_model, one.use_analysis.graph
    if loops is None or load.work == "free":
        return product
    name = view.node.name
    moved = loops.moved(name)
    if not loops.is_loop(name):
        return cost_model.alone(product, moved)
    edges = [*view.node.inputs, *((name, i) for i in range(len(view.outs)))]
    most = max((shapes.elements(graph.size(edge)) for edge in edges), default=0)
    return cost_model.in_loop(load.work, most, moved)


def _time(one: PricedUse, view: Typed, load: Load) -> Times:
    seen = _measured(one.use_analysis, view, one.cost_model)
    if seen is not None:
        return seen[0], min(seen[1], MOST_RATIO * seen[0])
    return one.cost_model.node(*load)
