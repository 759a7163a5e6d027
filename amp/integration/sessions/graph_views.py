"""`GraphViews`: the twin of a graph, and its views: one for each plan of each policy.

All sessions of the graph share them. Made and used by `session_twins` and `run_plans`;
no run is made here.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.assign.nominee import Nominee
from amp.integration.contests.entrants import nominee_under
from amp.integration.functions.twins import Twins
from amp.integration.process import PROCESS
from amp.integration.racing.race_log import FLOAT32
from amp.integration.sessions.planned_parts import Plan, PlannedParts
from amp.integration.sessions.policy_view import PolicyView
from amp.integration.sessions.twin_graph import TwinGraph


def lock_of(graph: Any) -> threading.RLock:
    """The lock that is held while nodes are added to the twin of a graph.

    All sessions of the graph share the twin, and may run in several threads.
    """
    lock: threading.RLock = PROCESS.session_locks.setdefault(graph, threading.RLock())
    return lock


class GraphViews:
    """The twin of a graph, and its views.

    Args:
      user: the user's graph.

    Attributes:
      twin: its twin.
      float32: the view of float32 runs.
    """

    def __init__(self, user: tf.Graph) -> None:
        self.twin = TwinGraph(user)
        self.float32 = PolicyView(self.twin, None)
        self._parts: dict[Twins, PlannedParts] = {}
        self._views: dict[tuple[Twins, str], PolicyView] = {}
        self._drafts: dict[Any, PolicyView] = {}

    @property
    def lock(self) -> threading.RLock:
        """The lock that is held while nodes are added."""
        return lock_of(self.twin.user)

    def parts(self, twins: Twins) -> PlannedParts:
        """The parts of the graph that are planned under a policy."""
        if twins not in self._parts:
            self._parts[twins] = PlannedParts(self.twin)
        return self._parts[twins]

    def view(self, twins: Twins, plan: str) -> PolicyView:
        """The view of a plan; `float32` for FLOAT32.

        Args:
          twins: of the policy.
          plan: its name.
        """
        if plan == FLOAT32:
            return self.float32
        if (twins, plan) not in self._views:
            nominee = nominee_under(twins.settled, plan)
            by = Plan(twins, self.parts(twins), nominee)
            self._views[twins, plan] = PolicyView(self.twin, by)
        return self._views[twins, plan]

    def draft(
        self, twins: Twins, plan: str | Nominee, unawaited: frozenset[str]
    ) -> PolicyView:
        """A view of a plan to compute values with (see `PolicyView`).

        Args:
          twins: of the policy.
          plan: its name, or the plan itself.
          unawaited: the names of nodes that no node of the view waits for; if there are
            none, a plan that has a name is computed with its own nodes.
        """
        if isinstance(plan, Nominee):
            by = Plan(twins, self.parts(twins), plan)
            return PolicyView(self.twin, by, draft=True, unawaited=unawaited)
        view = self.view(twins, plan)
        if not unawaited:
            return view
        key = None if plan == FLOAT32 else twins, plan, unawaited
        if key not in self._drafts:
            made = PolicyView(self.twin, view.plan, draft=True, unawaited=unawaited)
            self._drafts[key] = made
        return self._drafts[key]

    def views(self, twins: Twins) -> dict[str, PolicyView]:
        """The views of a policy so far, by the names of their plans."""
        return {plan: v for (of, plan), v in self._views.items() if of is twins}


def views_of(graph: Any) -> GraphViews:
    """The views of a graph; new ones if its nodes have changed since they were added.

    To be called while the lock is held.
    """
    views: GraphViews | None = PROCESS.sessions.get(graph)
    if views is None or views.twin.outdated():
        views = PROCESS.sessions[graph] = GraphViews(graph)
    return views
