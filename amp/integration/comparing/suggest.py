"""Searches for the nodes to keep in float32, so that results are within a bound.

Used by `compare`. Plans are made with some of the 16-bit nodes kept in float32, and
run; the last one by `Policy.keep` itself, as a job would. No error is computed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from amp.graph_rewrite.assign.nominee import CUT, Nominee
from amp.graph_rewrite.comparison.comparison import worst
from amp.graph_rewrite.comparison.suggestion import Suggestion
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.rewrite import Prepared
from amp.integration.comparing.paired_runs import PairedRuns
from amp.integration.comparing.sides import Sides
from amp.integration.observing import accuracy
from amp.policy import Policy

SECONDS, MOST = 300.0, 400  # of a search, and plans that it runs

_Place: TypeAlias = tuple[FunctionUse, str]
_WHY = Reason("keep", "amp.compare(suggest=...)")


def suggestion(sides: Sides, runs: PairedRuns, bound: float) -> Suggestion:
    """Finds a smallest set of nodes::

        the nodes at fault = bisection in the order of the graph (accuracy.search)
        while some of them can be left out: leave them out, halves first
        run again with their names in Policy.keep

    No node of the result can be left out alone. It need not be the smallest set of all:
    that would take a run for every set.
    """
    return _Search(sides, runs, bound).found()


class _Search:
    def __init__(self, sides: Sides, runs: PairedRuns, bound: float) -> None:
        self._sides, self._runs, self._bound = sides, runs, bound
        self._end = time.perf_counter() + SECONDS
        self._met: dict[frozenset[int], float] = {}
        self._left = 0  # nodes that the plan run last has in 16 bits
        low = sides.prepared.foreseen(CUT).low
        self._nodes: list[_Place] = [
            (use, name)
            for use, one in sides.prepared.priced.analysis.uses.items()
            for name in one.graph.order
            if name in low[use]
        ]

    def found(self) -> Suggestion:
        nothing: frozenset[int] = frozenset()
        if self._is_fine(nothing):
            return self._told(nothing, (), self._met[nothing])
        kept = accuracy.search(
            accuracy.Suspects(self._nodes), self._is_fine, self._spent
        )
        kept = _without_idle(kept, self._is_fine, self._spent)
        patterns = patterns_of((self._nodes[i][1] for i in sorted(kept)), self._names())
        return self._told(kept, patterns, self._error_by_policy(patterns))

    def _told(
        self, kept: frozenset[int], patterns: tuple[str, ...], error: float
    ) -> Suggestion:
        return Suggestion(
            bound=self._bound,
            keep=patterns,
            nodes=len(kept),
            error=error,
            all=self._sides.forced,
            left=self._left,
            tried=len(self._met),
            complete=not self._spent(),
        )

    def _spent(self) -> bool:
        return time.perf_counter() > self._end or len(self._met) >= MOST

    def _is_fine(self, kept: frozenset[int]) -> bool:
        if kept not in self._met:
            nodes: dict[FunctionUse, dict[str, Reason]] = {}
            for use, name in (self._nodes[i] for i in kept):
                nodes.setdefault(use, {})[name] = _WHY
            self._met[kept] = self._error(self._sides.prepared, CUT.keeping(nodes))
        return self._met[kept] <= self._bound

    def _error_by_policy(self, patterns: tuple[str, ...]) -> float:
        policy = self._sides.call.policy
        kept = Policy.make(policy, keep=(*policy.keep, *patterns))
        return self._error(self._sides.prepare(kept), CUT)

    def _error(self, prepared: Prepared, nominee: Nominee) -> float:
        pair = self._sides.planned(prepared, nominee)
        self._left = sum(map(len, prepared.foreseen(nominee).low.values()))
        watched = pair.watched()
        judged = [each for each in watched if each.role] or watched
        return worst(self._sides.tensors(pair, judged, self._runs))

    def _names(self) -> frozenset[str]:
        graphs = self._sides.call.module.graphs()
        return frozenset(name for graph in graphs for name in graph.nodes)


def _without_idle(
    kept: frozenset[int],
    is_fine: Callable[[frozenset[int]], bool],
    spent: Callable[[], bool],
) -> frozenset[int]:
    """Leaves out what can be: ever smaller parts, down to single nodes.

    The last steps of delta debugging (Zeller and Hildebrandt, 2002).
    """
    size = len(kept) // 2
    while size and not spent():
        order = sorted(kept)
        for start in range(0, len(order), size):
            less = kept - frozenset(order[start : start + size])
            if len(less) < len(kept) and not spent() and is_fine(less):
                kept = less
        size = size // 2
    return kept


def patterns_of(names: Iterable[str], given: frozenset[str]) -> tuple[str, ...]:
    """Patterns for `Policy.keep` that match nodes of a function with calls inlined.

    The name of a node that came in with a call begins with the call's. The pattern has
    to match it, and also the name that it has in its own function.

    Args:
      names: of the nodes.
      given: the names of all nodes of the function as given, and of what it calls.
    """
    found = [name if name in given else f"*{_own(name, given)}" for name in names]
    return tuple(dict.fromkeys(found))


def _own(name: str, given: frozenset[str]) -> str:
    """The longest end of a name that is a node's as given."""
    parts: Sequence[str] = name.split("/")
    ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
    return next((end for end in ends if end in given), parts[-1])
