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
        self._unawaiting: dict[Any, PolicyView] = {}

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

    def unawaiting(
        self, twins: Twins, plan: str | Nominee, names: frozenset[str]
    ) -> PolicyView:
        """The view of a plan in which no node waits for some; `view` if there are none.

        Args:
          twins: of the policy.
          plan: its name, or one without a view of its own.
          names: of the user's nodes.
        """
        if isinstance(plan, Nominee):
            by = Plan(twins, self.parts(twins), plan)
            return PolicyView(self.twin, by, names)
        like = self.view(twins, plan)
        if not names:
            return like
        of = None if plan == FLOAT32 else twins
        if (of, plan, names) not in self._unawaiting:
            view = PolicyView(self.twin, like.plan, names)
            self._unawaiting[of, plan, names] = view
        return self._unawaiting[of, plan, names]

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
