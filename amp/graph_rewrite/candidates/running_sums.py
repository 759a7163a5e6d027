"""Running sums: loop variables to which a loop adds on its trips.

Only recognises them; that they stay float32 is the rule of `propagation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from amp.graph_rewrite.candidates.call_values import CallValues, Carried, UseVariable
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member, UseEdge
from amp.graph_rewrite.ops.op_table import Kind, Role, Row, facts


def running_sums(
    value: Carried, graphs: Mapping[FunctionUse, ir.Graph], call_values: CallValues
) -> Iterator[Member]:
    """The nodes by which a loop adds to a loop variable, on every trip or on some.

    Such sums (gradients of an RNN's weights, totals) stay float32: a 16-bit sum loses
    all terms below half a unit in its last place (Higham, Accuracy and Stability of
    Numerical Algorithms, ch. 4).
    """
    if value.begins is not None:
        (start,) = value.returned
        totals = _Totals(graphs, call_values, frozenset(value.made))
        yield from totals.adding(start)


def running_sums_in_frames(
    number: UseVariable,
    graphs: Mapping[FunctionUse, ir.Graph],
    call_values: CallValues,
) -> Iterator[Member]:
    """The same for a loop variable of TensorFlow 1."""
    use, variable = number
    own = frozenset((use, (name, 1)) for name in variable.switches)
    start = (use, graphs[use].nodes[variable.back].inputs[0])
    yield from _Totals(graphs, call_values, own).adding(start)


# What goes into a loop of TensorFlow 1, around it and out of it: another loop's totals
# are found for themselves.
_AROUND = (Kind.ENTER, Kind.NEXT_ITERATION, Kind.EXIT)


def _hands_on(row: Row) -> bool:
    """Whether each element given is one that is read: a move of no bytes, a choice."""
    moves = row.role is Role.MOVE and not row.same_list and row.kind not in _AROUND
    return moves and (row.work == "free" or bool(row.chooses_by))


class _Totals:
    """What the values of a module are the totals of, walked against the edges.

    Args:
      graphs: every use's graph.
      call_values: the tensors that pass between functions.
      own: the edges on which a loop variable is read.
    """

    def __init__(
        self,
        graphs: Mapping[FunctionUse, ir.Graph],
        call_values: CallValues,
        own: Set[UseEdge],
    ) -> None:
        self._graphs, self._call_values, self._own = graphs, call_values, own

    def adding(self, start: UseEdge) -> Iterator[Member]:
        """The nodes by which the value at an edge adds to the loop variable.

        A choice between values, as of a branch, has the variable in it if each of them
        has: what gives way to another value on some trips is no sum, as what decays is
        none (the gradient of a state that a mask skips). Takes time linear in these
        nodes and what they add.
        """
        source = self._call_values.source
        start = source(start)
        through: dict[UseEdge, bool] = {}  # what has the variable in it: with a term
        pending, seen = [start], set()
        while pending:
            place = pending[-1]
            sources = [source(one) for one in self._operands(place)]
            if not sources or place in self._own or place in through:
                pending.pop()
            elif place not in seen:
                seen.add(place)
                pending += [one for one in sources if one not in seen]
            else:
                pending.pop()
                held = [one for one in sources if one in self._own or one in through]
                if held == sources or (held and not self._chooses(place)):
                    added = any(through.get(one, False) for one in held)
                    through[place] = added or self._row(place).kind is Kind.SUM
        if through.get(start, False):
            yield from dict.fromkeys(
                (use, name)
                for use, (name, _) in through
                if (use, name) not in self._call_values.sites
            )

    def _operands(self, place: UseEdge) -> list[UseEdge]:
        """What the value at an edge is a total of, or is handed on from; [] if none."""
        use, (name, index) = place
        site = self._call_values.sites.get((use, name))
        if site is not None:
            results = ((one, self._graphs[one].results) for one in site.callees)
            loop = site.call.loop
            return [] if loop else [(one, given[index].edge) for one, given in results]
        node = self._graphs[use].nodes.get(name)
        if node is None:
            return []
        row = facts(node.op)
        if row.kind is Kind.BUNDLE:
            return [(use, node.inputs[index])]
        if row.kind is not Kind.SUM and not _hands_on(row):
            return []
        operands = enumerate(node.inputs)
        return [(use, edge) for port, edge in operands if port not in row.chooses_by]

    def _chooses(self, place: UseEdge) -> bool:
        row = self._row(place)
        calls = (place[0], place[1][0]) in self._call_values.sites
        return calls or row.kind is Kind.MERGE or bool(row.chooses_by)

    def _row(self, place: UseEdge) -> Row:
        use, (name, _) = place
        return facts(self._graphs[use].nodes[name].op)
