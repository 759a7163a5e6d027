"""What decisions depend on: a 16-bit format, the circumstances, and nodes with types.

Facts about one node at a time; no rule that looks at neighbours may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.ops.op_table import TABLE, Kind, Role, Row, facts
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """A 16-bit type's limits.

    Attributes:
      name, number: as TensorFlow has them.
      largest: largest finite value.
      smallest: smallest positive normal value.
      counts: the integers up to here are exact (2 to the number of significant bits).
    """

    name: str
    number: int
    largest: float
    smallest: float
    counts: int


# IEEE 754 binary16: 5 exponent and 11 significant bits. bfloat16: 8 and 8.
FORMATS = {
    "float16": Format("float16", ir.HALF, 65504.0, 2.0**-14, 2**11),
    "bfloat16": Format(
        "bfloat16", ir.BFLOAT16, 2.0**127 * (2 - 2**-7), 2.0**-126, 2**8
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What decisions depend on besides the graph.

    Attributes:
      policy: with every "auto" settled.
      format: the 16-bit type.
      device_type: whose kernels run, "CPU" or "GPU".
      native: whether the device has arithmetic in the type.
      xla: whether XLA compiles the graph (then kernels are whatever the op allows).
      behind: nodes downstream of an unscale marker, markers included.
      fed: nodes that the caller feeds, which stay float32.
      fetched: nodes whose tensors the caller reads in float32.
      lookup: schema of any op or function.
    """

    policy: Policy
    format: Format
    device_type: str
    native: bool
    xla: bool
    behind: frozenset[str]
    fed: frozenset[str]
    fetched: frozenset[str]
    lookup: Callable[[str], op_schema.Schema | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Typed:
    """A node with its row and its ports' types.

    Attributes:
      node: the node.
      row: of its op, None where that is not on the white-list.
      signature: types of its ports.
    """

    node: ir.Node
    row: Row | None
    signature: op_schema.Signature

    @property
    def facts(self) -> Row:
        """What is known of its op, on the white-list or not."""
        return facts(self.node.op) if self.row is None else self.row

    @property
    def ins(self) -> tuple[op_schema.Slot, ...]:
        return self.signature.ins

    @property
    def outs(self) -> tuple[op_schema.Slot, ...]:
        return self.signature.outs

    def touches(self, number: int) -> bool:
        """Whether any of its tensors, or of those in its list, has this type."""
        if number in self.signature.types:
            return True
        listed = self.row is not None and self.row.same_list
        return listed and number in self.node.types("element_dtype")


def type_ports(graph: ir.Graph, context: Context) -> dict[str, Typed]:
    """Every node with the types of its ports; an unknown op has none."""
    typed = {}
    extra = set(context.policy.allow)
    for name, node in graph.nodes.items():
        known = context.lookup(node.op)
        row = TABLE.get(node.op)
        if known is None:
            typed[name] = Typed(node, row, op_schema.UNKNOWN)
            continue
        if node.op in extra and (row is None or row.role is Role.KEEP):
            row = _allowed_row(node.op, known)
        typed[name] = Typed(node, row, known.signature(node))
    return typed


def _allowed_row(op: str, known: op_schema.Schema) -> Row:
    """The row of an op that the policy allows: a role, and all else that is known.

    What has no role has no attributes that turn either: then every type attribute that
    may be 16-bit does.
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
    """The type attributes of a node that turn, with their new type."""
    row = view.row
    if row is None:
        return {}
    return {a: format_number for a in row.attrs if ir.FLOAT in view.node.types(a)}


def is_low(view: Typed, number: int) -> bool:
    """Whether a node computes in the 16-bit type already (a cast does not compute)."""
    node, row = view.node, view.row
    if node.has(ir.EMULATED):
        return True
    if row is None or row.role is Role.KEEP or row.kind is Kind.CONSTANT:
        return False
    return any(number in node.types(attr) for attr in row.attrs)
