"""`analyze` finds the candidates of all functions of a module.

It runs the other files of this folder in their order; each can only refuse further
nodes:

1. `hazards.references`: readers of references of TensorFlow 1;
2. `eligibility`: policy, op table, kernels and hazards, function by function;
3. `ranges`: values that the 16-bit type cannot represent;
4. `exact_products`: products that count, or whose results are ranked;
5. `loss`: the loss;
6. `solutions`: matrices that are factored, inverted or solved by;
7. `recurrences`: what a loop computes of itself by products;
8. `conditioning`: values of which something is subtracted;
9. `frame_variables.unfit`: loop variables of TensorFlow 1 that cannot turn as a whole;
10. `settling_loops`: loops that end once their values change no more;
11. `given_values`: what nobody computed, and is read where its last bits count;
12. `propagation`: keeps the nodes downstream of a compute node, and the move nodes that
   feed one.

Nothing is priced or chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from amp.graph_rewrite.candidates.call_values import CallValues, Carried, cross
from amp.graph_rewrite.candidates.conditioning import conditioning
from amp.graph_rewrite.candidates.context import Context, Typed, type_ports
from amp.graph_rewrite.candidates.eligibility import Candidates, find_eligible
from amp.graph_rewrite.candidates.exact_products import exact_products
from amp.graph_rewrite.candidates.float_paths import FloatPaths
from amp.graph_rewrite.candidates.frame_variables import held, unfit
from amp.graph_rewrite.candidates.given_values import given_values
from amp.graph_rewrite.candidates.hazards import references
from amp.graph_rewrite.candidates.loss import loss
from amp.graph_rewrite.candidates.passes import Passes, passes
from amp.graph_rewrite.candidates.propagation import Propagated, propagate, without
from amp.graph_rewrite.candidates.ranges import ranges
from amp.graph_rewrite.candidates.recurrences import recurrences
from amp.graph_rewrite.candidates.settling_loops import settling_loops
from amp.graph_rewrite.candidates.solutions import solutions
from amp.graph_rewrite.candidates.ties import Tie, held_by_ties, ties
from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, graph_of
from amp.graph_rewrite.graph.frame_trips import frame_trips
from amp.graph_rewrite.graph.frames import Branches
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason


@dataclasses.dataclass(frozen=True, slots=True)
class UseAnalysis:
    """The analysis of one use of a function.

    Attributes:
      graph: the function.
      context: policy, device and the like.
      found: its candidates.
      weight: number of runs per step.
      runs: how often a node in a loop or branch of TensorFlow 1 runs in one run of the
        function; the others run once.
      switches: the nodes that begin such branches, and give each tensor half as often.
    """

    graph: ir.Graph
    context: Context
    found: Candidates
    weight: float
    runs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    switches: frozenset[str] = frozenset()

    def runs_at(self, edge: ir.Edge) -> float:
        """How often there is a tensor at an edge in one run of the function."""
        runs = self.runs.get(edge[0], 1.0)
        return runs / 2 if edge[0] in self.switches else runs


@dataclasses.dataclass(frozen=True, slots=True)
class Analysis:
    """The analysis of a module.

    Attributes:
      uses: the analysis of each use of a function, callers first.
      call_values: the tensors that are passed between functions.
      turning: the loop and branch values that may be 16-bit.
      ties: the nodes and values that become 16-bit together or not at all.
      eligible: the candidates of each use before `propagate` removed the nodes that 16
        bits do not reach.
    """

    uses: Mapping[FunctionUse, UseAnalysis]
    call_values: CallValues
    turning: frozenset[Carried]
    ties: tuple[Tie, ...]
    eligible: Mapping[FunctionUse, Candidates]

    def without(self, refused: Mapping[FunctionUse, Candidates]) -> Analysis:
        """The analysis with fewer candidates, propagated anew.

        Args:
          refused: replaces `eligible` for some of the uses.
        """
        eligible = {**self.eligible, **refused}
        graphs = {use: one.graph for use, one in self.uses.items()}
        propagated = _propagated(graphs, eligible, self.call_values, self.ties)
        uses = {
            use: dataclasses.replace(one, found=propagated.found[use])
            for use, one in self.uses.items()
        }
        return dataclasses.replace(
            self, uses=uses, turning=propagated.turning, eligible=eligible
        )


def analyze(
    module: ir.Module,
    context_of: Callable[[FunctionUse], Context],
) -> Analysis:
    """Finds the candidates of every function that the main graph reaches.

    Args:
      module: the result of the steps of `normalize`.
      context_of: gives the context of a use.
    """
    contexts = {use: context_of(use) for use in calls.uses_with_weights(module)}
    typed = {use: type_ports(graph_of(module, use), c) for use, c in contexts.items()}
    return analyze_typed(module, contexts, typed)


def analyze_typed(
    module: ir.Module,
    contexts: Mapping[FunctionUse, Context],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
) -> Analysis:
    """As `analyze`, where the types of tensors were found already.

    Args:
      module: the module.
      contexts: of each use.
      typed: its nodes with the types of their tensors.
    """
    weights = calls.uses_with_weights(module)
    graphs = {use: graph_of(module, use) for use in weights}
    timed = {use: references(graph, typed[use]) for use, graph in graphs.items()}
    every = calls.sites(module, weights)
    sites = {(use, n): site for (use, n), site in every.items() if n not in timed[use]}
    call_values = cross(graphs, sites, typed, contexts)
    products = _products(module, graphs, typed)
    eligible = {
        use: find_eligible(
            graph, contexts[use], typed[use], products[use], timed=timed[use]
        )
        for use, graph in graphs.items()
    }
    beyond = ranges(graphs, contexts, eligible, call_values)
    eligible = {use: part.refusing(beyond[use]) for use, part in eligible.items()}
    eligible = without(eligible, _exact(graphs, typed, contexts))
    found = passes(graphs, typed, products, call_values)
    eligible = without(eligible, loss(graphs, typed, found))
    known = _with_constants(typed, call_values)
    paths = FloatPaths(graphs, typed, every)
    eligible = without(eligible, solutions(paths))
    eligible = without(eligible, recurrences(paths))
    given = _given(graphs, call_values)
    eligible = without(
        eligible, _ill_conditioned(graphs, known, contexts, found, given)
    )
    eligible = without(eligible, unfit(graphs, typed, call_values))
    eligible = without(eligible, settling_loops(paths))
    eligible = without(eligible, given_values(graphs, contexts, eligible, call_values))
    tied = ties(graphs, typed, contexts, call_values)
    propagated = _propagated(graphs, eligible, call_values, tied)
    uses = {
        use: _use(graphs[use], contexts[use], found, weights[use])
        for use, found in propagated.found.items()
    }
    return Analysis(uses, call_values, propagated.turning, tied, eligible)


def _use(
    graph: ir.Graph, context: Context, found: Candidates, weight: float
) -> UseAnalysis:
    trips, branches = frame_trips(graph), Branches(graph)
    runs: dict[str, float] = {**trips}
    for name, share in branches.shares().items():
        runs[name] = share * trips.get(name, 1)
    return UseAnalysis(graph, context, found, weight, runs, branches.switches)


def _with_constants(
    typed: Mapping[FunctionUse, Mapping[str, Typed]], call_values: CallValues
) -> dict[FunctionUse, Mapping[str, Typed]]:
    """The nodes of each use, and the constants it is given, by its arguments' names."""
    given: dict[FunctionUse, dict[str, Typed]] = {use: {} for use in typed}
    for use, edge in call_values.alias:
        at, (name, _) = call_values.source((use, edge))
        view = typed[at].get(name)
        if view is not None and view.facts.kind is Kind.CONSTANT:
            given[use][edge[0]] = view
    return {use: {**views, **given[use]} for use, views in typed.items()}


def _exact(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    contexts: Mapping[FunctionUse, Context],
) -> dict[Member, Reason]:
    refused: dict[Member, Reason] = {}
    for use, graph in graphs.items():
        reasons = exact_products(graph, typed[use], contexts[use].format)
        refused |= {(use, name): reason for name, reason in reasons.items()}
    return refused


def _given(
    graphs: Mapping[FunctionUse, ir.Graph], call_values: CallValues
) -> dict[FunctionUse, set[str]]:
    """The arguments of each use that hold what was made outside of all functions."""
    given = {
        use: {arg.name for arg in graph.args if arg.type == ir.FLOAT}
        for use, graph in graphs.items()
        if use not in call_values.inner
    }
    inner: dict[FunctionUse, set[str]] = {use: set() for use in graphs}
    for use, edge in call_values.alias:
        at, (name, _) = call_values.source((use, edge))
        if name in given.get(at, ()):
            inner[use].add(edge[0])
    return {**inner, **given}


def _ill_conditioned(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    contexts: Mapping[FunctionUse, Context],
    found: Passes,
    given: Mapping[FunctionUse, set[str]],
) -> dict[Member, Reason]:
    refused: dict[Member, Reason] = {}
    for use, graph in graphs.items():
        flowing = found.downstream[use] & found.order[use].keys()
        reasons = conditioning(graph, typed[use], contexts[use], flowing, given[use])
        refused |= {(use, name): reason for name, reason in reasons.items()}
    return refused


def _propagated(
    graphs: Mapping[FunctionUse, ir.Graph],
    eligible: Mapping[FunctionUse, Candidates],
    call_values: CallValues,
    tied: tuple[Tie, ...],
) -> Propagated:
    """Propagates, refusing members of ties that cannot all be 16-bit, until stable.

    So it refuses loop variables of TensorFlow 1 that are given float32.
    """
    while True:
        propagated = propagate(graphs, eligible, call_values)
        found = propagated.found
        refused = held_by_ties(tied, found, propagated.turning)
        refused |= held(found, call_values)
        if not refused:
            return propagated
        eligible = without(eligible, refused)  # ends, as there are fewer each time


def _products(
    module: ir.Module,
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
) -> dict[FunctionUse, frozenset[str]]:
    """For each use, its products, and its calls of functions that have products.

    A recursive call counts as having some.
    """
    found: dict[FunctionUse, frozenset[str]] = {}
    for use in reversed([*graphs]):  # callees first
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
