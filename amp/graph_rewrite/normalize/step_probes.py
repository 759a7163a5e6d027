"""Variants of a training step that also return what is observed inside it.

`probed` adds to a step, rewritten or not, calls of small functions on its tensors: on
its gradients to count exponents, or on all tensors that these are computed from to see
which are finite. What they return are further results of the step, which otherwise
stays as it is, so that a call of the variant is the step. `first_bad` tells from the
results which tensor was the first that was not finite.

Nothing is run here, no node is changed and no precision is chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from amp.graph_rewrite.graph import calls, frames, gradient_scopes, ir, op_schema
from amp.graph_rewrite.ops.op_table import facts
from amp.graph_rewrite.ops.row import Kind

_PROBE = "amp_probe"


@dataclasses.dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient as it is before it is unscaled.

    Attributes:
      label: the attribute `ir.SOURCE` of the node that unscales it.
      edge: the tensor.
      type: its DataType number.
    """

    label: str
    edge: ir.Edge
    type: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor from which gradients are computed, or a gradient.

    Attributes:
      edge: the tensor.
      op: the op that makes it, "" for an argument of the function.
      type: its DataType number.
      sources: the positions of the tensors that it is computed from.
      is_state: whether it is the value of a variable.
    """

    edge: ir.Edge
    op: str
    type: int
    sources: tuple[int, ...]
    is_state: bool

    @property
    def forward(self) -> bool:
        """Whether it belongs to the forward pass."""
        return not gradient_scopes.depth(self.edge[0])


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """Where a step takes its gradients.

    Attributes:
      graph: the function that they are computed in: the step itself, or one that it
        calls once.
      call: the node of the step that calls it, None if it is the step itself.
      gradients: in the order in which the program asked for them.
    """

    graph: ir.Graph
    call: ir.Node | None
    gradients: tuple[Gradient, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """What is to be observed: calls of one function for each type of tensor.

    Attributes:
      edges: the tensors, with their DataType numbers.
      functions: the name of the function to call, by DataType number. It takes a tensor
        and returns one, of the same shape for all.
      type: DataType number of what it returns.
    """

    edges: Sequence[tuple[ir.Edge, int]]
    functions: Mapping[int, str]
    type: int


def holder(module: ir.Module) -> Holder | None:
    """Finds the gradients of a step; None if it takes none that a scaler serves.

    Gradients that are taken in a loop or a branch are not found.
    """
    lookup = op_schema.lookup_of(module)
    own = tuple(_gradients(module.main, lookup))
    if own:
        return Holder(module.main, None, own)
    for node in module.main.nodes.values():
        for name in node.functions("f") if calls.calls_once(node.op) else ():
            graph = module.functions.get(name)
            found = tuple(_gradients(graph, lookup)) if graph else ()
            if graph and found:
                return Holder(graph, node, found)
    return None


def _gradients(graph: ir.Graph, lookup: op_schema.Lookup) -> Iterable[Gradient]:
    for node in graph.nodes.values():
        label = node.text(ir.SOURCE)
        known = lookup(node.op)
        if label and known is not None:
            number = known.signature(node).ins[0].type
            if number in ir.FLOATS:
                yield Gradient(label, node.inputs[0], number)


def tensors(module: ir.Module, at: Holder) -> tuple[Tensor, ...]:
    """The tensors that a step's gradients are computed from, each after its sources."""
    graph, lookup = at.graph, op_schema.lookup_of(module)
    found = graph.computed_from(gradient.edge for gradient in at.gradients)
    hidden = frames.not_every_run(graph)
    types = {(arg.name, 0): arg.type for arg in graph.args}
    numbers: dict[ir.Edge, int] = {}
    behind: dict[str, frozenset[int]] = {}  # what a node without a tensor hands on
    made: list[Tensor] = []

    def note(edge: ir.Edge, tensor: Tensor) -> None:
        numbers[edge] = len(made)
        made.append(tensor)

    for edge, number in types.items():
        if number in ir.FLOATS:
            note(edge, Tensor(edge, "", number, (), is_state=False))
    for name in (name for name in graph.order if name in found):
        node, known = graph.nodes[name], lookup(graph.nodes[name].op)
        sources: set[int] = set()
        for edge in node.inputs:
            known_as = numbers.get(edge)
            sources |= behind.get(edge[0], set()) if known_as is None else {known_as}
        outs = known.signature(node).outs if known is not None else ()
        state = facts(node.op).kind in (Kind.VARIABLE, Kind.READ_VARIABLE)
        for index, slot in enumerate(outs):
            edge = (name, index)
            if slot.type in ir.FLOATS and name not in hidden and edge in graph.readers:
                edges = tuple(sorted(sources))
                note(edge, Tensor(edge, node.op, slot.type, edges, state))
        behind[name] = frozenset(sources)
    return tuple(made)


def first_bad(
    tensors: Sequence[Tensor], bad: Callable[[int], bool], edge: ir.Edge
) -> int | None:
    """The tensor from which a gradient came to be not finite.

    Walks from the gradient along tensors that are not finite to those that have only
    finite sources. A tensor that is not finite by design, such as a mask, is not met
    unless its reader is not finite either.

    Args:
      tensors: as `tensors` returned them.
      bad: whether the tensor of a position is not finite.
      edge: the gradient.

    Returns:
      A position: the first of the forward pass, else of the backward pass; None if the
      gradient is finite.
    """
    numbers = {tensor.edge: index for index, tensor in enumerate(tensors)}
    pending = [numbers[edge]] if edge in numbers and bad(numbers[edge]) else []
    seen, ends = set(pending), set()
    while pending:
        number = pending.pop()
        sources = [each for each in tensors[number].sources if bad(each)]
        if not sources:
            ends.add(number)
        pending += [each for each in sources if each not in seen]
        seen.update(sources)
    return min(ends, key=lambda n: (not tensors[n].forward, n), default=None)


def probed(module: ir.Module, at: Holder, what: Observed, name: str) -> ir.Module:
    """The step under another name, with one more result: what was observed, stacked.

    Args:
      module: the step.
      at: where it takes its gradients.
      what: the tensors to observe, in the function that this is.
      name: of the variant.
    """
    nodes = dict(at.graph.nodes)
    for index, (edge, number) in enumerate(what.edges):
        updates: dict[str, ir.Value] = {
            "f": ir.Function(what.functions[number]),
            "Tin": ir.Types((number,)),
            "Tout": ir.Types((what.type,)),
        }
        each, device = f"{_PROBE}_{index}", _device(at.graph, edge)
        nodes[each] = ir.Node(
            each, "PartitionedCall", (edge,), (), device, None, updates
        )
    inputs = tuple((f"{_PROBE}_{index}", 0) for index in range(len(what.edges)))
    updates = {"N": len(inputs), "T": ir.Type(what.type), "axis": 0}
    nodes[_PROBE] = ir.Node(_PROBE, "Pack", inputs, (), "", None, updates)
    result = ir.Result(_PROBE, what.type, (_PROBE, 0))
    graph = at.graph.with_nodes(nodes, (*at.graph.results, result))
    if at.call is None:
        main = dataclasses.replace(graph, name=name)
        return ir.Module(main, module.functions)
    inner = dataclasses.replace(graph, name=f"{name}_inner")
    call = calls.CALLS[at.call.op]
    types = at.call.types("Tout")
    caller = calls.renamed(at.call, call, {at.graph.name: inner.name})
    caller = caller.changed(updates={"Tout": ir.Types((*types, what.type))})
    shapes = at.call.shapes("_output_shapes")
    if shapes:
        noted = {"_output_shapes": ir.Shapes((*shapes, None))}
        caller = caller.changed(updates=noted)
    outer = {**module.main.nodes, caller.name: caller}
    result = ir.Result(_PROBE, what.type, (caller.name, len(types)))
    main = module.main.with_nodes(outer, (*module.main.results, result))
    functions = {**module.functions, inner.name: inner}
    return ir.Module(dataclasses.replace(main, name=name), functions)


def _device(graph: ir.Graph, edge: ir.Edge) -> str:
    node = graph.nodes.get(edge[0])
    return "" if node is None else node.device
