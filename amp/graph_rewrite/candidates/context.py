"""What rules take as input: the 16-bit format, the context of a use, and typed nodes.

Facts about one node at a time; no rule that looks at neighbours may enter.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.ops.op_table import TABLE, Kind, Role, Row, facts
from amp.graph_rewrite.plan import Reason
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """The limits of a 16-bit type.

    Attributes:
      name, number: its name and DataType number in TensorFlow.
      largest: largest finite value.
      smallest: smallest positive normal value.
      counts: all integers up to here are exact (2 to the number of significant bits).
    """

    name: str
    number: int
    largest: float
    smallest: float
    counts: int

    @property
    def unit(self) -> float:
        """The unit roundoff: half the distance from 1 to the next number."""
        return 1.0 / self.counts


# IEEE 754 binary16: 5 exponent and 11 significant bits. bfloat16: 8 and 8.
FORMATS = {
    "float16": Format("float16", ir.HALF, 65504.0, 2.0**-14, 2**11),
    "bfloat16": Format(
        "bfloat16", ir.BFLOAT16, 2.0**127 * (2 - 2**-7), 2.0**-126, 2**8
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What the rules about one use of a function depend on besides its graph.

    Attributes:
      policy: the policy, without "auto".
      format: the 16-bit type.
      device_type: whose kernels run, "CPU" or "GPU".
      native: whether the device computes in the 16-bit type.
      xla: whether XLA compiles the graph (every type that the OpDef allows then has a
        kernel, but for `Row.float32_under_xla`).
      behind: nodes that stay float32 as they are downstream of an unscale marker,
        markers included (`inner_gradients`).
      updates: nodes downstream of a marker from which no further one is computed.
      fed: nodes that the caller feeds, which stay float32.
      fetched: nodes whose tensors the caller reads in float32.
      lookup: gives the schema of any op or function.
      held: why no node of the module may become 16-bit, None if any may.
      called_on: the device of another kind that any call of the function is placed on,
        "" if none is.
      kinds: the kinds of device that there are; a node placed on one that is not there
        runs where the others do.
    """

    policy: Policy
    format: Format
    device_type: str
    native: bool
    xla: bool
    behind: frozenset[str]
    updates: frozenset[str]
    fed: frozenset[str]
    fetched: frozenset[str]
    lookup: Callable[[str], op_schema.Schema | None]
    held: Reason | None = None
    called_on: str = ""
    kinds: frozenset[str] = frozenset({"CPU"})

    def is_elsewhere(self, place: str) -> bool:
        """Whether what is placed there runs on another kind of device.

        Args:
          place: a device's name, of which parts may be missing, or "".
        """
        kind = kind_of(place)
        return kind in self.kinds and kind != self.device_type


class Typed(NamedTuple):
    """A node with its row of the op table and the types of its tensors.

    Attributes:
      node: the node.
      row: the row of its op, None if that is not on the white-list.
      signature: its input and output tensors.
      facts: the row of its op, whether it is on the white-list or not.
      ins, outs: those of the signature, which all rules read.
      float32: whether one of its tensors, or its tensor list's elements, is float32.
    """

    node: ir.Node
    row: Row | None
    signature: op_schema.Signature
    facts: Row
    ins: tuple[op_schema.Slot, ...]
    outs: tuple[op_schema.Slot, ...]
    float32: bool

    @classmethod
    def of(
        cls, node: ir.Node, row: Row | None, signature: op_schema.Signature
    ) -> Typed:
        """A node by its row and signature."""
        known = row or facts(node.op)
        float32 = ir.FLOAT in signature.types
        if row is not None and row.same_list:
            float32 = float32 or any(ir.FLOAT in node.types(a) for a in row.attrs)
        ins, outs = signature.ins, signature.outs
        return cls(node, row, signature, known, ins, outs, float32)

    @property
    def moves_values(self) -> bool:
        """Whether it hands on values; zeros for each value in a list hand on none."""
        row = self.row
        return row is not None and row.role is Role.MOVE and not row.bounded


@dataclasses.dataclass(frozen=True, slots=True)
class TypedGraph:
    """A rewritten graph with the types of its nodes' tensors.

    Attributes:
      graph: the graph.
      context: of its original, with a lookup for the functions that were made.
      typed: its nodes.
    """

    graph: ir.Graph
    context: Context
    typed: Mapping[str, Typed]


def type_ports(
    graph: ir.Graph, context: Context, before: Mapping[str, Typed] | None = None
) -> dict[str, Typed]:
    """Every node with the types of its tensors.

    An op that is not registered reads tensors of the types that they are made with, and
    what it makes is not known.

    Args:
      graph: the graph.
      context: of the use.
      before: the nodes of the graph that this one was made from; one that is still the
        same is not typed anew.
    """
    schemas = {op: context.lookup(op) for op in graph.ops}
    rows = {op: _row(op, known, context) for op, known in schemas.items()}
    typed, before = {}, before or {}
    for name, node in graph.nodes.items():
        view = before.get(name)
        if view is None or view.node is not node:
            known = schemas[node.op]
            types = op_schema.UNKNOWN if known is None else known.signature(node)
            view = Typed.of(node, rows[node.op], types)
        typed[name] = view
    unregistered = {op for op, known in schemas.items() if known is None}
    for name, node in graph.nodes.items() if unregistered else ():
        view = typed[name]
        if node.op in unregistered and view is not before.get(name):
            # One that was typed before still takes what it took then.
            ins = before[name].ins if name in before else _read(node, graph, typed)
            typed[name] = view._replace(ins=ins)
    return typed


def _read(
    node: ir.Node, graph: ir.Graph, typed: Mapping[str, Typed]
) -> tuple[op_schema.Slot, ...]:
    """The tensors that a node of an unregistered op reads, as they are made."""
    args = {(arg.name, 0): arg.type for arg in graph.args}

    def made(edge: ir.Edge) -> int:  # 0: by another such node
        if edge in args:
            return args[edge]
        outs = typed[edge[0]].outs if edge[0] in typed else ()
        return outs[edge[1]].type if edge[1] < len(outs) else 0

    return tuple(
        op_schema.Slot(made(edge), "", "", index)
        for index, edge in enumerate(node.inputs)
    )


def _row(op: str, known: op_schema.Schema | None, context: Context) -> Row | None:
    """The row of an op on the white-list, or that the policy puts there."""
    row = TABLE.get(op)
    if known is None or op not in context.policy.allow:
        return row
    return _allowed_row(op, known) if row is None or row.role is Role.KEEP else row


def _allowed_row(op: str, known: op_schema.Schema) -> Row:
    """The row of an op in the policy's `allow`: role `FOLLOW`, other facts unchanged.

    For an op that is not on the white-list, `attrs` are all type attributes that may be
    16-bit.
    """
    row = facts(op)
    attrs = row.attrs
    if row.role is None:
        given = {p.type_attr or p.list_attr for p in (*known.inputs, *known.outputs)}
        attrs = tuple(
            sorted(a for a in given if a and op_schema.accepts(op, {a: ir.HALF}))
        )
    why, source = "allowed by the policy", "definition"
    return dataclasses.replace(
        row, op=op, role=Role.FOLLOW, why=why, source=source, attrs=attrs
    )


def turning(view: Typed, format_number: int) -> dict[str, int]:
    """The type attributes to change for a 16-bit node, with the new type of each."""
    row = view.row
    if row is None:
        return {}
    return {a: format_number for a in row.attrs if ir.FLOAT in view.node.types(a)}


def is_low(view: Typed, number: int) -> bool:
    """Whether a node is 16-bit as given, natively or emulated; casts do not count."""
    node, row = view.node, view.row
    if node.has(ir.EMULATED):
        return True
    if row is None or row.role is Role.KEEP or row.kind is Kind.CONSTANT:
        return False
    return any(number in node.types(attr) for attr in row.attrs)


# "/device:GPU:1" and "/gpu:1", but not the "worker" of "/job:worker/task:0".
_KIND = re.compile(r"(?:^|/)(?:DEVICE:)?(?!(?:JOB|REPLICA|TASK|DEVICE):)([A-Z_]+):")


@functools.lru_cache(maxsize=1024)
def kind_of(device: str) -> str:
    """The kind of a device, "" if its name, of which parts may be missing, has none."""
    found = _KIND.search(device.upper())
    return found[1] if found else ""
