"""Convex groups of nodes, in time linear in nodes and edges.

Structure only: who may be joined with whom is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

# A dependency (source, reader) and whether its two ends may be in one group.
Link: TypeAlias = tuple[str, str, bool]


def convex(nodes: Iterable[str], links: Sequence[Link]) -> dict[str, str]:
    """The group of every node, named by one of its members.

    No path leaves a group and comes back to it, nor do paths between groups make a
    circle, so that each group can run as one node::

        once from the ends backwards, once from the beginnings on:
          level = the most links that may not be joined on any path to here
          join the two ends of a link that may be joined where their levels are equal

    Levels never fall along a path, and rise on each link that is not joined: where it
    may not be, by definition, and elsewhere because only equal levels are joined. So
    a path that leaves a group ends on another level. The second pass runs on the groups
    of the first. Levels counted from the ends put what only the backward pass reads
    beside its readers; counted from the beginnings they join a side branch with what it
    comes from.
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
