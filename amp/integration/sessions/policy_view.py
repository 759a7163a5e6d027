"""`PolicyView`: the nodes of a twin graph that run under one policy.

Made by `session_twins`. Finds them by the user's names, and has missing ones rewritten
and added; no hook lives here, and nothing is run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amp.graph_rewrite.graph import ir, serde
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import rewrite
from amp.graph_rewrite.steps import uncollected
from amp.integration import fallback, reports
from amp.integration.functions import definitions, failures, shape_inference
from amp.integration.functions.twins import Twins
from amp.integration.measuring import job_timer
from amp.integration.sessions import shown_casts
from amp.integration.sessions.increments import Increment, bypassed, increment
from amp.integration.sessions.twin_graph import TwinGraph
from amp.integration.sessions.user_graph import before_compute, source_of

_LOW = frozenset({ir.BFLOAT16, ir.HALF})
_UNTRIED = "off: nodes of a session's graph are there once, for their state"


class Uncastable(Exception):
    """A run would read a tensor list whose elements have another type in the twin.

    A tensor list cannot be cast, so such a run has to use float32 nodes.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A run of the user's graph, translated to the twin.

    Attributes:
      targets: the twin's operations to run.
      fetches: the twin's tensors to fetch, with the types and values of the user's.
      feeds: the reference of the twin's tensor, by that of the user's tensor fed.
    """

    targets: list[Any]
    fetches: list[Any]
    feeds: Mapping[Any, Any]


class PolicyView:
    """The operations of a twin that runs under one policy use, by the user's names.

    Args:
      twin: the graph that they are in; views of other policies have theirs in it too.
      twins: of the policy; None for the view of float32 runs.
    """

    def __init__(self, twin: TwinGraph, twins: Twins | None) -> None:
        self._twin = twin
        self._twins = twins
        self._own: dict[str, Any] = {}
        self._behind: set[str] = set()  # depend on an unscaled gradient
        self._looping: set[str] = set()  # inside a while loop of TensorFlow 1
        self._fed: set[str] = set()  # fed by a run so far, so not rewritten
        self._bypassed: set[str] = set()  # as `increments.bypassed` says
        self._shown: dict[ir.Edge, Any] = {}

    def operation(self, name: str) -> Any:
        """The twin's operation for the user's of that name, None if there is none."""
        return self._own.get(name) or self._twin.shared.get(name)

    def unchanged(self, name: str) -> bool:
        """Whether the twin has a node as the user's graph has it, with its inputs."""
        return name in self._twin.shared and name not in self._own

    def behind(self, name: str) -> bool:
        """Whether a node depends on an unscaled gradient (attribute UNSCALE)."""
        return name in self._behind

    def steps(self, edge: ir.Edge) -> tuple[int, ...]:
        """The types to cast the twin's tensor to, in turn: see `increments.ViewOfTwin`.

        An emulated operation has the user's type, but its value may have to be rounded.
        """
        if self._twins is None or edge[0] not in self._own:
            return ()
        tensor = self._own[edge[0]].outputs[edge[1]]
        user = self._twin.user_tensor(edge)
        if tensor.dtype.base_dtype != user.dtype.base_dtype:
            return (int(user.dtype.base_dtype.as_datatype_enum),)
        policy = self._twins.settled.policy
        if policy is not None and policy.emulate and shown_casts.rounds(tensor):
            return (ir.DTYPE_NUMBERS[policy.dtype], ir.FLOAT)
        return ()

    @property
    def rewritten(self) -> bool:
        """Whether any node of this view differs from the user's graph."""
        return self._twins is not None and bool(self._own)

    def accepts(self, tensor: Any) -> bool:
        """Whether a run in this view may feed the user's tensor.

        Not if it has another type in the twin, or is one of `increments.bypassed`.
        """
        name = tensor.op.name
        operation = self.operation(name)
        if self._twins is None or operation is None:
            return True
        same = operation.outputs[tensor.value_index].dtype == tensor.dtype
        return bool(same) and name not in self._bypassed

    def run(
        self, targets: Sequence[Any], fetches: Sequence[Any], feeds: Sequence[Any]
    ) -> Run:
        """Translates a run; first adds the nodes to the twin that it lacks.

        Args:
          targets, fetches, feeds: operations and tensors of the user's graph.

        Raises:
          Uncastable: the run is possible in the float32 view only.
        """
        fed = [tensor.op.name for tensor in feeds]
        self._fed.update(fed)
        asked = [*(o.name for o in targets), *(t.op.name for t in fetches)]
        with uncollected():
            self._add(asked, fed)
        return Run(
            [self.operation(operation.name) for operation in targets],
            [self._value(_edge(tensor)) for tensor in fetches],
            {tensor.ref(): self._tensor(_edge(tensor)).ref() for tensor in feeds},
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

    def _add(self, asked: Sequence[str], fed: Sequence[str]) -> None:
        """Adds the nodes that a run needs and the twin lacks, rewritten by the policy.

        Args:
          asked: names of the operations to run and those that make fetched tensors.
          fed: names of the operations that make fed tensors.

        Raises:
          AmpError: under `strict`, what the rewrite found wrong.
        """
        known = self._twin.definitions
        missing = [name for name in (*asked, *fed) if self.operation(name) is None]
        if not missing:
            return
        known.update(self._twin.user)
        nodes = known.needed(missing, self)
        compute = known.compute(nodes)
        if self._twins is not None and compute:
            nodes = known.missing(self)  # a plan sees the whole graph
        part = increment(nodes, known, self)
        if any(self._uncastable(edge) for edge in part.shown.values()):
            raise Uncastable
        self._follow(nodes)
        if self._twins is None or not compute or self._halves(part):
            left = self._twins is None and compute
            alike = before_compute(nodes) if left else set(part.fresh)
            self._place(part, part.proto, alike)
        elif not self._rewritten(self._twins, part, nodes, _some(asked)):
            self._place(part, part.proto, set(part.fresh))

    def _uncastable(self, edge: ir.Edge) -> bool:
        changed = self._twins is not None and edge[0] in self._own
        return changed and shown_casts.is_list(self._tensor(edge))

    def _follow(self, nodes: Iterable[Any]) -> None:
        """Records which new nodes are in loops, and which use unscaled gradients."""
        behind, looping = self._behind, self._looping
        before = -1
        while before != len(behind) + len(looping):
            before = len(behind) + len(looping)
            for node in nodes:
                sources = [source_of(t) for t in node.input if not t.startswith("^")]
                if ir.UNSCALE in node.attr or not behind.isdisjoint(sources):
                    behind.add(node.name)
                kind = facts(node.op).kind
                inside = kind is Kind.ENTER or not looping.isdisjoint(sources)
                if inside and kind is not Kind.EXIT:
                    looping.add(node.name)

    def _halves(self, part: Increment) -> bool:
        """Whether a part of a loop is in the increment and another in the twin already.

        Such an increment is not rewritten: the rewriter needs all nodes of a loop.
        """
        read = {edge[0] for edge in part.shown.values()}
        return not read.isdisjoint(self._looping)

    def _rewritten(
        self, twins: Twins, part: Increment, nodes: Sequence[Any], asked: str
    ) -> bool:
        """Rewrites an increment and adds it to the twin.

        Args:
          twins: of the view's policy.
          part: the increment.
          nodes: its new nodes, as the user's graph has them.
          asked: says in the report what the run was asked for.

        Returns:
          Whether it was added: not if the rewrite failed or changed nothing.
        """
        what = f"a session's graph ({asked})"
        policy = twins.settled.policy
        assert policy is not None
        attempt = failures.as_it_was(what, policy.strict)
        report = fallback.attempt(
            attempt, lambda: self._rewrite(twins, part, nodes), lambda: None
        )
        if report is None:
            return False
        reports.add(dataclasses.replace(report, function=what), policy.report)
        return report.trial == _UNTRIED

    def _rewrite(self, twins: Twins, part: Increment, nodes: Sequence[Any]) -> Report:
        """Rewrites an increment, and adds it to the twin if that changed anything.

        Returns:
          The report, whose `trial` is `_UNTRIED` if the increment was added.
        """

        def shape(edge: ir.Edge) -> ir.Shape:
            return self._twin.user_shape(part.shown.get(edge[0], edge))

        module = serde.read_graph(part.proto, shape, definitions.traced_shapes)
        twins.keep_patterns.met(module)
        result = rewrite(
            module,
            twins.settled,
            feeds=frozenset(part.stand_ins | self._fed),
            suffix=definitions.new_suffix(),
            timer=job_timer.stored,
            sizes=shape_inference.at_call(()),
        )
        if result.graph.main is module.main:
            return result.report
        made = result.graph.main.nodes
        alike = {node.name for node in nodes if made[node.name].pristine}
        self._place(part, serde.write_graph(result.graph), alike)
        self._bypassed |= bypassed(nodes, result.graph.main, part.shown)
        return dataclasses.replace(result.report, trial=_UNTRIED)

    def _place(self, part: Increment, proto: Any, alike: set[str]) -> None:
        """Imports an increment into the twin, and records which nodes all views share.

        A node is shared if it was not changed and all that it reads is shared.

        Args:
          part: the increment.
          proto: its GraphDef, rewritten or as it was.
          alike: the new nodes that were not changed. Those that are not shared are
            removed from this set.
        """
        stand_ins = part.stand_ins
        nodes = [node for node in proto.node if node.name not in stand_ins]
        del proto.node[:]
        proto.node.extend(nodes)
        made = self._twin.add(proto, part.edges, part.controls)
        known, shared = self._twin.definitions.nodes, self._twin.shared
        count = -1
        while count != len(alike):
            count = len(alike)
            for name in part.fresh:
                sources = set(map(source_of, known[name].input)) - alike
                if name in alike and not sources <= shared.keys():
                    alike.discard(name)
        for name in part.fresh:
            place = shared if name in alike else self._own
            place[name] = made[name]


def _edge(tensor: Any) -> ir.Edge:
    return tensor.op.name, tensor.value_index


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
