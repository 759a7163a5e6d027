"""The tensors of a module with their producers and readers.

`decide` prices casts with this description, and `planned_casts` lists the casts of a
plan from it, so that both agree. Nothing is chosen here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp.graph_rewrite.assign import min_cut
from amp.graph_rewrite.assign.tensor import (
    HIGH,
    LOW,
    CutVariable,
    Passed,
    Reader,
    Tensor,
)
from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.candidates.call_values import Carried
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.graph import bridges, ir, op_schema
from amp.graph_rewrite.graph.calls import FunctionUse, Member, UseEdge
from amp.graph_rewrite.ops.op_table import Kind
from amp.graph_rewrite.plan import Read


class Tensors:
    """All tensors of a module, with their producers and readers.

    A tensor that is passed into functions is one tensor, named by the edge where it is
    made. A tensor and existing casts of it are one tensor too, with the barriers of
    emulated ones, so that a second rewrite sees the same tensors.

    Args:
      priced: the module's analysis and prices.

    Attributes:
      uses: the analysis of each use of a function.
      call_values: the tensors that pass between functions.
      every: all tensors, by where they are made.
      turning: those whose producer or a reader may be 16-bit.
      lives: of each use, which tensors are stored for its backward pass.
    """

    def __init__(self, priced: Priced) -> None:
        self._priced = priced.uses
        self.uses = priced.analysis.uses
        self._turning = priced.analysis.turning
        self.call_values = priced.analysis.call_values
        self._number = next(iter(self.uses.values())).context.format.number
        self._ties: dict[Member | Carried, int] = {
            member: number
            for number, tie in enumerate(priced.analysis.ties)
            for member in tie.members
        }
        self._branches = {
            callee
            for site in self.call_values.sites.values()
            for callee in site.callees
            if site.call.branches
        }
        self._variables = {use: self._of_nodes(use) for use in self.uses}
        self._bridges = {use: self._handing_on(one) for use, one in self.uses.items()}
        self.every: dict[UseEdge, Tensor] = {}
        self.lives = {use: one.liveness for use, one in priced.uses.items()}
        for use, one in self.uses.items():
            self._read_by_nodes(use, one)
            self._read_outside(use, one)
        self._returned()
        self.turning = [tensor for tensor in self.every.values() if _may_turn(tensor)]

    def variable(self, use: FunctionUse, name: str) -> CutVariable:
        """The variable of the cut that decides the precision of a node."""
        return self._variables[use].get(name, HIGH)

    def _of_nodes(self, use: FunctionUse) -> dict[str, CutVariable]:
        """The variables of the nodes that are not float32 in any case."""
        found, ties, lists = self.uses[use].found, self._ties, self.call_values.lists
        variables = dict.fromkeys(found.already, LOW)
        for name in found.allowed:
            node = (use, name)
            if node in ties:
                variables[name] = CutVariable("tie", ties[node])
            elif node in lists:
                variables[name] = CutVariable("list", lists[node])
            else:
                variables[name] = CutVariable("node", node)
        return variables

    def _read_by_nodes(self, use: FunctionUse, one: UseAnalysis) -> None:
        number = self._number
        numbers, lives = (ir.FLOAT, number), self.lives[use]
        handing_on = self._bridges[use]
        for name, view in one.found.typed.items():
            if name in handing_on:
                continue
            variable = self.variable(use, name)
            site = self.call_values.sites.get((use, name))
            # A stored tensor may have another type than the one made, so a tied reader
            # reads the one made, like the other members of its tie.
            late = site is None and (use, name) not in self._ties
            late = late and not view.facts.in_frames and lives.late(name)
            for index, slot in enumerate(view.ins):
                if slot.type not in numbers:
                    continue
                edge = view.node.inputs[index]
                reader = LOW if slot.type == number else HIGH
                if site is not None and slot.type == ir.FLOAT:
                    if not self.call_values.passes(site, index):
                        place = (use, (name, index))
                        reader = self._carried(place) if site.call.loop else HIGH
                    elif self.call_values.is_read(site, index):
                        continue  # the readers inside the function count instead
                elif slot.type == ir.FLOAT and _turns(slot, view, one):
                    reader = variable
                self._read((use, edge), slot.type, reader, (name, index), late)

    def _read_outside(self, use: FunctionUse, one: UseAnalysis) -> None:
        """Adds float32 readers for fetched tensors and for results to other callers."""
        if use not in self.call_values.inner:
            for result in one.graph.results:
                if result.type == ir.FLOAT:
                    self._read((use, result.edge), ir.FLOAT, HIGH)
        typed = one.found.typed
        for name in sorted(one.context.fetched & typed.keys()):
            for index, slot in enumerate(typed[name].outs):
                if slot.type in (ir.FLOAT, self._number):
                    place = (use, (name, index))
                    self._read(place, slot.type, HIGH)

    def _returned(self) -> None:
        for value in self.call_values.carried:
            reader = self._carried(
                (value.site.use, (value.site.node.name, value.index))
            )
            for place in value.returned:
                self._read(place, ir.FLOAT, reader)

    def _read(
        self,
        place: UseEdge,
        number: int,
        reader: CutVariable,
        at: Read | None = None,
        late: bool = False,
    ) -> None:
        use, tensor = place[0], self.every.get(place)
        branches: tuple[Passed, ...] = ()
        if tensor is None:  # not yet met, or made elsewhere
            path = list(self._path(place, number))
            tensor = self._made(*path[-1])
            late = late and tensor.place[0] == use
            branches = tuple(self._passed(path)) if len(path) > 1 else ()
        tensor.readers.append(Reader(reader, use, at, late, branches))

    def _passed(self, path: Sequence[tuple[UseEdge, int]]) -> Iterator[Passed]:
        """The branches that a tensor is passed to, from where it is made to a reader.

        Left out are those that read what a loop returns as it was given: its type is
        that of the argument (`interfaces.handed_on`), which is not chosen here.
        """
        use, edge = made = path[-1][0]
        site = self.call_values.sites.get((use, edge[0]))
        if site is not None and site.call.loop and made not in self.call_values.made:
            return
        for place, _ in reversed(path):
            if place[0] in self._branches and place in self.call_values.alias:
                share = self.uses[place[0]].weight / self.uses[use].weight
                yield Passed(place, share)

    def _carried(self, place: UseEdge) -> CutVariable:
        value = self.call_values.made.get(place)
        return HIGH if value is None else self.carried(value)

    def carried(self, value: Carried) -> CutVariable:
        """The variable that decides the type of a loop variable or branch result."""
        if value not in self._turning:
            return HIGH
        if value in self._ties:
            return CutVariable("tie", self._ties[value])
        return CutVariable("carried", value)

    def _made(self, place: UseEdge, number: int) -> Tensor:
        """The tensor made at an edge, as one of type `number`."""
        known = self.every.get(place)
        if known is not None:
            return known
        use, edge = place
        name, index = edge
        one = self.uses[use]
        view = one.found.typed.get(name)
        producer = LOW if number == self._number else self._carried(place)
        slots = () if view is None else view.outs[index:]  # none of unknown ops
        if producer == HIGH and view is not None and slots:
            producer = self.variable(use, name) if _turns(slots[0], view, one) else HIGH
        constant = view is not None and view.facts.kind is Kind.CONSTANT
        constant = constant and name not in one.context.fed
        # A tensor may be stored in 16 bits only if its producer may be 16-bit.
        once = one.weight <= 1 and (name not in one.runs or one.runs[name] < 1)
        holds = producer != HIGH and once and self.lives[use].held(edge)
        if holds and view is not None and view.outs:  # no opaque bytes
            holds = view.outs[index].port not in view.facts.opaque
        made = self.every[place] = Tensor(place, producer, constant, holds)
        return made

    def _path(self, place: UseEdge, number: int) -> Iterator[tuple[UseEdge, int]]:
        """The edges and their types, from one back to where its tensor is made."""
        while True:
            yield place, number
            while place in self.call_values.alias:
                place = self.call_values.alias[place]
                yield place, number
            use = place[0]
            view = self._bridges[use].get(place[1][0])
            if view is None:
                return
            place, number = (use, view.node.inputs[0]), view.ins[0].type
            yield place, number

    def _handing_on(self, one: UseAnalysis) -> dict[str, Typed]:
        """The nodes whose result is the tensor that they take, in either type."""
        return {
            name: view
            for name, view in one.found.typed.items()
            if name not in one.context.fed and bridges.hands_on(view.node, self._number)
        }

    def given(self) -> Iterator[UseEdge]:
        """The edges of every tensor that the module has a cast of already."""
        for use, views in self._bridges.items():
            for name, view in views.items():
                path = self._path((use, (name, 0)), view.outs[0].type)
                yield from (place for place, _ in path)

    def priced(self) -> list[min_cut.Tensor[CutVariable]]:
        """The tensors in the form that `min_cut` takes, in seconds per step."""
        priced = []
        for tensor in self.turning:
            use, edge = tensor.place
            weight = self.uses[use].weight
            seconds = weight * self._priced[use].cast(edge)
            producer = None if tensor.producer == HIGH else tensor.producer
            down = 0.0 if tensor.free else seconds
            one = min_cut.Tensor(producer, tensor.early, seconds, down, tensor.branches)
            priced.append(one)
            if tensor.stored:
                late = [reader.variable for reader in tensor.late]
                priced.append(min_cut.Tensor(tensor.stored, late, seconds, seconds))
        return priced

    def free(self) -> dict[CutVariable, Times]:
        """The variables that are no nodes, with their seconds in (float32, 16 bits).

        Loop variables and branch results take no time of their own; a stored tensor
        costs `CostModel.held`.
        """
        prices: dict[CutVariable, Times] = {
            self.carried(value): (0.0, 0.0)
            for value in self.call_values.carried
            if value in self._turning
        }
        for tensor in self.turning:
            if tensor.stored:
                use, edge = tensor.place
                one = self.uses[use]
                high, low = self._priced[use].cost_model.held(one.graph.size(edge))
                prices[tensor.stored] = (one.weight * high, one.weight * low)
        return prices


def _may_turn(tensor: Tensor) -> bool:
    """Whether the producer or a reader of a tensor may be 16-bit."""
    readers = (reader.variable for reader in tensor.readers)
    return tensor.producer != HIGH or any(variable != HIGH for variable in readers)


def _turns(slot: op_schema.Slot, view: Typed, one: UseAnalysis) -> bool:
    """Whether the precision of a node decides the type of one of its tensors.

    A node that has 16-bit tensors as given keeps those that are float32.
    """
    if view.row is None or slot.attr not in view.row.attrs:
        return False
    return view.node.name in one.found.allowed or view.node.has(ir.EMULATED)
