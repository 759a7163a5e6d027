"""`analyze`: everything that is known of a module before its nodes are priced.

Runs the other files of this folder in their order; nothing is priced or chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from amp.graph_rewrite.candidates.call_values import CallValues, Carried, cross
from amp.graph_rewrite.candidates.context import Context, Typed, type_ports
from amp.graph_rewrite.candidates.eligibility import Candidates, find_eligible
from amp.graph_rewrite.candidates.propagation import propagate
from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.calls import FunctionUse, graph_of
from amp.graph_rewrite.ops.op_table import Role


@dataclasses.dataclass(frozen=True, slots=True)
class UseAnalysis:
    """One use of a function.

    Attributes:
      graph, context, found: the graph and what may be done with it.
      weight: how often it runs a step.
    """

    graph: ir.Graph
    context: Context
    found: Candidates
    weight: float


@dataclasses.dataclass(frozen=True, slots=True)
class Analysis:
    """Every use of a function, and how they hang together.

    Attributes:
      uses: what is known of each, callers first.
      call_values: what crosses between them.
      turning: the values between them that may be held in 16 bits.
      eligible: who might be 16-bit in each if every node were downstream of a product
        in 16 bits, which `propagate` then asks.
    """

    uses: Mapping[FunctionUse, UseAnalysis]
    call_values: CallValues
    turning: frozenset[Carried]
    eligible: Mapping[FunctionUse, Candidates]

    def without(self, refused: Mapping[FunctionUse, Candidates]) -> Analysis:
        """The analysis with some candidates less.

        Args:
          refused: what takes the place of `eligible` for some of the uses.
        """
        eligible = {**self.eligible, **refused}
        graphs = {use: one.graph for use, one in self.uses.items()}
        propagated = propagate(graphs, eligible, self.call_values)
        uses = {
            use: dataclasses.replace(one, found=propagated.found[use])
            for use, one in self.uses.items()
        }
        return Analysis(uses, self.call_values, propagated.turning, eligible)


def analyze(
    module: ir.Module,
    context_of: Callable[[FunctionUse], Context],
) -> Analysis:
    """Everything that is known of a module before its nodes are priced.

    Args:
      module: as `normalize` leaves it.
      context_of: what decisions on a use depend on, for each use that is reached.
    """
    weights = calls.uses_with_weights(module)
    graphs = {use: graph_of(module, use) for use in weights}
    contexts = {use: context_of(use) for use in weights}
    typed: dict[FunctionUse, Mapping[str, Typed]] = {
        use: type_ports(graph, contexts[use]) for use, graph in graphs.items()
    }
    call_values = cross(graphs, calls.sites(module, weights), typed, contexts)
    products = _products(module, graphs, typed)
    eligible = {
        use: find_eligible(graphs[use], contexts[use], typed[use], products[use])
        for use in graphs
    }
    propagated = propagate(graphs, eligible, call_values)
    uses = {
        use: UseAnalysis(graphs[use], contexts[use], found, weights[use])
        for use, found in propagated.found.items()
    }
    return Analysis(uses, call_values, propagated.turning, eligible)


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
