"""What TensorFlow registers about an op: its ports, their types, and its kernels.

Everything is read from registered OpDefs and kernels; no list of ops is kept here, and
no graph is walked.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from tensorflow.python.framework import kernels as kernel_registry
from tensorflow.python.framework import op_def_registry

from amp.graph_rewrite.graph.ir import REF_OFFSET, Module, Node


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """One argument of an OpDef, which may stand for several tensors.

    Attributes:
      name: the argument's name.
      type: its DataType number if fixed, 0 where an attribute gives it.
      type_attr, number_attr, list_attr: the attributes that give its type, its number
        of tensors, or a list of types; "" for none.
      is_ref: whether it is a reference to a v1 variable.
    """

    name: str
    type: int
    type_attr: str
    number_attr: str
    list_attr: str
    is_ref: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One input or output tensor of a node.

    Attributes:
      type: its DataType number.
      attr: the attribute that gives the type, "" where the type is fixed.
      port: the OpDef argument that it belongs to.
      index: its number within that argument.
    """

    type: int
    attr: str
    port: str
    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """A node's tensors.

    Attributes:
      ins, outs: inputs and outputs in flat order.
      types: the set of their types.
      made: the types of the outputs.
    """

    ins: tuple[Slot, ...]
    outs: tuple[Slot, ...]
    types: frozenset[int]
    made: tuple[int, ...]


UNKNOWN = Signature((), (), frozenset(), ())


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """An op's ports and its type attributes.

    Attributes:
      inputs, outputs: its ports.
      deciding: the attributes that give the ports their types and counts.
      allowed: the types that each type attribute may have; () for any.
      defaults: the default of each type attribute.
      counts: the default of each int attribute.
      met: a cache of signatures, by the values of the deciding attributes.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    deciding: tuple[str, ...]
    allowed: dict[str, tuple[int, ...]]
    defaults: dict[str, int]
    counts: dict[str, int]
    met: dict[tuple[object, ...], Signature]

    def input_count(self, node: Node) -> int:
        """The number of inputs that a node of this op has, which may be huge."""
        count = 0
        for port in self.inputs:
            if port.list_attr:
                count += len(node.types(port.list_attr))
            elif port.number_attr:
                count += node.integer(port.number_attr, self.counts[port.number_attr])
            else:
                count += 1
        return count

    def signature(self, node: Node) -> Signature:
        """The input and output tensors of a node of this op."""
        if node.attrs is None or node.updates:
            return self._signature(node)
        known = node.attrs.signature
        if known is None or known[0] is not self:
            known = node.attrs.signature = (self, self._signature(node))
        found: Signature = known[1]
        return found

    def _signature(self, node: Node) -> Signature:
        counts = self.counts
        key = tuple(
            node.integer(attr, counts[attr]) if attr in counts else node.types(attr)
            for attr in self.deciding
        )
        found = self.met.get(key)
        if found is None:
            ins = tuple(self._slots(self.inputs, node))
            outs = tuple(self._slots(self.outputs, node))
            types = frozenset(slot.type for slot in (*ins, *outs))
            made = tuple(slot.type for slot in outs)
            found = self.met[key] = Signature(ins, outs, types, made)
        return found

    def _slots(self, ports: tuple[Port, ...], node: Node) -> Iterator[Slot]:
        for port in ports:
            if port.list_attr:
                for index, number in enumerate(node.types(port.list_attr)):
                    yield Slot(number, port.list_attr, port.name, index)
                continue
            number = port.type
            if port.type_attr:
                given = node.types(port.type_attr)
                number = given[0] if given else self.defaults.get(port.type_attr, 0)
            if port.is_ref:
                number += REF_OFFSET
            count = 1
            if port.number_attr:
                count = node.integer(port.number_attr, self.counts[port.number_attr])
            for index in range(count):
                yield Slot(number, port.type_attr, port.name, index)


Lookup: TypeAlias = Callable[[str], Schema | None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Registered:
    """What is asked of registered ops, as the functions below return it."""

    schema: Schema | None
    attributes: frozenset[str]
    defaults: dict[str, Any]
    is_stateful: bool
    calls_functions: bool


_UNREGISTERED = _Registered(None, frozenset(), {}, True, False)
_REGISTERED: dict[str, _Registered] = {}


def _registered(op: str) -> _Registered:
    """What is known of an op; one that is not registered may be later, by a library."""
    known = _REGISTERED.get(op)
    if known is not None:
        return known
    definition = op_def_registry.get(op)
    if definition is None:
        return _UNREGISTERED
    attrs = definition.attr
    known = _REGISTERED[op] = _Registered(
        from_op_def(definition),
        frozenset(a.name for a in attrs),
        {a.name: a.default_value for a in attrs if a.HasField("default_value")},
        bool(definition.is_stateful),
        any(a.type in ("func", "list(func)") for a in attrs),
    )
    return known


def schema(op: str) -> Schema | None:
    """The schema of a registered op, None for an op that is not registered."""
    return _registered(op).schema


def attributes(op: str) -> frozenset[str]:
    """The names of a registered op's attributes."""
    return _registered(op).attributes


def defaults(op: str) -> dict[str, Any]:
    """The default values (AttrValue) of a registered op's attributes, by name."""
    return _registered(op).defaults


def is_stateful(op: str) -> bool:
    """Whether an op is registered as stateful; True for an unregistered op."""
    return _registered(op).is_stateful


def calls_functions(op: str) -> bool:
    """Whether a registered op has functions among its attributes."""
    return _registered(op).calls_functions


def lookup_in(functions: Mapping[str, Any]) -> Lookup:
    """A lookup of schemas for registered ops and for functions called as ops.

    Args:
      functions: FunctionDefs by name (or anything with an OpDef as `signature`).
    """

    @functools.cache
    def find(op: str) -> Schema | None:
        function = functions.get(op)
        return schema(op) if function is None else from_op_def(function.signature)

    return find


def lookup_of(module: Module) -> Lookup:
    """A lookup of schemas for registered ops and for the functions of a module."""
    return lookup_in({graph.name: graph.origin for graph in module.graphs()})


def from_op_def(definition: object) -> Schema:
    """The schema of an OpDef (a registered op's, or a function's signature)."""
    attrs = definition.attr  # type: ignore[attr-defined]
    types = [a for a in attrs if a.type == "type"]
    lists = [a for a in attrs if a.type == "list(type)"]
    inputs = _ports(definition.input_arg)  # type: ignore[attr-defined]
    outputs = _ports(definition.output_arg)  # type: ignore[attr-defined]
    deciding = {
        attr: None
        for port in (*inputs, *outputs)
        for attr in (port.type_attr, port.number_attr, port.list_attr)
        if attr
    }
    return Schema(
        inputs=inputs,
        outputs=outputs,
        deciding=tuple(deciding),
        allowed={a.name: tuple(a.allowed_values.list.type) for a in types + lists},
        defaults={a.name: a.default_value.type for a in types},
        counts={a.name: a.default_value.i for a in attrs if a.type == "int"},
        met={},
    )


def _ports(args: object) -> tuple[Port, ...]:
    return tuple(
        Port(a.name, a.type, a.type_attr, a.number_attr, a.type_list_attr, a.is_ref)
        for a in args  # type: ignore[attr-defined]
    )


_Kernel: TypeAlias = dict[str, frozenset[int]]  # by attribute, the types it takes


@functools.cache
def _kernels(op: str, device_type: str) -> list[_Kernel]:
    """The type constraints of each kernel of an op for a device type.

    Kernels that are registered for DEFAULT serve every device type.
    """
    return [
        {c.name: frozenset(c.allowed_values.list.type) for c in kernel.constraint}
        for kernel in kernel_registry.get_registered_kernels_for_op(op).kernel
        if kernel.device_type in (device_type, "DEFAULT") and not kernel.label
    ]


@functools.cache
def _constrained(op: str, device_type: str) -> tuple[str, ...]:
    """The type attributes that any kernel of the op restricts."""
    return tuple({name for kernel in _kernels(op, device_type) for name in kernel})


@functools.cache
def _takes(op: str, device_type: str, types: tuple[tuple[int, ...], ...]) -> bool:
    """Whether a kernel takes these types of the attributes of `_constrained`."""
    given = dict(zip(_constrained(op, device_type), types, strict=True))
    return any(
        all(allowed.issuperset(given[name]) for name, allowed in kernel.items())
        for kernel in _kernels(op, device_type)
    )


def has_kernel(node: Node, device_type: str, low: dict[str, int]) -> bool:
    """Whether a kernel exists for `node` with its type attributes changed to `low`.

    If this build of TensorFlow has no kernels for the device type at all (a GPU plan
    made by a CPU-only build), the OpDef decides instead.

    Args:
      node: the node.
      device_type: "CPU" or "GPU".
      low: new DataType number by type attribute.
    """
    if not _kernels("MatMul", device_type):
        return accepts(node.op, low)
    types = tuple(
        (low[name],) if name in low else node.types(name)
        for name in _constrained(node.op, device_type)
    )
    return _takes(node.op, device_type, types)


def accepts(op: str, low: dict[str, int]) -> bool:
    """Whether the OpDef allows the type attributes `low`, which XLA mostly compiles."""
    known = schema(op)
    if known is None:
        return False
    return all(
        name in known.allowed
        and (not known.allowed[name] or number in known.allowed[name])
        for name, number in low.items()
    )
