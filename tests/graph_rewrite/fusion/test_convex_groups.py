"""Groups are convex: taken as one node each, what is left has no circle."""

from __future__ import annotations

import time
from collections import defaultdict

import hypothesis.strategies as st
from hypothesis import given, settings

from amp.graph_rewrite.fusion.convex_groups import Link, convex


@st.composite
def dags(draw) -> tuple[list[str], list[Link]]:
    """Nodes and links that lead from earlier to later ones, by the later ones."""
    count = draw(st.integers(2, 14))
    nodes = [f"n{i}" for i in range(count)]
    pairs = [(a, b) for b in range(count) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=40))
    chosen.sort(key=lambda pair: pair[1])
    return nodes, [(nodes[a], nodes[b], draw(st.booleans())) for a, b in chosen]


def groups(nodes, links) -> set[frozenset[str]]:
    named = defaultdict(set)
    for node, group in convex(nodes, links).items():
        named[group].add(node)
    return {frozenset(members) for members in named.values()}


@settings(deadline=None, max_examples=300)
@given(dags())
def test_what_is_left_has_no_circle(case):
    """No circle among groups implies that no path leaves a group and comes back."""
    nodes, links = case
    group = convex(nodes, links)
    outer = {(group[a], group[b]) for a, b, _ in links if group[a] != group[b]}
    left = set(group.values())
    while left:
        ready = {name for name in left if not any(b == name for _, b in outer)}
        assert ready, "a circle"
        left -= ready
        outer = {(a, b) for a, b in outer if a in left}


@settings(deadline=None, max_examples=200)
@given(dags())
def test_only_links_that_may_be_joined_join(case):
    nodes, links = case
    joined = {frozenset((a, b)) for a, b, joins in links if joins}
    for members in groups(nodes, links):
        found = {min(members)}
        for _ in members:
            found |= {n for n in members for m in found if frozenset((n, m)) in joined}
        assert found == members


@settings(deadline=None, max_examples=100)
@given(dags(), st.randoms())
def test_order_of_the_links_of_a_node_does_not_matter(case, random):
    nodes, links = case
    other = list(links)
    random.shuffle(other)
    other.sort(key=lambda link: nodes.index(link[1]))
    assert groups(nodes, links) == groups(nodes, other)


@settings(deadline=None, max_examples=200)
@given(dags())
def test_groups_are_those_of_longest_paths(case):
    """The definition, computed by searching: levels to the end, then from the start."""
    nodes, links = case
    group = {name: name for name in nodes}
    for backwards in (True, False):
        levels = {name: longest(name, group, links, backwards) for name in nodes}
        for _ in nodes:
            for a, b, joins in links:
                if joins and levels[a] == levels[b]:
                    old, new = group[a], group[b]
                    group = {n: new if g == old else g for n, g in group.items()}
    members = defaultdict(set)
    for name, own in group.items():
        members[own].add(name)
    assert groups(nodes, links) == {frozenset(names) for names in members.values()}


def longest(name, group, links, backwards) -> int:
    """The most links that may not be joined on a path from a node's group to an end."""
    found = 0
    for a, b, joins in links:
        own, other = (a, b) if backwards else (b, a)
        if group[own] == group[name] != group[other]:
            found = max(found, longest(other, group, links, backwards) + (not joins))
    return found


def test_all_that_may_be_joined_is_where_nothing_else_is():
    links = [("a", "b", True), ("b", "c", True), ("a", "c", True)]
    assert groups("abc", links) == {frozenset("abc")}


def test_a_path_through_another_node_parts_its_ends():
    links = [("a", "x", False), ("a", "b", True), ("x", "b", False)]
    assert groups("axb", links) == {frozenset("a"), frozenset("b"), frozenset("x")}


def test_what_only_a_late_reader_needs_is_with_it():
    """Saved values: a -> product -> b; c reads a, and only b reads c."""
    links = [("a", "p", False), ("a", "c", True), ("p", "b", False), ("c", "b", True)]
    assert frozenset("bc") in groups("apcb", links)


def test_a_side_branch_is_with_what_it_comes_from():
    """a -> product -> ..., and a -> s that nothing reads later."""
    links = [("a", "p", False), ("p", "q", False), ("a", "s", True)]
    assert frozenset("as") in groups("apqs", links)


def test_time_is_linear():
    """Ten times the nodes take ten times as long (30 allows for a busy machine)."""

    def seconds(count: int) -> float:
        nodes = [str(i) for i in range(count)]
        links = [(str(i - k), str(i), i % 5 > 0) for i in range(9, count)
                 for k in (1, 3, 9)]  # fmt: skip
        taken = []
        for _ in range(3):
            start = time.process_time()
            convex(nodes, links)
            taken.append(time.process_time() - start)
        return min(taken)

    assert seconds(20_000) < 30 * seconds(2_000)
