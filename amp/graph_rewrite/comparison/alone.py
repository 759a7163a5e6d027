"""Tells a wrong 16-bit kernel from a model that errors grow in: each node by itself.

Beside each 16-bit node of a twin stands the same node in float32, which reads the very
values that the 16-bit node reads. So its inputs' errors play no part: what the two
differ by is the kernel's own. For sums and products a third one gives the sum of the
absolute values of what is added up, to which errors of addition are relative.

Nothing is run here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np

from amp.graph_rewrite.candidates.context import Format
from amp.graph_rewrite.candidates.sums import TERMS
from amp.graph_rewrite.comparison import noise
from amp.graph_rewrite.comparison.pair import Pair, edge_type
from amp.graph_rewrite.comparison.tensor_errors import Array
from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import Kind, Role, facts

# A kernel may round so many times: its result, and up to three partial results, as the
# softmax of float16 does (measured; ops.accumulation).
ROUNDINGS = 4
_FLOAT32_UNIT = 2.0**-24


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """A 16-bit node with the nodes that stand beside it.

    Attributes:
      name, op: of the node.
      found: its result in 16 bits.
      exact: its result in float32 on the same inputs.
      total: the same of the absolute values, None where nothing is added up.
      terms: how many terms an element of the result may be the sum of.
    """

    name: str
    op: str
    found: ir.Edge
    exact: ir.Edge
    total: ir.Edge | None
    terms: float

    @property
    def edges(self) -> tuple[ir.Edge, ...]:
        """Where `kernel_error` finds what it judges by."""
        more = () if self.total is None else (self.total,)
        return (self.found, self.exact, *more)


def with_float32_beside(pair: Pair) -> tuple[ir.Module, list[Beside]]:
    """The twin with float32 nodes beside its 16-bit nodes, and where they are.

    In an emulated twin there are none: its kernels are float32's.
    """
    twin, plain = pair.twin.main, pair.plain.main
    lookup, twins = op_schema.lookup_of(pair.plain), op_schema.lookup_of(pair.twin)
    nodes, found = dict(twin.nodes), []
    for name in twin.order:
        given, low = plain.nodes.get(name), twin.nodes[name]
        if given is None or not _is_checked(low, pair, twins):
            continue
        known = lookup(given.op)
        if known is None or op_schema.is_stateful(given.op):
            continue
        ins = known.signature(given).ins
        if len(low.inputs) < len(ins) or given.op != low.op:
            continue
        floats = [i for i, slot in enumerate(ins) if slot.type == ir.FLOAT]
        inputs = {i: low.inputs[i] for i in floats}
        made = _beside(given, low, inputs, pair, twins)
        nodes.update({node.name: node for node in made})
        total = noise.total(name) if noise.adds_up(given.op) else None
        terms = _terms(plain, given) if total is not None else 1.0
        edges = (name, 0), (_alone(name), 0)
        found.append(Beside(name, given.op, *edges, total, terms))
    return ir.Module(twin.with_nodes(nodes), pair.twin.functions), found


def _is_checked(node: ir.Node, pair: Pair, lookup: op_schema.Lookup) -> bool:
    """Whether a node computes in 16 bits, by a kernel of its own."""
    row = facts(node.op)
    if row.role not in (Role.COMPUTE, Role.FOLLOW) and row.role is not None:
        return False
    known = lookup(node.op)
    if known is None or calls.call_of(node, pair.twin.functions) is not None:
        return False
    outs = known.signature(node).outs
    opaque = bool(row.opaque) or row.same_list or row.in_frames or row.kind is Kind.CAST
    return bool(outs) and outs[0].type == pair.number and not opaque


def _beside(
    given: ir.Node,
    low: ir.Node,
    inputs: Mapping[int, ir.Edge],
    pair: Pair,
    lookup: op_schema.Lookup,
) -> list[ir.Node]:
    """The float32 node, the casts that it reads through, and that of absolute values.

    Args:
      given: the node in float32.
      low: the node in 16 bits.
      inputs: by the number of an input with floating values, what the latter reads.
      pair: the function and its twin.
      lookup: of the twin.
    """
    made, edges = [], list(given.inputs)
    for index, edge in inputs.items():
        edges[index] = edge
        if edge_type(pair.twin.main, edge, lookup) == pair.number:
            cast = {"SrcT": ir.Type(pair.number), "DstT": ir.Type(ir.FLOAT)}
            name = f"{low.name}/amp_alone_{index}"
            made.append(ir.Node(name, "Cast", (edge,), (), low.device, None, cast))
            edges[index] = (name, 0)
    alone = dataclasses.replace(
        given, name=_alone(low.name), inputs=tuple(edges), pristine=False
    )
    made.append(alone)
    if noise.adds_up(given.op):
        made += noise.sized(alone, low.name, edges, op_schema.lookup_of(pair.plain))
    return made


def _alone(name: str) -> str:
    return f"{name}/amp_alone"


def _terms(graph: ir.Graph, node: ir.Node) -> float:
    """At most how many terms an element of the result adds up."""
    ins = [graph.size(edge) for edge in node.inputs]
    out = graph.size((node.name, 0))
    row = facts(node.op)
    if row.role is Role.COMPUTE:
        flops = arithmetic.flops(row, ins, [out], node.text("equation"))
        return max(flops / 2 / max(_elements(out), 1), 1.0)
    return max((_elements(shape) for shape in ins), default=1) / max(_elements(out), 1)


def _elements(shape: ir.Shape) -> float:
    return 1.0 if shape is None else float(math.prod(max(size, 1) for size in shape))


@dataclasses.dataclass(frozen=True, slots=True)
class KernelError:
    """A 16-bit node by itself.

    Attributes:
      name, op: of the node.
      error: the norm of the difference from float32 on the same inputs, over the norm
        of the latter.
      allowed: what `ROUNDINGS` roundings and sums of float32 explain.
    """

    name: str
    op: str
    error: float
    allowed: float

    @property
    def wrong(self) -> bool:
        """Whether no rounding explains it."""
        return not self.error <= self.allowed


def kernel_error(
    beside: Beside, arrays: Iterator[Array], limits: Format, *, low: bool
) -> KernelError:
    """Judges one node.

    The bound of the difference, element by element, of a result y with n terms whose
    absolute values add up to t: `ROUNDINGS` u |y| for the roundings, n 2**-24 t for
    sums in float32 (both kernels' partial sums), and the spacing of denormals. Where
    the kernel is known to add up in 16 bits, no more than `TERMS` terms are planned,
    whose partial sums lose at most TERMS u t.

    Args:
      beside: the node.
      arrays: its result in 16 bits, that in float32 and, if there is one, the total.
      limits: of the 16-bit type.
      low: whether the kernel is known to add up in 16 bits.
    """
    found, exact = next(arrays), next(arrays)
    total = next(arrays) if beside.total is not None else np.abs(exact)
    fits = np.abs(exact) < limits.largest * (1.0 - ROUNDINGS * limits.unit)
    finite = np.isfinite(found) | ~fits
    both = fits & np.isfinite(found) & np.isfinite(total)
    wanted = np.where(both, exact, 0).astype(np.float64)
    off = np.where(both, found, 0).astype(np.float64) - wanted
    sums = TERMS * limits.unit if low else 2 * beside.terms * _FLOAT32_UNIT
    if beside.total is None:
        sums = 0.0
    bound = ROUNDINGS * limits.unit * np.abs(wanted) + 2 * limits.smallest * limits.unit
    bound = bound + sums * np.where(both, total, 0)
    size = float(np.linalg.norm(wanted)) or 1.0
    error = float(np.linalg.norm(off)) / size if finite.all() else math.inf
    return KernelError(
        beside.name, beside.op, error, float(np.linalg.norm(bound)) / size
    )
