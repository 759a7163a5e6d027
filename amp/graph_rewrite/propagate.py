"""Which nodes may be held in 16 bits: white-list, gates, hazards, then propagation.

Each phase is a function on explicit sets and gives every node it refuses a `Reason`. No
cost and no change to the graph may enter.

Order of the phases, each of which only narrows what the one before allowed:

1. `eligible`: the op table, the policy, the kernel gate, one node at a time;
2. `sinks`: arithmetic that only updates variables or only computes an integer;
3. `ranges`: values that the 16-bit type cannot hold;
4. `reach`: downstream of a compute node, plus the move nodes that feed one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from amp.graph_rewrite import cost, ir, op_schema
from amp.graph_rewrite.op_table import TABLE, Role, Row
from amp.graph_rewrite.plan import Reason
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
    "bfloat16": Format("bfloat16", ir.BFLOAT16, 2.0**127 * (2 - 2**-7), 2.0**-126, 2**8),
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
      held: fetched nodes' names do not matter, fed ones do: these stay float32.
      lookup: schema of any op or function.
    """

    policy: Policy
    format: Format
    device_type: str
    native: bool
    xla: bool
    behind: frozenset[str]
    held: frozenset[str]
    lookup: Callable[[str], op_schema.Schema | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Typed:
    """A node with its ports' types."""

    node: ir.Node
    row: Row | None
    ins: list[op_schema.Slot]
    outs: list[op_schema.Slot]

    def touches(self, number: int) -> bool:
        return any(s.type == number for s in self.ins) or any(
            s.type == number for s in self.outs
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The outcome: who may be low, who is already, and why the others may not."""

    typed: Mapping[str, Typed]
    allowed: Mapping[str, Reason]
    already: frozenset[str]
    refused: Mapping[str, Reason]


def candidates(graph: ir.Graph, context: Context) -> Candidates:
    """Runs the four phases on one graph."""
    typed = type_ports(graph, context)
    order, _ = ir.topological(graph)
    readers = ir.consumers(graph)
    already = frozenset(n for n, t in typed.items() if is_low(t, context.format.number))
    refused: dict[str, Reason] = {}
    for name, view in typed.items():
        if name not in already and view.touches(ir.FLOAT):
            reason = eligible(view, context)
            if reason is not None:
                refused[name] = reason
    refused |= sinks(graph, typed, order, readers, refused)
    refused |= ranges(graph, typed, order, context, refused)
    free = {
        name
        for name, view in typed.items()
        if view.touches(ir.FLOAT) and name not in refused and name not in already
    }
    allowed = reach(typed, order, readers, free, already)
    for name in free - allowed.keys():
        refused[name] = Reason("unreached", "no product in 16 bits upstream")
    return Candidates(typed, allowed, already, refused)


def type_ports(graph: ir.Graph, context: Context) -> dict[str, Typed]:
    """Every node with the types of its ports; an unknown op has none."""
    typed = {}
    extra = set(context.policy.allow)
    for name, node in graph.nodes.items():
        known = context.lookup(node.op)
        row = TABLE.get(node.op)
        if known is None:
            typed[name] = Typed(node, row, [], [])
            continue
        if node.op in extra and (row is None or row.role is Role.KEEP):
            row = _allowed_row(node.op, known)
        ins = op_schema.slots(known.inputs, node, known)
        outs = op_schema.slots(known.outputs, node, known)
        typed[name] = Typed(node, row, ins, outs)
    return typed


def _allowed_row(op: str, known: op_schema.Schema) -> Row:
    attrs = {p.type_attr or p.list_attr for p in (*known.inputs, *known.outputs)}
    usable = tuple(sorted(a for a in attrs if a and op_schema.accepts(op, {a: ir.HALF})))
    return Row(op, Role.FOLLOW, "allowed by the policy", "definition", attrs=usable)


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
    if row is None or node.op == "Const":
        return False
    return any(number in node.types(attr) for attr in row.attrs)


def eligible(view: Typed, context: Context) -> Reason | None:
    """Why a node cannot be held in 16 bits whatever its neighbours do, or None.

    Case 1: the policy or the user's code keeps it. Case 2: it is downstream of a marker.
    Case 3: the table does not have it or keeps it. Case 4: nothing of it can turn.
    """
    node, row, policy = view.node, view.row, context.policy
    if node.flag(ir.KEEP):
        return Reason("keep", "keep_float32() or an optimizer")
    if policy.keep and policy.keeps(node.name):
        return Reason("keep", f"a pattern of keep={policy.keep}")
    if node.name in context.held:
        return Reason("fed", node.name)
    if node.name in context.behind:
        return Reason("unscale", node.name)
    if node.op in policy.deny:
        return Reason("deny", node.op)
    if row is None:
        return Reason("unlisted", node.op)
    if row.role is Role.KEEP:
        return Reason("listed", row.why)
    if row.same_list:
        return Reason("list", "its list crosses a boundary in float32")
    low = turning(view, context.format.number)
    if not low:
        return Reason("unlisted", f"{node.op} without a float32 attribute that may turn")
    if any(slot.type == ir.RESOURCE for slot in view.ins):
        return Reason("variable", node.op)
    return _gate(view, low, context)


def _gate(view: Typed, low: dict[str, int], context: Context) -> Reason | None:
    node = view.node
    device = "CPU" if "CPU:" in node.device.upper() else context.device_type
    turned = f"{node.op} in {context.format.name} on {device}"
    if context.policy.emulate or context.xla:
        if op_schema.accepts(node.op, low):
            return None
        return Reason("kernel", turned)
    return None if op_schema.has_kernel(node, device, low) else Reason("kernel", turned)


_WRITERS = ("Assign", "Apply", "SparseApply", "Scatter")


def _writes_state(op: str) -> bool:
    name = op.removeprefix("Resource")
    return name.startswith(_WRITERS)


def sinks(
    graph: ir.Graph,
    typed: Mapping[str, Typed],
    order: Iterable[str],
    readers: Mapping[ir.Edge, list[tuple[str, int]]],
    refused: Mapping[str, Reason],
) -> dict[str, Reason]:
    """Refuses arithmetic whose every reader updates a variable or casts to an integer.

    The walk goes against the edges and stops at products, at sums (the gradient of a
    bias) and at the function's results.
    """
    found: dict[str, Reason] = {}
    returned = {result.edge[0] for result in graph.results}
    for name in reversed(list(order)):
        view = typed[name]
        if name in refused or name in returned or not view.touches(ir.FLOAT):
            continue
        row = view.row
        if row is None or row.role is Role.COMPUTE or row.sums:
            continue
        ends = {
            _sink(typed[reader], found)
            for index in range(len(view.outs))
            for reader, _ in readers.get((name, index), ())
        }
        if len(ends) == 1 and (reason := ends.pop()) is not None:
            found[name] = reason
    return found


def _sink(view: Typed, found: Mapping[str, Reason]) -> Reason | None:
    node = view.node
    if node.name in found:
        return found[node.name]
    if _writes_state(node.op):
        return Reason("state", node.name)
    integers = (ir.INT32, ir.INT64)
    if node.op == "Cast" and view.outs and view.outs[0].type in integers:
        return Reason("integer", node.name)
    return None


_PASS = frozenset({"Identity", "Cast", "Snapshot", "StopGradient", "PreventGradient"})


def ranges(
    graph: ir.Graph,
    typed: Mapping[str, Typed],
    order: Iterable[str],
    context: Context,
    refused: Mapping[str, Reason],
) -> dict[str, Reason]:
    """Refuses what reads or sums to values that the 16-bit type cannot hold.

    Case 1: a constant (an epsilon, a mask of -1e9) that rounds away or to infinity; its
      readers stay float32, and theirs, until a bounded result, a product, or an op that
      is singular there (a division by it) has used it up.
    Case 2: what that singular op gives may be huge (1/sqrt(1e-12)); its readers stay.
    Case 3: the scaled gradient seed (a loss scale may exceed float16's largest value);
      its readers stay.
    Case 4: a sum of more elements than the type, or its kernel, can count.
    """
    found: dict[str, Reason] = {}
    marks: dict[str, _Mark] = {}
    for name in order:
        view = typed[name]
        node = view.node
        if node.op == "Const":
            mark = _constant_mark(view, context.format)
        elif node.flag(ir.SEED) and context.format.name == "float16":
            mark = _Mark(context.format.largest * 2, name, once=True)
        else:
            mark = _read_mark(view, marks, found)
        if mark is not None:
            marks[name] = mark
        if name not in refused and name not in found and view.row is not None:
            reason = _count(graph, view, context)
            if reason is not None:
                found[name] = reason
    return {name: reason for name, reason in found.items() if name not in refused}


@dataclasses.dataclass(frozen=True, slots=True)
class _Mark:
    """A node's output may hold `magnitude`, from `source`; `once`: one reader uses it up."""

    magnitude: float
    source: str
    once: bool = False


def _constant_mark(view: Typed, limits: Format) -> _Mark | None:
    if not view.outs or view.outs[0].type != ir.FLOAT:
        return None
    values = view.node.tensor()
    size = np.abs(values[np.isfinite(values)]) if values is not None else np.zeros(0)
    largest = float(size.max()) if size.size else 0.0
    if largest > limits.largest or 0.0 < largest < limits.smallest:
        return _Mark(largest, view.node.name)
    return None


def _read_mark(
    view: Typed, marks: Mapping[str, _Mark], found: dict[str, Reason]
) -> _Mark | None:
    node, row = view.node, view.row
    if not marks or not any(edge[0] in marks for edge in node.inputs):
        return None
    index, mark = max(
        (
            (index, marks[edge[0]])
            for index, edge in enumerate(node.inputs)
            if edge[0] in marks and index < len(view.ins)
        ),
        key=lambda pair: pair[1].once,
        default=(0, None),
    )
    if mark is None or view.ins[index].type != ir.FLOAT:
        return None
    if node.op in _PASS or (row is not None and row.role is Role.MOVE):
        if row is not None:
            found[node.name] = Reason("range", mark.source)
        return mark
    if row is None or row.role is Role.KEEP:
        return None
    found[node.name] = Reason("range", mark.source)
    if mark.once or row.bounded or row.role is Role.COMPUTE:
        return None
    if index in row.singular:
        unary = sum(slot.type == ir.FLOAT for slot in view.ins) == 1
        return _Mark(mark.magnitude, mark.source, once=True) if unary else None
    return mark


def _count(graph: ir.Graph, view: Typed, context: Context) -> Reason | None:
    row, limits = view.row, context.format
    assert row is not None
    low = _sums_low(row, context)
    if not low and not (row.sums and limits.name == "float16"):
        return None
    limit = limits.counts if low else limits.largest
    terms = _terms(graph, view)
    if terms is None and low:
        return Reason("count", f"an unknown number of terms, at most {limit:.0f}")
    if terms is not None and terms > limit:
        return Reason("count", f"{terms:.0f} terms, at most {limit:.0f}")
    return None


def _sums_low(row: Row, context: Context) -> bool:
    """Whether the kernel that will run adds up in the 16-bit type itself.

    TensorFlow's own CPU kernels may; products of a type that the CPU computes run in
    oneDNN, which adds up in float32, as GPU kernels and XLA do.
    """
    if context.xla or context.device_type != "CPU" or context.policy.emulate:
        return False
    if context.native and row.role is Role.COMPUTE:
        return False
    return context.format.name in row.accumulates_low


def _terms(graph: ir.Graph, view: Typed) -> float | None:
    """How many terms each output element sums, None where shapes do not tell.

    Unknown dimensions (a batch) that stay in the output cancel out.
    """
    row = view.row
    assert row is not None
    ins = [graph.shape(edge) for edge in view.node.inputs]
    outs = [graph.shape((view.node.name, i)) for i in range(len(view.outs))]
    data = [shape for shape, slot in zip(ins, view.ins, strict=False) if _float(slot)]
    if not data or not outs or outs[0] is None or any(s is None for s in data):
        return None
    largest = max(data, key=cost.elements) or ()
    if largest.count(-1) > outs[0].count(-1):
        return None
    out = max(cost.elements(outs[0]), 1)
    if row.sums:
        return cost.elements(largest) / out
    return cost.flops(row.work, ins, outs) / 2 / out


def _float(slot: op_schema.Slot) -> bool:
    return slot.type == ir.FLOAT


def reach(
    typed: Mapping[str, Typed],
    order: Iterable[str],
    readers: Mapping[ir.Edge, list[tuple[str, int]]],
    free: set[str],
    already: frozenset[str],
) -> dict[str, Reason]:
    """The free nodes downstream of a compute node through free nodes, and move nodes
    that feed one.
    """
    order = list(order)
    allowed: dict[str, Reason] = {}
    for name in order:
        if name not in free:
            continue
        view = typed[name]
        row = view.row
        if row is not None and row.role is Role.COMPUTE:
            allowed[name] = Reason("compute", row.why)
            continue
        for source, _ in view.node.inputs:
            if source in allowed or source in already or _casts_low(typed, source):
                rule = "move" if row is not None and row.role is Role.MOVE else "follow"
                allowed[name] = Reason(rule, source)
                break
    for name in reversed(order):
        view = typed[name]
        if name in allowed or name not in free:
            continue
        if view.row is None or view.row.role is not Role.MOVE:
            continue
        for index in range(len(view.outs)):
            for reader, _ in readers.get((name, index), ()):
                if reader in allowed or reader in already:
                    allowed[name] = Reason("move", reader)
    return allowed


def _casts_low(typed: Mapping[str, Typed], name: str) -> bool:
    """Whether a node is the cast back to float32 of a 16-bit value."""
    view = typed.get(name)
    return (
        view is not None
        and view.node.op == "Cast"
        and view.ins[0].type in (ir.HALF, ir.BFLOAT16)
    )
