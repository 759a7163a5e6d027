"""The price of a cluster: as separate kernels, and as one call compiled by XLA.

Nothing is made and nothing is chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence

from amp.graph_rewrite.cost.device import ITEM, Device
from amp.graph_rewrite.cost.epilogues import epilogues
from amp.graph_rewrite.cost.loads import Load
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.fusion.candidates import Members
from amp.graph_rewrite.fusion.outline import Outline
from amp.graph_rewrite.graph import ir, shapes
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import TABLE

# A cluster is made if its time is at most this part of its time as kernels. Prices are
# estimates, and ignore that a kernel may write its result over its operand, which a
# compiled call may not.
CLEARLY = 0.8
_ITEM = {**{ir.DTYPE_NUMBERS[name]: size for name, size in ITEM.items()}, ir.BOOL: 1}


class ClusterPrices:
    """Prices clusters of one graph.

    Args:
      members: the graph's nodes.
      kernels: the cost model of kernels, with the job's measured times.
      device: has the figures for compiled calls.
    """

    def __init__(self, members: Members, kernels: CostModel, device: Device) -> None:
        self._members, self._kernels = members, kernels
        self._bandwidth, self._compiled = device.bandwidth, device.under(True)
        self._loop = CostModel(self._compiled, members.context.format.name)
        # Casts are in place, so that the nodes of a chain all have one type.
        self._merged = {
            one.name
            for one in epilogues(members.graph, members.context)
            if one.types[self._is_low(one.name)]
        }

    def saved(self, names: Sequence[str], made: Outline) -> float:
        """Seconds per run that a cluster saves, 0 if it is not clearly faster.

        As kernels, it costs the sum of its nodes and casts; those that Grappler merges
        into a node before them take no time, as in the plan's price. As a cluster, it
        costs the start of the call and then the larger of two times: moving its
        arguments and results, and the arithmetic of its nodes in XLA's code. What XLA
        compiles is not measured, so these are the device's figures, times what measured
        casts take by theirs: measured kernels would else be compared with another
        machine's loops.

        Args:
          names: the nodes.
          made: the function made of them.
        """
        members = self._members
        group = set(names)
        read = {e[0] for name in names for e in members.graph.nodes[name].inputs}
        ups = [name for name in sorted(read) if members.only_for(name, group)]
        loads = {name: self._load(name) for name in (*names, *ups)}
        before = sum(self._kernel(name, load) for name, load in loads.items())
        border = sum(
            shapes.elements(shape) * _ITEM.get(number, 4)
            for shape, number in zip(made.sizes, made.types, strict=True)
        )
        inside = sum(self._seconds(n, load, self._loop) for n, load in loads.items())
        most = max(map(shapes.elements, made.sizes))
        loop = max(border / self._bandwidth, inside) * self._kernels.moving(most)
        after = self._compiled.call + loop
        return before - after if after < CLEARLY * before else 0.0

    def _kernel(self, name: str, load: Load) -> float:
        """Seconds of one node as a kernel."""
        graph = self._members.graph
        if name in self._merged:
            return 0.0
        if name in self._members.bridges:
            return self._kernels.cast(graph.size(graph.nodes[name].inputs[0]))
        return self._seconds(name, load, self._kernels)

    def _seconds(self, name: str, load: Load, cost_model: CostModel) -> float:
        """Seconds of one node by a cost model."""
        high, short = cost_model.node(*load)
        return short if self._is_low(name) else high

    def _is_low(self, name: str) -> bool:
        """Whether a node, but for a cast, is in 16 bits."""
        members = self._members
        types = members.signature(name).types
        return members.context.format.number in types and name not in members.bridges

    def _load(self, name: str) -> Load:
        """What one node does; a cast counts as elementwise work."""
        members, graph = self._members, self._members.graph
        if members.moves_nothing(name):
            return Load("free", 0, 0.0)
        node = graph.nodes[name]
        low, row = members.context.format.number, TABLE.get(node.op)
        pairs = zip(node.inputs, members.signature(name).ins, strict=True)
        ins = [graph.size(e) for e, slot in pairs if slot.type in (ir.FLOAT, low)]
        work = "elementwise" if row is None else row.work
        moved = arithmetic.moved(work, ins, [graph.size((name, 0))])
        return Load(work, moved, 0.0, node.op)
