"""Groups of nodes that can each run as one node, in time linear in nodes and edges.

Works on names and links only: the caller says which nodes may be joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

# A dependency (source, reader) and whether its two ends may be in one group.
Link: TypeAlias = tuple[str, str, bool]


def convex(nodes: Iterable[str], links: Sequence[Link]) -> dict[str, str]:
    """Joins nodes into convex groups; returns each node's group, named by a member.

    No path leaves a group and returns to it, and the groups depend on each other
    without a cycle, so that each group can run as one node::

        once on the reversed links, then once on the links:
          level = largest number of links that may not be joined on a path to the node
          join the two ends of a link that may be joined if their levels are equal

    Levels never fall along a path, and they rise on each link that is not joined: by
    definition if it may not be joined, and otherwise because equal levels are joined.
    So a path that leaves a group never comes back to its level. The second pass runs on
    the groups of the first. Levels from the reversed links put a node that only the
    backward pass reads beside its readers; levels from the links join a side branch
    with its source.
    """
    group = {name: name for name in nodes}
    back = [(reader, source, joins) for source, reader, joins in links]
    return _joined(_joined(group, back), links)


def _joined(group: Mapping[str, str], links: Sequence[Link]) -> dict[str, str]:
    outer = [
        (group[source], group[reader], joins)
        for source, reader, joins in links
        if group[source] != group[reader]
    ]
    levels = _levels(set(group.values()), outer)
    parent = {name: name for name in levels}
    for source, reader, joins in outer:
        if joins and levels[source] == levels[reader]:
            parent[_top(parent, source)] = _top(parent, reader)
    return {name: _top(parent, own) for name, own in group.items()}


def _levels(nodes: Iterable[str], links: Sequence[Link]) -> dict[str, int]:
    readers: dict[str, list[tuple[str, int]]] = {name: [] for name in nodes}
    waiting = dict.fromkeys(readers, 0)
    for source, reader, joins in links:
        readers[source].append((reader, 0 if joins else 1))
        waiting[reader] += 1
    levels = dict.fromkeys(readers, 0)
    ready = [name for name, count in waiting.items() if count == 0]
    for name in ready:
        for reader, step in readers[name]:
            levels[reader] = max(levels[reader], levels[name] + step)
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    return levels


def _top(parent: dict[str, str], name: str) -> str:
    while parent[name] != name:
        parent[name] = parent[parent[name]]
        name = parent[name]
    return name
