"""Looks into loops and branches: runs their functions one by one, on both sides.

A loop is run trip by trip, from the tensors that it begins with in the function that
is compared; each side goes on with its own. Used by `compare`. What the figures mean is
not known here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.comparison import tensor_errors
from amp.graph_rewrite.comparison.alone import KernelError
from amp.graph_rewrite.comparison.comparison import ComparedTensor
from amp.graph_rewrite.comparison.pair import Pair, Watched, edge_type
from amp.graph_rewrite.comparison.tensor_errors import Array
from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.integration.comparing import kernels
from amp.integration.comparing.paired_runs import PairedRuns, array_of
from amp.integration.comparing.sides import Sides

TRIPS = 32  # of a loop, at most


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """What was found in one function: the one compared, or one that it calls.

    Attributes:
      pair: its two sides.
      watched: the tensors that were compared.
      tensors: their figures; of a loop those of the first trip in which any of them
        parts, or else each one's worst.
      kernels: its 16-bit nodes by themselves.
      node: the node that calls it, "" for the function compared.
      trips: how often it was run.
      parted: in which trip a tensor parted first, 0 for none.
      given: the errors of its arguments then, by name.
    """

    pair: Pair
    watched: Sequence[Watched]
    tensors: Sequence[ComparedTensor]
    kernels: Sequence[KernelError]
    node: str = ""
    trips: int = 1
    parted: int = 0
    given: Mapping[str, float] = dataclasses.field(default_factory=dict)


def parts(sides: Sides, runs: PairedRuns) -> list[Part]:
    """What there is in the loops and branches that results are computed from.

    Those that cannot be run by themselves are left out.
    """
    found = []
    for name in sides.pair.loops():
        try:
            part = _looked_into(sides, runs, name)
        except tf.errors.OpError:  # it needs what only the whole function gives
            part = None
        if part is not None:
            found.append(part)
    return found


def _looked_into(sides: Sides, runs: PairedRuns, name: str) -> Part | None:
    pair = sides.pair
    node, other = pair.plain.main.nodes[name], pair.twin.main.nodes[name]
    call = calls.call_of(node, pair.plain.functions)
    if call is None or not (call.loop or call.branches):
        return None
    given = (
        [*runs.tensors(pair.plain, node.inputs)],
        [*runs.tensors(pair.twin, other.inputs)],
    )
    if call.loop:
        inner = pair.called(name, 1)
        return _Body(sides, runs, inner).looped(name, pair.called(name, 0), given)
    count = len(calls.callees_of(node, call))
    inner = pair.called(name, _branch(given[0][0], count))
    behind = given[0][call.skip :], given[1][call.skip :]
    return _Body(sides, runs, inner).looked_into(name, behind)


def _branch(chosen: Any, count: int) -> int:
    """Which branch runs: the first if true, or by its number, out of range the last."""
    value = chosen.numpy()
    if value.dtype == bool:
        return 0 if value else 1
    return int(value) if 0 <= int(value) < count else count - 1


class _Body:
    """A function that is called, on both sides.

    Args:
      sides: of the function that calls it.
      runs: what runs it.
      pair: its own two sides.
    """

    def __init__(self, sides: Sides, runs: PairedRuns, pair: Pair) -> None:
        self._sides, self._runs, self._pair = sides, runs, pair
        found = pair.watched()
        self._watched = [dataclasses.replace(each, role="") for each in found]
        self._plain = self._function(pair.plain, [e.edge for e in self._watched])
        self._twin = self._function(pair.twin, [e.twin for e in self._watched])
        self._worst: list[ComparedTensor] = []
        self._given: dict[str, float] = {}
        self._trips, self._parted = 0, 0
        self._kernels: list[KernelError] = []

    def _function(self, module: ir.Module, edges: Sequence[ir.Edge]) -> Any:
        results = [result.edge for result in module.main.results]
        return self._runs.function(module, [*edges, *results])

    def looked_into(self, name: str, given: tuple[list[Any], list[Any]]) -> Part:
        """Runs it once."""
        self._step(given)
        return self._part(name)

    def looped(self, name: str, test: Pair, given: tuple[list[Any], list[Any]]) -> Part:
        """Runs it until the condition, in float32, ends it, or `TRIPS` times.

        Args:
          name: of the loop.
          test: the condition.
          given: what each side begins with.
        """
        edges = [result.edge for result in test.plain.main.results]
        goes_on = self._runs.function(test.plain, edges)
        while self._trips < TRIPS and bool(goes_on(given[0])[0]):
            given = self._step(given)
        return self._part(name)

    def _part(self, name: str) -> Part:
        return Part(
            pair=self._pair,
            watched=self._watched if self._trips else (),
            tensors=tuple(self._worst),
            kernels=self._kernels,
            node=name,
            trips=self._trips,
            parted=self._parted,
            given=self._given,
        )

    def _step(self, given: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        plain, twin = [*self._plain(given[0])], [*self._twin(given[1])]
        count = len(self._watched)
        pairs = zip(plain[:count], twin[:count], strict=True)
        arrays = [(array_of(one), array_of(other)) for one, other in pairs]
        errors = self._given_errors(given) | self._listed_errors(arrays)
        tensors = self._sides.figures(self._pair, self._watched, (arrays, errors))
        self._trips += 1
        if self._trips == 1:
            self._worst, self._kernels = [*tensors], self._alone(given[1])
        self._note(tensors, errors)
        return plain[count:], twin[count:]

    def _note(
        self, tensors: Sequence[ComparedTensor], errors: Mapping[str, float]
    ) -> None:
        if self._parted:
            return
        if any(tensor.parted for tensor in tensors):
            self._worst, self._given = [*tensors], {**errors}
            self._parted = self._trips
            return
        worse = zip(self._worst, tensors, strict=True)
        self._worst = [max(pair, key=lambda tensor: tensor.excess) for pair in worse]

    def _given_errors(self, given: tuple[list[Any], list[Any]]) -> dict[str, float]:
        """The errors of the arguments, so that only what is added inside counts."""
        found: dict[str, float] = {}
        args = self._pair.twin.main.args
        for arg, one, other in zip(args, *given, strict=False):
            if one.dtype.is_floating:
                arrays = array_of(one), array_of(other)
                found[arg.name] = tensor_errors.tensor_error(*arrays, 0.0).error
        unit = self._sides.format.unit  # of the 16-bit forms that are passed besides
        return {arg.name: unit for arg in args[len(given[0]) :]} | found

    def _listed_errors(self, arrays: Sequence[tuple[Array, Array]]) -> dict[str, float]:
        """The errors of what comes out of lists, which other functions have filled."""
        graph = self._pair.plain.main
        lookup = op_schema.lookup_of(self._pair.plain)
        found: dict[str, float] = {}
        for each, pair in zip(self._watched, arrays, strict=True):
            node = graph.nodes.get(each.edge[0])
            edges = () if node is None else node.inputs
            if any(edge_type(graph, edge, lookup) == ir.VARIANT for edge in edges):
                error = tensor_errors.tensor_error(*pair, 0.0).error
                found[each.twin[0]] = found[each.edge[0]] = error
        return found

    def _alone(self, given: list[Any]) -> list[KernelError]:
        def values(module: ir.Module, edges: Sequence[ir.Edge]) -> Any:
            return map(array_of, self._runs.function(module, edges)(given))

        return kernels.checked(self._sides.call, self._pair, values)
