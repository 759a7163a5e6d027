"""`PlannedParts`: the parts of a session's graph that are planned, for one policy.

A part has the nodes that the user had built, and no earlier part has, when a run needed
one of them. Every view of the policy (`policy_view`) adds every part, each by its own
plan; nothing is planned, rewritten or imported here.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amp.graph_rewrite.assign.nominee import CUT, Nominee
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Prepared
from amp.integration.functions.twins import Twins
from amp.integration.sessions.increments import Increment
from amp.integration.sessions.twin_graph import TwinGraph
from amp.integration.sessions.user_graph import source_of


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedIncrement:
    """An increment that was analyzed and priced, for any number of plans.

    Attributes:
      increment: as one view found it.
      prepared: the same, analyzed and priced.
      same: whether it is the same for every view: it reads nothing that is rewritten.
    """

    increment: Increment
    prepared: Prepared
    same: bool


@dataclasses.dataclass(slots=True, eq=False)
class Part:
    """Nodes that are planned together.

    Attributes:
      name: what it is called in reports and warnings, by the run that needed it.
      nodes: their NodeDefs, in the order in which the user built them.
      compute: whether any of them gains by 16 bits; if not, they stay as they are.
      fed: the names of the nodes that were fed by a run so far, and stay as they are.
      sizes: the shapes that were fed so far.
      prepared: as the first view found it; None before one asked, and when no more
        plans will be made.
      compiled: whether XLA compiles any of it, as known once it was prepared.
    """

    name: str
    nodes: tuple[Any, ...]
    compute: bool
    fed: frozenset[str]
    sizes: Mapping[ir.Edge, ir.Shape]
    prepared: PreparedIncrement | None = None
    compiled: bool = False


class PlannedParts:
    """The parts of one graph, in the order in which they were needed.

    Args:
      twin: of the graph.

    Attributes:
      parts: each planned part.
      racing: what races between plans of them, as long as it is there.
    """

    def __init__(self, twin: TwinGraph) -> None:
        self.parts: list[Part] = []
        self.racing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._twin = twin
        self._covered: set[str] = set()
        self._fed: set[str] = set()
        self._sizes: dict[ir.Edge, ir.Shape] = {}
        self._behind: set[str] = set()  # depend on an unscaled gradient
        self._looping: set[str] = set()  # inside a while loop of TensorFlow 1

    def behind(self, name: str) -> bool:
        """Whether a node depends on an unscaled gradient (attribute UNSCALE)."""
        return name in self._behind

    def halved(self, part: Increment) -> bool:
        """Whether a part of a loop is in an increment and another in the twin already.

        Such an increment is not rewritten: the rewriter needs all nodes of a loop.
        """
        read = {edge[0] for edge in part.shown.values()}
        return not read.isdisjoint(self._looping)

    def cover(self, asked: Sequence[str], fed: Mapping[ir.Edge, ir.Shape]) -> None:
        """Adds a part if a run needs nodes that are in none.

        Args:
          asked: the names of the operations to run, and of those that make fetched
            tensors.
          fed: the edges that are fed, with the shapes as far as they are known.
        """
        self._fed.update(name for name, _ in fed)
        self._sizes.update(fed)
        names = [*asked, *(name for name, _ in fed)]
        missing = [name for name in names if name not in self._covered]
        if not missing:
            return
        known = self._twin.definitions
        known.update(self._twin.user)
        has = self._covered.__contains__
        nodes = known.needed(missing, has)
        compute = known.compute(nodes)
        if compute:
            nodes = known.missing(has)  # a plan sees the whole graph
        self._follow(nodes)
        part = Part(
            f"a session's graph ({some(asked)})",
            tuple(nodes),
            compute,
            frozenset(self._fed),
            dict(self._sizes),
        )
        # Last: an interruption before leaves all to the next run.
        self.parts.append(part)
        self._covered.update(node.name for node in nodes)

    def settle(self, ended: Any) -> None:
        """Lets go what is only needed to make further plans, if nothing else races.

        Args:
          ended: what races no more, or never did.
        """
        self.racing.discard(ended)
        if not self.racing:
            for part in self.parts:
                part.prepared = None

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


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """What a view's plan of a part came to.

    Attributes:
      part: the part.
      report: on the plan.
      low: the nodes that it holds in 16 bits, by the use of a function.
      high: those that it might, and does not.
      changed: the names of the part's nodes that are not as the user built them.
      digest: a name for the plan, the same in every run of the job.
    """

    part: Part
    report: Report
    low: Mapping[FunctionUse, frozenset[str]]
    high: Mapping[FunctionUse, frozenset[str]]
    changed: frozenset[str]
    digest: str


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """By which plan the nodes of a view are rewritten.

    Attributes:
      twins: of the policy.
      parts: of the graph that are planned, the same for all plans of the policy.
      nominee: the plan.
    """

    twins: Twins
    parts: PlannedParts
    nominee: Nominee = CUT


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
