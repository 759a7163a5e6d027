"""Groups of nodes that can each run as one node, in time linear in nodes and edges.

Works on names and links only: the caller says which nodes may be joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    Args:
      nodes: the nodes.
      links: their dependencies; those of a node come after those of its sources.
    """
    group = {name: name for name in nodes}
    late = dict.fromkeys(group, 0)
    for source, reader, joins in reversed(links):
        late[source] = max(late[source], late[reader] + (not joins))
    _join(group, links, late)
    outer = [
        (group[source], group[reader], joins)
        for source, reader, joins in links
        if group[source] != group[reader]
    ]
    # Each of these leads to a lower level, so this puts links after those before them.
    outer.sort(key=lambda link: late[link[1]], reverse=True)
    early = dict.fromkeys(group, 0)
    for source, reader, joins in outer:
        early[reader] = max(early[reader], early[source] + (not joins))
    _join(group, outer, early)
    return group


def _join(group: dict[str, str], links: Iterable[Link], levels: dict[str, int]) -> None:
    """Joins the groups of links on one level, and names each by one of its members."""
    for source, reader, joins in links:
        if joins and levels[source] == levels[reader]:
            group[_top(group, source)] = _top(group, reader)
    for name in group:
        group[name] = _top(group, name)


def _top(parent: dict[str, str], name: str) -> str:
    while parent[name] != name:
        parent[name] = parent[parent[name]]
        name = parent[name]
    return name
