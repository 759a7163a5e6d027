"""What TensorFlow itself knows of an op: its ports, what types them, its kernels.

Read from the registered OpDefs and kernels, never written down per op. No graph logic.
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
      type: its fixed type, 0 where an attribute gives it.
      type_attr, number_attr, list_attr: attributes giving type, count, types; or "".
      is_ref: whether it is a v1 reference.
    """

    name: str
    type: int
    type_attr: str
    number_attr: str
    list_attr: str
    is_ref: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One tensor that a node reads or gives: its type and the attribute behind it."""

    type: int
    attr: str  # "" where the type is fixed
    port: str
    index: int  # within the port


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """A node's tensors in flat order, and all the types among them."""

    ins: tuple[Slot, ...]
    outs: tuple[Slot, ...]
    types: frozenset[int]


UNKNOWN = Signature((), (), frozenset())


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """An op's ports, and the types its attributes allow (() for any) or default to.

    Attributes:
      inputs, outputs: its ports.
      deciding: the attributes that give the ports their types and counts.
      allowed: by type attribute, the types it may have.
      defaults, counts: default of each type, and of each int attribute.
      met: signatures met so far, by the values of the deciding attributes.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    deciding: tuple[str, ...]
    allowed: dict[str, tuple[int, ...]]
    defaults: dict[str, int]
    counts: dict[str, int]
    met: dict[tuple[object, ...], Signature]

    def signature(self, node: Node) -> Signature:
        """The tensors of a node of this op."""
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
            found = self.met[key] = Signature(ins, outs, types)
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


@functools.cache
def schema(op: str) -> Schema | None:
    """The schema of a registered op, None for an op TensorFlow does not know."""
    definition = op_def_registry.get(op)
    return None if definition is None else from_op_def(definition)


@functools.cache
def defaults(op: str) -> dict[str, Any]:
    """The default of each attribute of a registered op that has one."""
    definition = op_def_registry.get(op)
    attrs = () if definition is None else definition.attr
    return {a.name: a.default_value for a in attrs if a.HasField("default_value")}


@functools.cache
def is_stateful(op: str) -> bool:
    """Whether running a registered op has effects; so of one that is not known."""
    definition = op_def_registry.get(op)
    return definition is None or bool(definition.is_stateful)


def lookup_in(functions: Mapping[str, Any]) -> Lookup:
    """The schema of any op, or of a function that is called as one.

    Args:
      functions: by name, what has the function's OpDef as `signature`.
    """

    @functools.cache
    def find(op: str) -> Schema | None:
        function = functions.get(op)
        return schema(op) if function is None else from_op_def(function.signature)

    return find


def lookup_of(module: Module) -> Lookup:
    """The schema of any op, or of any function of a module that is called as one."""
    origins = {name: graph.origin for name, graph in module.functions.items()}
    return lookup_in(origins)


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
    """The kernels that serve a device type; those registered as DEFAULT serve any."""
    return [
        {c.name: frozenset(c.allowed_values.list.type) for c in kernel.constraint}
        for kernel in kernel_registry.get_registered_kernels_for_op(op).kernel
        if kernel.device_type in (device_type, "DEFAULT") and not kernel.label
    ]


@functools.cache
def _constrained(op: str, device_type: str) -> tuple[str, ...]:
    return tuple({name for kernel in _kernels(op, device_type) for name in kernel})


@functools.cache
def _takes(op: str, device_type: str, types: tuple[tuple[int, ...], ...]) -> bool:
    given = dict(zip(_constrained(op, device_type), types, strict=True))
    return any(
        all(allowed.issuperset(given[name]) for name, allowed in kernel.items())
        for kernel in _kernels(op, device_type)
    )


def has_kernel(node: Node, device_type: str, low: dict[str, int]) -> bool:
    """Whether a kernel takes `node` with the type attributes `low` changed.

    A device type that this build of TensorFlow has no kernels for at all cannot be
    asked (planning for another machine), so its kernels are taken to exist.
    """
    if not _kernels("MatMul", device_type):
        return accepts(node.op, low)
    types = tuple(
        (low[name],) if name in low else node.types(name)
        for name in _constrained(node.op, device_type)
    )
    return _takes(node.op, device_type, types)


def accepts(op: str, low: dict[str, int]) -> bool:
    """Whether the OpDef allows the type attributes `low` (what XLA goes by)."""
    known = schema(op)
    if known is None:
        return False
    return all(
        name in known.allowed
        and (not known.allowed[name] or number in known.allowed[name])
        for name, number in low.items()
    )
