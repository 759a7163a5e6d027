"""Steps that would write to a variable what the zeros of an overflow make not finite.

After an overflow a program that updates by hand is given zeros. Most updates then do
nothing. One that divides by a gradient's norm, or by a product with it as conjugate
gradients do, makes NaN of them and keeps it. Only tells such a module from others; that
it stays float32 is `eligibility`'s rule.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set

from amp.graph_rewrite.candidates.call_values import UseEdge
from amp.graph_rewrite.candidates.passes import passed_on
from amp.graph_rewrite.candidates.unscaled import writing
from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops import loss_scale
from amp.graph_rewrite.ops.op_table import Kind, Role, Row, facts
from amp.loss_scaling.scale import NoLossScale
from amp.policy import Policy

_SUMS = frozenset({Kind.SUM, Kind.BIAS, Kind.SQUARE})


def zeroed(
    module: ir.Module, policy: Policy, behind: Mapping[str, frozenset[str]]
) -> str:
    """Why a module must stay float32 for an overflow's sake, "" if it need not.

    A number added to the divisor, a bound on it or on the quotient, and a choice
    between values each keep what is written finite. The update of an optimizer is left
    out as a whole.

    Args:
      module: as it is analyzed.
      policy: settled.
      behind: what is downstream of unscale markers (`unscale_markers.behind_markers`).
    """
    rule = policy.loss_scale
    if isinstance(rule, NoLossScale) or rule.on_overflow != "zeros":
        return ""
    by_hand = {
        graph.name: [n for n in nodes if n.text(ir.KEEP) != ir.OPTIMIZER]
        for graph, nodes in writing(module, behind)
    }
    if not any(by_hand.values()) or not _divides(module, behind):
        return ""
    walk = _Walk(module)
    for use in walk.graphs:
        for node in by_hand.get(use.name, ()):
            for edge in node.inputs[1:]:
                if (use, edge) in walk.broken:
                    by = walk.broken[use, edge]
                    return f"{node.name} would keep what {by} makes of an overflow"
    return ""


def _divides(module: ir.Module, behind: Mapping[str, frozenset[str]]) -> bool:
    """Whether anything downstream of a gradient has a pole at 0."""
    return any(
        facts(graph.nodes[name].op).poles
        for graph in module.graphs()
        for name in behind.get(graph.name, ())
    )


class _Walk:
    """What is zero in a module after an overflow, and what is then not finite.

    Goes on from what is found to its readers, into functions and over trips of loops.

    Args:
      module: as of `zeroed`.

    Attributes:
      graphs: of each use of a function.
      broken: the edges that are not finite, each with the node where it began.
    """

    def __init__(self, module: ir.Module) -> None:
        uses = calls.uses_with_weights(module)
        self.graphs = {use: calls.graph_of(module, use) for use in uses}
        self.broken: dict[UseEdge, str] = {}
        self._zeros: set[UseEdge] = set()
        self._lookup = op_schema.lookup_of(module)
        self._pending: list[UseEdge] = []
        onward: dict[UseEdge, list[UseEdge]] = {}
        sites = calls.sites(module, uses).values()
        for one, other in passed_on(self.graphs, sites):
            onward.setdefault(one, []).append(other)
        for use, graph in self.graphs.items():
            for node in graph.nodes.values():
                if node.flag(ir.UNSCALE) and node.op == loss_scale.UNSCALE:
                    self._add_zeros([(use, (node.name, 0))])
        while self._pending:
            use, edge = place = self._pending.pop()
            for other in onward.get(place, ()):
                if place in self._zeros:
                    self._add_zeros([other])
                if place in self.broken:
                    self._break([other], self.broken[place])
            graph = self.graphs[use]
            for name, _ in graph.readers.get(edge, ()):
                self._visit(use, graph.nodes[name])

    def _visit(self, use: FunctionUse, node: ir.Node) -> None:
        """Notes what a node gives."""
        row, known = facts(node.op), self._lookup(node.op)
        signature = op_schema.UNKNOWN if known is None else known.signature(node)
        places = enumerate(zip(node.inputs, signature.ins, strict=False))
        read = {i: (use, edge) for i, (edge, slot) in places if slot.type in ir.FLOATS}
        zeros = {i for i, place in read.items() if place in self._zeros}
        broken = {i: place for i, place in read.items() if place in self.broken}
        outs = enumerate(signature.outs)
        made = [(use, (node.name, i)) for i, slot in outs if slot.type in ir.FLOATS]
        if not zeros.isdisjoint(row.poles):
            self._break(made, node.name)
        elif broken and _hands_on(node.op, row, signature, broken):
            self._break(made, self.broken[next(iter(broken.values()))])
        elif zeros and _keeps_zero(row, zeros, len(read)):
            self._add_zeros(made)

    def _add_zeros(self, places: Iterable[UseEdge]) -> None:
        new = [place for place in places if place not in self._zeros]
        self._zeros.update(new)
        self._pending += new

    def _break(self, places: Iterable[UseEdge], by: str) -> None:
        new = [place for place in places if place not in self.broken]
        self.broken |= dict.fromkeys(new, by)
        self._pending += new


def _hands_on(
    op: str, row: Row, signature: op_schema.Signature, broken: Container[int]
) -> bool:
    """Whether results are not finite where operands with these numbers are not."""
    if op == loss_scale.UNSCALE or any(slot.type == ir.BOOL for slot in signature.ins):
        return False  # a zero wins, or a condition chooses
    if row.poles:
        return any(index in broken for index in (0, 1) if index not in row.poles)
    sums = row.sums or row.kind in _SUMS or row.kind is Kind.PRODUCT
    return sums or row.in_frames or row.role is Role.COMPUTE or _passes(row)


def _keeps_zero(row: Row, zeros: Set[int], operands: int) -> bool:
    """Whether results are zero where operands with these numbers are."""
    if row.kind is Kind.PRODUCT or row.in_frames or row.role is Role.COMPUTE:
        return True
    if 1 in row.singular:  # a quotient
        return 0 in zeros
    if len(zeros) < operands:
        return False
    return row.sums or row.kind in _SUMS or row.selects or _passes(row)


def _passes(row: Row) -> bool:
    """Whether elements come out as they are, or their sign or root."""
    return row.zero or (row.moves and not row.bounded)
