"""`PolicyView`: the nodes of a twin graph that run by one plan, or in float32.

Made by `graph_views`. Finds them by the user's names, and has missing ones rewritten
and added; no hook lives here, and nothing is run.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Mapping, Sequence
from typing import Any

from amp.graph_rewrite.assign.nominee import CUT
from amp.graph_rewrite.graph import calls, generators, ir, serde
from amp.graph_rewrite.rewrite import Prepared, prepare
from amp.graph_rewrite.steps import uncollected
from amp.integration import fallback
from amp.integration.contests import stored_checks
from amp.integration.measuring import job_timer
from amp.integration.racing import exemptions
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime import definitions, failures, shape_inference
from amp.integration.sessions import shown_casts
from amp.integration.sessions.increments import Increment, bypassed, increment
from amp.integration.sessions.planned_parts import (
    Part,
    Plan,
    Planned,
    PreparedIncrement,
)
from amp.integration.sessions.twin_graph import TwinGraph
from amp.integration.sessions.user_graph import before_compute, sources_of, unaltered


class Uncastable(Exception):
    """A run would read a tensor list whose elements have another type in the twin.

    A tensor list cannot be cast, so such a run has to use float32 nodes.
    """


# Tensors of a graph cannot be asked whether they are equal.
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run of the user's graph, translated to the twin.

    Attributes:
      targets: the twin's operations to run.
      fetches: the twin's tensors to fetch, with the types and values of the user's.
      feeds: the reference of the twin's tensor, by that of the user's tensor fed.
      plan: the name of the plan of the view, FLOAT32 in float32.
      also: values that are fed besides, by the reference of the twin's tensor.
      asked: whether the user asked for it, so that its options and metadata are his.
    """

    targets: list[Any]
    fetches: list[Any]
    feeds: Mapping[Any, Any]
    plan: str = FLOAT32
    also: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    asked: bool = True


class PolicyView:
    """The operations of a twin that runs by one plan use, by the user's names.

    Args:
      twin: the graph that they are in; other views have theirs in it too.
      plan: None for the view of float32 runs.
      draft: whether it is there to compute values with, and not to be run in place of
        the original: without clusters, most checks and reports.
      unawaited: names of the user's nodes for which no node of a draft waits.

    Attributes:
      plan: as given.
      planned: what came of the parts that gain by 16 bits, in their order.
    """

    def __init__(
        self,
        twin: TwinGraph,
        plan: Plan | None,
        *,
        draft: bool = False,
        unawaited: frozenset[str] = frozenset(),
    ) -> None:
        self.planned: list[Planned] = []
        self._reported = 0  # how many of those
        self._twin, self.plan = twin, plan
        self._draft, self._unawaited = draft, unawaited
        self._early: set[str] = set()  # the names of nodes that would wait for them
        self._added = 0  # how many of the plan's parts, with those that it cannot have
        self._uncast: set[str] = set()  # the names of the nodes of these
        self._own: dict[str, Any] = {}
        self._bypassed: set[str] = set()  # as `increments.bypassed` says
        self._shown: dict[ir.Edge, Any] = {}

    def operation(self, name: str) -> Any:
        """The twin's operation for the user's of that name, None if there is none."""
        return self._own.get(name) or self._shared(name)

    def _shared(self, name: str) -> Any:
        return None if name in self._early else self._twin.shared.get(name)

    def has(self, name: str) -> bool:
        """Whether there is an operation for the user's of that name."""
        return self.operation(name) is not None

    def unchanged(self, name: str) -> bool:
        """Whether the twin has a node as the user's graph has it, with its inputs."""
        return name not in self._own and self._shared(name) is not None

    def behind(self, name: str) -> bool:
        """Whether a node depends on an unscaled gradient (attribute UNSCALE)."""
        return self.plan is not None and self.plan.parts.behind(name)

    def steps(self, edge: ir.Edge) -> tuple[int, ...]:
        """The types to cast the twin's tensor to, in turn: see `increments.ViewOfTwin`.

        An emulated operation has the user's type, but its value may have to be rounded.
        """
        if self.plan is None or edge[0] not in self._own:
            return ()
        tensor = self._own[edge[0]].outputs[edge[1]]
        user = self._twin.user_tensor(edge)
        if tensor.dtype.base_dtype != user.dtype.base_dtype:
            return (int(user.dtype.base_dtype.as_datatype_enum),)
        policy = self.plan.twins.settled.policy
        if policy is not None and policy.emulate and shown_casts.rounds(tensor):
            return (ir.DTYPE_NUMBERS[policy.dtype], ir.FLOAT)
        return ()

    def news(self) -> list[Planned]:
        """What was planned since this was last asked."""
        begin, self._reported = self._reported, len(self.planned)
        return self.planned[begin:]

    def accepts(self, tensor: Any) -> bool:
        """Whether a run in this view may feed the user's tensor.

        Not if it has another type in the twin, or is one of `increments.bypassed`.
        """
        name = tensor.op.name
        operation = self.operation(name)
        if self.plan is None or operation is None:
            return True
        same = operation.outputs[tensor.value_index].dtype == tensor.dtype
        return bool(same) and name not in self._bypassed

    def run(
        self,
        targets: Sequence[Any],
        fetches: Sequence[Any],
        feeds: Mapping[Any, ir.Shape],
    ) -> Run:
        """Translates a run; first adds the nodes to the twin that it lacks.

        Args:
          targets, fetches: operations and tensors of the user's graph.
          feeds: the shapes of what is fed, as far as they are known, by the reference
            (`tensor.ref()`) of the user's tensor.

        Raises:
          Uncastable: the run is possible in the float32 view only.
          AmpError: what the rewrite found wrong.
        """
        tensors = {ref: ref.deref() for ref in feeds}
        fed = {edge_of(tensors[ref]): shape for ref, shape in feeds.items()}
        asked = [*(o.name for o in targets), *(t.op.name for t in fetches)]
        with uncollected():
            if self._unawaited:
                self._twin.definitions.update(self._twin.user)
                self._early = self._twin.definitions.waiting_for(self._unawaited)
            self._add(asked, fed)
        return Run(
            [self.operation(operation.name) for operation in targets],
            [self._value(edge_of(tensor)) for tensor in fetches],
            {ref: self._tensor(edge_of(given)).ref() for ref, given in tensors.items()},
            FLOAT32 if self.plan is None else self.plan.nominee.name,
        )

    def _tensor(self, edge: ir.Edge) -> Any:
        return self.operation(edge[0]).outputs[edge[1]]

    def _value(self, edge: ir.Edge) -> Any:
        """The tensor to fetch for the user's edge, cast to its type if need be."""
        tensor, steps = self._tensor(edge), self.steps(edge)
        if not steps:
            return tensor
        if edge not in self._shown:
            proto, last = shown_casts.chain(edge, tensor, steps)
            made = self._twin.add(proto, {edge: tensor}, {})
            self._shown[edge] = made[last].outputs[0]
        return self._shown[edge]

    def _add(self, asked: Sequence[str], fed: Mapping[ir.Edge, ir.Shape]) -> None:
        """Adds the nodes that a run needs and the twin lacks, rewritten by the plan.

        A part that reads what cannot be cast is passed over, and so is every later one
        that reads of it. Only runs that need nodes of them are not possible here.
        """
        names = [*asked, *(name for name, _ in fed)]
        if self.plan is None:
            return self._add_as_they_are([n for n in names if not self.has(n)])
        parts = self.plan.parts
        parts.cover(asked, fed)
        for part in parts.parts[self._added :]:
            if not self._add_part(self.plan, part):
                self._uncast.update(node.name for node in part.nodes)
            self._added += 1
        ancestors = self._twin.definitions.ancestors
        if self._uncast and not self._uncast.isdisjoint(ancestors(names)):
            raise Uncastable
        return None

    def _add_as_they_are(self, missing: Sequence[str]) -> None:
        if not missing:
            return
        known = self._twin.definitions
        known.update(self._twin.user)
        nodes = known.needed(missing, self.has)
        part = increment(nodes, known, self)
        compute = known.compute(nodes)
        alike = before_compute(nodes) if compute else set(part.fresh)
        self._place(part, part.proto, self._alike(part, alike))

    def _add_part(self, plan: Plan, part: Part) -> bool:
        """Adds a part, if all that it reads can be cast; returns whether it did."""
        if any(not self._uncast.isdisjoint(sources_of(node)) for node in part.nodes):
            return False
        made = increment(part.nodes, self._twin.definitions, self)
        if any(self._uncastable(edge) for edge in made.shown.values()):
            return False
        whole = part.compute and not plan.parts.halved(made)
        if not whole or not self._rewritten(plan, part, made):
            self._place(made, made.proto, self._alike(made, set(made.fresh)))
        return True

    def _uncastable(self, edge: ir.Edge) -> bool:
        return edge[0] in self._own and shown_casts.is_list(self._tensor(edge))

    def _rewritten(self, plan: Plan, part: Part, made: Increment) -> bool:
        """Has a part rewritten, and adds it to the twin if that changed anything.

        If the cheapest plan fails, the part is as the user built it in this view.

        Returns:
          Whether it was added.

        Raises:
          AmpError: what the rewrite found wrong, under `strict` and in other plans.
        """
        rewrite = functools.partial(self._rewrite, plan, part, made)
        if plan.nominee.name != CUT.name:
            return rewrite()
        policy = plan.twins.settled.policy
        attempt = failures.as_it_was(part.name, policy is not None and policy.strict)
        return fallback.attempt(attempt, rewrite, lambda: False)

    def _rewrite(self, plan: Plan, part: Part, made: Increment) -> bool:
        found = self._prepared(plan, part, made)
        prepared, nominee = found.prepared, plan.nominee
        if self._draft:
            draft = prepared.draft(nominee, definitions.new_suffix())
            return self._put(plan, part, found, draft) is not None
        result = prepared.made(nominee, definitions.new_suffix())
        changes = self._put(plan, part, found, result.graph)
        report = dataclasses.replace(result.report, function=part.name)
        digest, low = stored_checks.digest(prepared, result.low), result.low
        uses = prepared.priced.analysis.uses.items()
        none: frozenset[str] = frozenset()
        high = {u: none.union(one.found.allowed) - low.get(u, none) for u, one in uses}
        changed = frozenset(changes or ())
        self.planned.append(Planned(part, report, low, high, changed, digest))
        return changes is not None

    def _put(
        self, plan: Plan, part: Part, found: PreparedIncrement, made: ir.Module
    ) -> set[str] | None:
        """Adds a part as it was rewritten, if that changed anything.

        Returns:
          The names of its nodes that are not as the user built them; None if it was not
          added.
        """
        graph, fresh = made.main, found.increment.fresh
        if graph is found.prepared.given.main:
            return None
        changed = {name for name in fresh if not graph.nodes[name].pristine}
        alike = self._alike(found.increment, set(fresh) - changed)
        apart = self._apart(plan, made, alike)
        self._place(found.increment, serde.write_graph(apart), alike)
        self._bypassed |= bypassed(part.nodes, graph, found.increment.shown)
        return changed

    def _apart(self, plan: Plan, made: ir.Module, shared: set[str]) -> ir.Module:
        """A rewritten part that draws other random numbers than those of other plans.

        Args:
          plan: the plan of the view.
          made: the part.
          shared: the names of nodes that all views share.
        """
        policy, form = plan.twins.settled.policy, plan.nominee.name
        if policy is None or exemptions.why_not(policy):
            return made
        return generators.drawing_apart(made, form, shared, made.functions)

    def _alike(self, part: Increment, unchanged: set[str]) -> set[str]:
        """The new nodes that all views share: all that they read is shared, too."""
        known, alike = self._twin.definitions.nodes, unchanged - self._early
        return unaltered(part.fresh, alike, known, self.unchanged)

    def _prepared(self, plan: Plan, part: Part, made: Increment) -> PreparedIncrement:
        """A part, analyzed and priced: once for all views that find the same there."""
        read = {edge[0] for edge in made.shown.values()} | made.controls.keys()
        same = all(map(self.unchanged, read))
        if same and part.prepared is not None and part.prepared.same:
            return part.prepared
        found = PreparedIncrement(made, self._prepare(plan, part, made), same)
        part.prepared = part.prepared or found
        uses = calls.uses_with_weights(found.prepared.given)
        part.compiled = part.compiled or any(use.xla for use in uses)
        return found

    def _prepare(self, plan: Plan, part: Part, made: Increment) -> Prepared:
        @functools.cache  # every phase asks
        def shape(edge: ir.Edge) -> ir.Shape:
            return self._twin.user_shape(made.shown.get(edge[0], edge))

        module = serde.read_graph(made.proto, shape, definitions.traced_shapes)
        plan.twins.met(module)
        nodes = module.main.nodes
        fed = {edge: size for edge, size in part.sizes.items() if edge[0] in nodes}
        return prepare(
            module,
            plan.twins.settled,
            feeds=frozenset(made.stand_ins | part.fed),
            timer=job_timer.stored,
            sizes=shape_inference.at_call((), fed),
        )

    def _place(self, part: Increment, proto: Any, alike: set[str]) -> None:
        """Imports an increment into the twin, and records which nodes all views share.

        One that another view has shared already is not imported again.

        Args:
          part: the increment.
          proto: its GraphDef, rewritten or as it was.
          alike: the new nodes that all views share.
        """
        shared = self._twin.shared
        there = {name: shared[name] for name in alike & shared.keys()}
        left_out = part.stand_ins | there.keys()
        nodes = [node for node in proto.node if node.name not in left_out]
        del proto.node[:]
        proto.node.extend(nodes)
        outputs = {
            (name, index): output
            for name, operation in there.items()
            for index, output in enumerate(operation.outputs)
        }
        edges, controls = {**part.edges, **outputs}, {**part.controls, **there}
        for name in self._unawaited:
            controls.pop(name, None)
        _wait_for_none_of(self._unawaited, proto)
        made = self._twin.add(proto, edges, controls)
        for name in part.fresh:
            if name not in there:
                place = shared if name in alike else self._own
                place[name] = made[name]


def _wait_for_none_of(names: Container[str], proto: Any) -> None:
    """Takes some nodes out of the control inputs of a GraphDef's."""
    for node in proto.node:
        kept = [t for t in node.input if t[0] != "^" or t[1:] not in names]
        if len(kept) < len(node.input):
            node.input[:] = kept


def edge_of(tensor: Any) -> ir.Edge:
    """The edge of a tensor of the user's graph."""
    return tensor.op.name, tensor.value_index
