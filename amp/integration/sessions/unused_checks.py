"""Which checks of gradients a session's run has to make: of those that it uses.

An update waits until all gradients of its call are found finite. A run that is fed
gradients, or what they are computed from, uses some of them only; to compute the others
may take a placeholder that nobody feeds, and what they hold must not stop the update.
Called by `session_hooks`. No node is added here, and nothing is run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from amp.integration.observing import step_variants
from amp.loss_scaling import provenance

_PASSED = np.asarray(True)
# Of the graph: what is known of its runs has its tensors in it, and so nothing else may
# hold it. Not a str: meta graphs are exported with the collections that have a str key.
_COLLECTION = ("amp", "unused_checks")


def answers(
    graph: Any, targets: Sequence[Any], fetches: Sequence[Any], feeds: Collection[Any]
) -> dict[Any, Any]:
    """What to feed besides: True for each check of a gradient that is not used.

    Args:
      graph: the user's graph.
      targets, fetches: the operations and tensors of a run.
      feeds: the references (`tensor.ref()`) of the tensors that are fed.

    Returns:
      Values to feed, by the references of the checks. Empty for runs that use every
      gradient whose call they make, and for those that take none.
    """
    if not feeds or not provenance.noted(graph):
        return {}
    known = _known(graph)
    # The graph keeps them, so that no other object has their ids.
    key = (*map(id, targets), None, *map(id, fetches), None, *feeds)
    if key not in known:
        known[key] = _unused(graph, targets, fetches, feeds)
    return known[key]


def _known(graph: Any) -> dict[Any, dict[Any, Any]]:
    """The answers of a graph so far, by a run's operations, fetches and feeds."""
    place: list[dict[Any, dict[Any, Any]]] = graph.get_collection_ref(_COLLECTION)
    if not place:
        place.append({})
    return place[0]


def _unused(
    graph: Any, targets: Sequence[Any], fetches: Sequence[Any], feeds: Collection[Any]
) -> dict[Any, Any]:
    computed = [tensor.op for tensor in fetches if tensor.ref() not in feeds]
    roots = [*targets, *computed]
    made = step_variants.executed(roots, feeds)
    asked = [one for one in provenance.noted(graph) if _asks(one, made)]
    if not asked:
        return {}
    flags = [flag for one in asked for flag in (one.call.finite, one.check)]
    ends = {*feeds, *(flag.ref() for flag in flags if flag is not None)}
    used = step_variants.executed(roots, ends)
    whole = {id(one.call) for one in asked if one.op.name in used}
    # Of a call of which nothing is used, not even the scale is to take notice.
    passed = [
        one.check if id(one.call) in whole else one.call.finite
        for one in asked
        if one.op.name not in used
    ]
    return {
        flag.ref(): _PASSED
        for flag in passed
        if flag is not None and graph.is_feedable(flag)
    }


def _asks(one: provenance.Noted, made: Collection[str]) -> bool:
    """Whether a run asks if a gradient is finite, alone or together with others."""
    flags = (one.call.finite, one.check)
    return any(flag is not None and flag.op.name in made for flag in flags)
