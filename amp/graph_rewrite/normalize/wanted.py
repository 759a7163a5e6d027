"""What copies of a function compute again, and what of it cannot run twice.

Which tensors are wanted is told by `wanted_gradients` and `wanted_results`; copies are
made in `copies`, not here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from amp.graph_rewrite.graph import calls, generators, ir, op_schema
from amp.graph_rewrite.normalize.inner_steps import (
    Way,
    argument_of_main,
    graphs_on,
    is_compiled,
    runs_once,
)
from amp.graph_rewrite.ops.op_table import Kind, facts

# What a copy computes beyond the range is to be judged, and not to end it.
_WATCHES = frozenset({Kind.GUARD, Kind.PRINT})

Tensor: TypeAlias = tuple[ir.Edge, int]  # with its DataType number


class Read(NamedTuple):
    """What reads a tensor, in float32 and in a rewritten function alike.

    Attributes:
      node: the name of the node, "" for a result of the function.
      number: of the node's input, or of the result.
      type: DataType number of the tensor.
    """

    node: str
    number: int
    type: int = ir.FLOAT

    def edge(self, graph: ir.Graph) -> ir.Edge:
        """What is read."""
        if not self.node:
            return graph.results[self.number].edge
        return graph.nodes[self.node].inputs[self.number]


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What a copy of a function takes and gives.

    Attributes:
      reads: what reads the tensors that are wanted, one for each of them.
      names: for each, the node that makes it in float32.
      labels: for each, its scaler and variable (`ir.SOURCE`), "" where it has none.
      gradients: whether they are gradients, and not what the function gives.
      taken: the tensors that are recorded: what is taken from elsewhere, and what the
        function that they are computed in is given, if that is not the main one.
      stood_for: for each, the edge that is an argument in its place.
      scaled: whether the step multiplies the incoming gradient by a loss scale.
      way: to the graph that they are computed in.
      passed: the arguments of that graph that are the main graph's own, by number, with
        those of the main graph; nothing where all of these are arguments of a copy.
      kept: the way to the graph that the recorded tensors are in, where that may run
        more than once, or not at all; None where they are further results.
    """

    reads: tuple[Read, ...]
    names: tuple[str, ...]
    labels: tuple[str, ...]
    gradients: bool
    taken: tuple[Tensor, ...]
    stood_for: tuple[ir.Edge, ...]
    scaled: bool
    way: Way = ()
    passed: tuple[tuple[int, int], ...] = ()
    kept: Way | None = None

    def own(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """What a copy is called with before what was recorded.

        Args:
          inputs: what the step was called with.
        """
        if not self.way:
            return (*inputs,)
        return tuple(inputs[outer] for _, outer in self.passed)


class NotRepeatable(Exception):
    """What is wanted of a function cannot be computed a second time; says why."""


def holder(module: ir.Module, wanted: Wanted) -> ir.Graph:
    """The graph in which what is wanted is computed."""
    return graphs_on(module, wanted.way)[-1]


def inside(
    module: ir.Module, way: Way, wanted: Wanted, needed: Container[str]
) -> Wanted:
    """What is wanted of another graph than the main one.

    Args:
      module: the function.
      way: to that graph.
      wanted: what is known of it in that graph.
      needed: the names of its arguments and nodes that it is computed from.

    Raises:
      NotRepeatable: what that depends on can neither be recorded nor be called with.
    """
    graph, call = graphs_on(module, way)[-1], _last_call(module, way)
    called = calls.calls_once(call.op)  # so XLA compiles it, and nothing is kept in it
    if called and wanted.taken:
        raise NotRepeatable(f"node {wanted.taken[0][0][0]} cannot run twice")
    kept = None if runs_once(module, way) else way[:-1] if called else way
    if kept is not None and is_compiled(module, kept):
        raise NotRepeatable("its steps are in a loop or branch that XLA compiles")
    given = list(_given(module, way, needed, every=kept is None))
    own = [number for number, main in given if main is None]
    args = [(graph.args[number].name, 0) for number in own]
    types = [graph.args[number].type for number in own]
    edges = [call.inputs[number] for number in own] if called else args
    return dataclasses.replace(
        wanted,
        taken=(*wanted.taken, *zip(edges, types, strict=True)),
        stood_for=(*wanted.stood_for, *args),
        way=way,
        passed=tuple((number, main) for number, main in given if main is not None),
        kept=kept,
    )


def _last_call(module: ir.Module, way: Way) -> ir.Node:
    return graphs_on(module, way[:-1])[-1].nodes[way[-1].node]


def _given(
    module: ir.Module, way: Way, needed: Container[str], *, every: bool
) -> Iterator[tuple[int, int | None]]:
    """The arguments of the last graph that are needed, with those of the main graph.

    Args:
      module: the function.
      way: to the graph.
      needed: the names of its arguments and nodes that what is wanted is computed from.
      every: whether all are recorded, as results of the main graph.

    Raises:
      NotRepeatable: one can neither be recorded nor be called with.
    """
    for number, arg in enumerate(graphs_on(module, way)[-1].args):
        if every:
            yield number, None
        elif arg.name in needed:
            main = None
            if arg.type == ir.RESOURCE:
                main = argument_of_main(module, way, number)
                if main is None:
                    raise NotRepeatable(f"argument {arg.name} is made inside")
            yield number, main


def taken_by(
    module: ir.Module, graph: ir.Graph, edges: Iterable[ir.Edge]
) -> tuple[set[str], list[Tensor]]:
    """What tensors are computed from.

    Args:
      module: the function in float32.
      graph: one of its graphs.
      edges: tensors of that graph.

    Returns:
      The names of what runs again, of arguments, and of what takes from elsewhere; and
      the tensors that are taken, in the order of the graph.

    Raises:
      NotRepeatable: they depend on what can neither be repeated nor be recorded.
    """
    found = graph.computed_from(
        edges, lambda node: not takes_from_elsewhere(node, module)
    )
    lookup = op_schema.lookup_of(module)
    taken: list[Tensor] = []
    for name, node in graph.nodes.items():
        if name in found and takes_from_elsewhere(node, module):
            taken += _outputs(node, lookup, graph)
    return found, taken


def _outputs(
    node: ir.Node, lookup: op_schema.Lookup, graph: ir.Graph
) -> Iterable[Tensor]:
    """The outputs of a node that are read; each must be one that can be recorded."""
    known = lookup(node.op)
    outs = () if known is None else known.signature(node).outs
    for index, slot in enumerate(outs):
        edge = (node.name, index)
        if edge in graph.readers:
            if slot.type in ir.HANDLES or slot.type > ir.REF_OFFSET:
                raise NotRepeatable(f"node {node.name} ({node.op}) cannot run twice")
            yield edge, slot.type


def takes_from_elsewhere(node: ir.Node, module: ir.Module) -> bool:
    """Whether a second run of a node might give something else, or change something."""
    return any(
        op_schema.is_stateful(each.op)
        and not facts(each.op).reads_state
        and not is_left_out(each)
        and not generators.is_random(each)
        for each in run_by(node, module)
    )


def run_by(node: ir.Node, module: ir.Module) -> Iterator[ir.Node]:
    """A node, or the nodes of the functions that it calls, which call none.

    And a node that also takes the elements of a dataset.
    """
    called = functions_called([node], module).values()
    inside = (each for graph in called for each in graph.nodes.values())
    for each in itertools.chain([node], inside):
        call = calls.call_of(each, module.functions)
        if call is None or call.each:
            yield each


def functions_called(
    nodes: Iterable[ir.Node], module: ir.Module
) -> dict[str, ir.Graph]:
    """The functions that nodes call, and those that these call, by name."""
    found: dict[str, ir.Graph] = {}
    pending = [*nodes]
    while pending:
        node = pending.pop()
        call = calls.call_of(node, module.functions)
        for name in () if call is None else calls.callees_of(node, call):
            if name in module.functions and name not in found:
                found[name] = module.functions[name]
                pending += found[name].nodes.values()
    return found


def is_left_out(node: ir.Node) -> bool:
    """Whether a node hands on what it watches: in copies, unwatched."""
    return facts(node.op).kind in _WATCHES
