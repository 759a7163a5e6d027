"""The nodes of a plan that a check asks about, or keeps in float32.

Used by `accuracy_check`; nothing is computed or judged here.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import TypeAlias

from amp.graph_rewrite.assign.nominee import PRODUCTS, Nodes, Nominee
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import Role
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.rewrite import Prepared
from amp.integration.contests.stored_checks import Low
from amp.integration.observing.accuracy import Suspects

Place: TypeAlias = tuple[FunctionUse, str]


def suspects(
    prepared: Prepared,
    low: Low,
    roles: Container[Role],
    nearest: Collection[str],
) -> Suspects[Place]:
    """The 16-bit nodes that may be at fault, in the order of the graphs.

    Args:
      prepared: the function.
      low: the nodes that the plan has in 16 bits.
      roles: the roles of those that may be.
      nearest: the nodes of the main graph that compute only what is at fault.
    """
    nodes = [
        (use, name)
        for use, one in prepared.priced.analysis.uses.items()
        for name in one.graph.order
        if name in low[use]
        and (row := one.found.typed[name].row) is not None
        and row.role in roles
    ]
    # Names of the main graph; those of a function that it calls may be the same.
    main = next(iter(prepared.priced.analysis.uses), None)
    near = (i for i, (use, name) in enumerate(nodes) if use == main)
    return Suspects(nodes, frozenset(i for i in near if nodes[i][1] in nearest))


def products_only(prepared: Prepared, low: Low) -> Nominee:
    """The products that a plan has in 16 bits, and no other node."""
    why = Reason("products", "stays float32 in the plan")
    uses = prepared.priced.analysis.uses.items()
    rest = {use: one.found.allowed.keys() - low[use] for use, one in uses}
    return PRODUCTS.keeping({use: dict.fromkeys(n, why) for use, n in rest.items()})


def all_products(prepared: Prepared, low: Low) -> list[Place]:
    """What a plan has in 16 bits, and all products that another plan may have."""
    return [
        (use, name)
        for use, one in prepared.priced.analysis.uses.items()
        for name in one.found.allowed
        if name in low.get(use, ())
        or (row := one.found.typed[name].row) is None
        or row.role is Role.COMPUTE
    ]


def before_steep(prepared: Prepared, low: Low) -> list[Place]:
    """The products of a plan that give a steep function its operand.

    As they are, or moved, added to or scaled on the way; the function itself and what
    is between are float32 by the rule "steep", and a product rounds what it gives.
    """
    found: list[Place] = []
    for use, one in prepared.priced.analysis.uses.items():
        typed, refused = one.found.typed, one.found.refused
        met = {
            n
            for n, why in refused.items()
            if typed[n].facts.steep or why == Reason("steep", n)
        }
        left = list(met)
        while left:
            inputs = {source for source, _ in typed[left.pop()].node.inputs} - met
            met |= inputs
            left += [n for n in inputs if n in refused and refused[n].rule == "steep"]
        found += [
            (use, name)
            for name in one.graph.order
            if name in met & low[use]
            and (row := typed[name].row) is not None
            and row.role is Role.COMPUTE
        ]
    return found


def kept(nodes: Iterable[Place], cause: str) -> Nodes:
    """Nodes that stay float32 for their accuracy."""
    found: dict[FunctionUse, dict[str, Reason]] = {}
    for use, name in nodes:
        found.setdefault(use, {})[name] = Reason("accuracy", cause)
    return found


def count(nominee: Nominee) -> int:
    """The number of nodes that a plan keeps in float32 for its accuracy."""
    return sum(map(len, nominee.kept.values()))
