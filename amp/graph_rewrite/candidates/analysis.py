"""A module with all that is known of it before anything is chosen.

Brings the phases up to the choice together; no choice is made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from amp.graph_rewrite.apply.link import graph_of
from amp.graph_rewrite.candidates.call_values import Carried, Crossing, cross
from amp.graph_rewrite.candidates.context import Context, Typed, type_ports
from amp.graph_rewrite.candidates.eligibility import Candidates, narrow
from amp.graph_rewrite.candidates.propagation import reach
from amp.graph_rewrite.cost import cost_model
from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.calls import Use
from amp.graph_rewrite.ops.op_table import Role


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One use of a function.

    Attributes:
      graph, context, found: the graph and what may be done with it.
      clock: times on what runs it.
      weight: how often it runs a step.
    """

    graph: ir.Graph
    context: Context
    found: Candidates
    clock: cost_model.Clock
    weight: float


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """Every use of a function, and how they hang together.

    Attributes:
      parts: the uses, callers first.
      crossing: what crosses between them.
      turning: the values between them that may be held in 16 bits.
      narrowed: what might be low in each, had it been reached.
    """

    parts: Mapping[Use, Part]
    crossing: Crossing
    turning: frozenset[Carried]
    narrowed: Mapping[Use, Candidates]

    def without(self, refused: Mapping[Use, Candidates]) -> Program:
        """The program with some candidates less: `refused` by use, as `narrowed`."""
        narrowed = {**self.narrowed, **refused}
        graphs = {use: part.graph for use, part in self.parts.items()}
        reached = reach(graphs, narrowed, self.crossing)
        parts = {
            use: dataclasses.replace(part, found=reached.found[use])
            for use, part in self.parts.items()
        }
        return Program(parts, self.crossing, reached.turning, narrowed)

    def timed(self, clocks: Mapping[Use, cost_model.Clock]) -> Program:
        """The program with other clocks."""
        parts = {
            use: dataclasses.replace(part, clock=clocks[use])
            for use, part in self.parts.items()
        }
        return dataclasses.replace(self, parts=parts)


def program_of(
    module: ir.Module,
    context_of: Callable[[Use], Context],
    clock_of: Callable[[Use], cost_model.Clock],
) -> Program:
    """What is known of a module.

    Args:
      module: inlined, its loops made plain.
      context_of, clock_of: of each use that is reached.
    """
    weights = calls.reached(module)
    graphs = {use: graph_of(module, use) for use in weights}
    contexts = {use: context_of(use) for use in weights}
    typed: dict[Use, Mapping[str, Typed]] = {
        use: type_ports(graph, contexts[use]) for use, graph in graphs.items()
    }
    crossing = cross(graphs, calls.sites(module, weights), typed, contexts)
    products = _products(module, graphs, typed)
    narrowed = {
        use: narrow(graphs[use], contexts[use], typed[use], products[use])
        for use in graphs
    }
    reached = reach(graphs, narrowed, crossing)
    parts = {
        use: Part(graphs[use], contexts[use], found, clock_of(use), weights[use])
        for use, found in reached.found.items()
    }
    return Program(parts, crossing, reached.turning, narrowed)


def _products(
    module: ir.Module,
    graphs: Mapping[Use, ir.Graph],
    typed: Mapping[Use, Mapping[str, Typed]],
) -> dict[Use, frozenset[str]]:
    """Of each use the nodes that compute a product, themselves or by what they call.

    What a function that calls itself calls is taken for one that does.
    """
    found: dict[Use, frozenset[str]] = {}
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
