"""What computes matrices that are factored, inverted or solved by, and what reads them.

The condition number of a matrix has no bound, and one that rounding made indefinite has
no factor; the gradient of a factor is a product of inverses, whose terms cancel. Walks
the edges of a module, into functions and over the trips of loops, as the covariance of
a filter goes. Differences and steep functions are `conditioning`'s. No cost may enter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from amp.graph_rewrite.candidates.float_paths import FloatPaths
from amp.graph_rewrite.graph.calls import Member, UseEdge
from amp.graph_rewrite.ops.op_table import Kind, Role
from amp.graph_rewrite.plan import Reason

_TURNING = frozenset({Role.COMPUTE, Role.FOLLOW, Role.MOVE})


def solutions(paths: FloatPaths) -> dict[Member, Reason]:
    """Refuses products that compute such a matrix, or read a solution, and all between.

    Case 1: the nearest products before, whatever lies between. So of the operands of
      the nearest products behind: A' (K \\ A) is subtracted from what A is computed of.
    Case 2: the products before those, as long as sums, moves and constant factors lie
      between: a rounded B in A B A' is not symmetric any more. Not before a product of
      a tensor with itself, which of rounded operands has no negative eigenvalue either.
    Case 3: the nearest products behind, and behind case 2 the gradients, which read
      what these products read. Where no gradient is taken, all that follow one another
      with sums, moves and constant factors between: I - A K^-1 A' cancels to rounding.
    """
    if not paths.has(Kind.SOLVE):
        return {}
    walk = _Walk(paths)
    nearest = [member for member in walk.behind({}) if paths.is_product(member)]
    before = walk.before([*walk.solved, *nearest])
    return before | walk.behind(before)


class _Place(NamedTuple):
    """An edge that a walk has come to.

    Attributes:
      at: the edge.
      reason: of what it is refused for.
      near: whether no product lies between.
    """

    at: UseEdge
    reason: Reason
    near: bool


class _Walk:
    """Walks the floating-point tensors of a module.

    Args:
      paths: of the module.

    Attributes:
      solved: the nodes that factor, invert or solve.
    """

    def __init__(self, paths: FloatPaths) -> None:
        self._paths = paths
        self.solved = [
            (use, name)
            for use, graph in paths.graphs.items()
            for name in graph.order
            if paths.view((use, name)).facts.kind is Kind.SOLVE
        ]

    def before(self, starts: Iterable[Member]) -> dict[Member, Reason]:
        """What computes the operands of some nodes: cases 1 and 2."""
        found: dict[Member, Reason] = {}
        paths = self._paths
        pending = [
            _Place(at, Reason("solve", start[1]), True)
            for start in starts
            for at in paths.operands(start)
        ]
        for place in self._each(pending, paths.handovers.back):
            use, (name, _) = place.at
            member = use, name
            if name not in paths.typed[use] or member in paths.sites:
                continue  # passed on
            view, near = paths.view(member), place.near
            if not near and not paths.is_linear(member):
                continue
            if view.facts.role in _TURNING:
                found.setdefault(member, place.reason)
            if paths.is_product(member):
                if paths.squares(member):
                    continue
                near = False
            pending += [_Place(at, place.reason, near) for at in paths.operands(member)]
        return found

    def behind(self, before: Mapping[Member, Reason]) -> dict[Member, Reason]:
        """What reads solutions: case 3.

        Args:
          before: what case 1 and 2 found.
        """
        paths = self._paths
        products = [member for member in before if paths.is_product(member)]
        shared = paths.read(products)
        passing = paths.read(each for each in products if not paths.squares(each))
        found: dict[Member, Reason] = {}
        pending = [
            _Place(at, Reason("solve", start[1]), True)
            for start in self.solved
            for at in paths.results(start)
        ]
        for place in self._each(pending, paths.handovers.onward):
            use, edge = place.at
            for name, _ in paths.graphs[use].readers.get(edge, ()):
                member = use, name
                row = paths.view(member).facts
                if member in paths.sites or row.kind is Kind.SOLVE:
                    continue
                near, goes_on = place.near, not row.sums
                follows = not paths.trained and paths.is_linear(member)
                if row.role is Role.COMPUTE:
                    operands = paths.read([member])
                    if not near and not follows and operands.isdisjoint(shared):
                        continue
                    goes_on = follows or not operands.isdisjoint(passing)
                    near = False
                elif not near and not follows and not paths.trained:
                    continue
                if row.role in _TURNING:
                    found.setdefault(member, place.reason)
                elif not row.copies:
                    continue
                if goes_on:
                    outs = paths.results(member)
                    pending += [_Place(at, place.reason, near) for at in outs]
        return found

    @staticmethod
    def _each(
        pending: list[_Place], links: Mapping[UseEdge, list[UseEdge]]
    ) -> Iterator[_Place]:
        """Takes places from a list, each once, with those of other functions."""
        seen: set[tuple[UseEdge, bool]] = set()
        while pending:
            place = pending.pop()
            if not seen.isdisjoint({(place.at, True), (place.at, place.near)}):
                continue
            seen.add((place.at, place.near))
            pending += [place._replace(at=other) for other in links.get(place.at, ())]
            yield place
