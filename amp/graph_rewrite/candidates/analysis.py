"""A module with all that is known of it before anything is chosen.

Brings the phases up to the choice together; no choice is made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from amp.graph_rewrite.apply.link import graph_of
from amp.graph_rewrite.candidates.call_values import CallValues, Carried, cross
from amp.graph_rewrite.candidates.context import Context, Typed, type_ports
from amp.graph_rewrite.candidates.eligibility import Candidates, find_eligible
from amp.graph_rewrite.candidates.propagation import propagate
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import Role


@dataclasses.dataclass(frozen=True, slots=True)
class UseAnalysis:
    """One use of a function.

    Attributes:
      graph, context, found: the graph and what may be done with it.
      cost_model: times on what runs it.
      weight: how often it runs a step.
    """

    graph: ir.Graph
    context: Context
    found: Candidates
    cost_model: CostModel
    weight: float


@dataclasses.dataclass(frozen=True, slots=True)
class Analysis:
    """Every use of a function, and how they hang together.

    Attributes:
      parts: the uses, callers first.
      call_values: what crosses between them.
      turning: the values between them that may be held in 16 bits.
      narrowed: what might be low in each, had it been reached.
    """

    parts: Mapping[FunctionUse, UseAnalysis]
    call_values: CallValues
    turning: frozenset[Carried]
    narrowed: Mapping[FunctionUse, Candidates]

    def without(self, refused: Mapping[FunctionUse, Candidates]) -> Analysis:
        """The program with some candidates less: `refused` by use, as `narrowed`."""
        narrowed = {**self.narrowed, **refused}
        graphs = {use: part.graph for use, part in self.parts.items()}
        reached = propagate(graphs, narrowed, self.call_values)
        parts = {
            use: dataclasses.replace(part, found=reached.found[use])
            for use, part in self.parts.items()
        }
        return Analysis(parts, self.call_values, reached.turning, narrowed)

    def timed(self, cost_models: Mapping[FunctionUse, CostModel]) -> Analysis:
        """The program with other cost_models."""
        parts = {
            use: dataclasses.replace(part, cost_model=cost_models[use])
            for use, part in self.parts.items()
        }
        return dataclasses.replace(self, parts=parts)


def analyze(
    module: ir.Module,
    context_of: Callable[[FunctionUse], Context],
    cost_model_of: Callable[[FunctionUse], CostModel],
) -> Analysis:
    """What is known of a module.

    Args:
      module: inlined, its loops made plain.
      context_of, cost_model_of: of each use that is reached.
    """
    weights = calls.uses_with_weights(module)
    graphs = {use: graph_of(module, use) for use in weights}
    contexts = {use: context_of(use) for use in weights}
    typed: dict[FunctionUse, Mapping[str, Typed]] = {
        use: type_ports(graph, contexts[use]) for use, graph in graphs.items()
    }
    call_values = cross(graphs, calls.sites(module, weights), typed, contexts)
    products = _products(module, graphs, typed)
    narrowed = {
        use: find_eligible(graphs[use], contexts[use], typed[use], products[use])
        for use in graphs
    }
    reached = propagate(graphs, narrowed, call_values)
    parts = {
        use: UseAnalysis(
            graphs[use], contexts[use], found, cost_model_of(use), weights[use]
        )
        for use, found in reached.found.items()
    }
    return Analysis(parts, call_values, reached.turning, narrowed)


def _products(
    module: ir.Module,
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
) -> dict[FunctionUse, frozenset[str]]:
    """Of each use the nodes that compute a product, themselves or by what they call.

    What a function that calls itself calls is taken for one that does.
    """
    found: dict[FunctionUse, frozenset[str]] = {}
    for use in reversed([*graphs]):  # what is called first
        own = {
            name
            for name, view in typed[use].items()
            if view.row is not None and view.row.role is Role.COMPUTE
        }
        for node, call in calls.calls(graphs[use], module.functions):
            callees = calls.uses_of(node, call, use.xla, module.functions)
            if any(found.get(callee, True) for callee in callees):
                own.add(node.name)
        found[use] = frozenset(own)
    return found
