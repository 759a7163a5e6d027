"""Reads and writes single node attributes: AttrValue protobufs to `ir` values and back.

Only attribute values are handled here; `serde` reads and writes nodes and graphs. No
other module touches protobuf classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from google.protobuf import text_format  # type: ignore[import-untyped]
from tensorflow.core.framework import attr_value_pb2, node_def_pb2, types_pb2
from tensorflow.python.framework import tensor_util

from amp.graph_rewrite.graph import ir, op_schema, rounding

# Constants of up to this many values are kept as they were read; others take memory.
_SMALL = 64
# What the values of a type are written as; those of others are float32.
_HELD_AS = {ir.BOOL: np.bool_, ir.INT32: np.int32}
_FIELDS = (field.name for field in node_def_pb2.NodeDef.DESCRIPTOR.fields)
_NO_ATTRIBUTES = tuple(name for name in _FIELDS if name != "attr")


class NodeAttributes:
    """Implements `ir.Attributes` by reading a NodeDef, which it never changes."""

    __slots__ = ("_attr", "_names", "_read", "_texts", "proto", "signature")

    def __init__(self, proto: node_def_pb2.NodeDef) -> None:
        self.proto = proto
        self._attr = proto.attr
        self._names = frozenset(self._attr)  # most questions are about absent ones
        self.signature: Any = None
        self._texts: dict[str, str] | None = None
        self._read: dict[str, Any] = {}  # types and small tensors, asked for often

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def _get(self, name: str) -> Any:
        return self._attr[name] if name in self._names else None

    def types(self, name: str) -> tuple[int, ...]:
        known: tuple[int, ...] | None = self._read.get(name)
        if known is None:
            if name not in self._names:
                return ()
            value = self._attr[name]
            known = (value.type,) if value.type else tuple(value.list.type)
            self._read[name] = known
        return known

    def integer(self, name: str, default: int) -> int:
        value = self._get(name)
        return default if value is None else value.i

    def integers(self, name: str) -> tuple[int, ...]:
        value = self._get(name)
        return () if value is None else tuple(value.list.i)

    def text(self, name: str) -> str:
        value = self._get(name)
        return "" if value is None else value.s.decode("utf-8", "replace")

    def strings(self, name: str) -> tuple[str, ...]:
        value = self._get(name)
        if value is None:
            return ()
        return tuple(text.decode("utf-8", "replace") for text in value.list.s)

    def flag(self, name: str) -> bool:
        value = self._get(name)
        return value is not None and bool(value.b)

    def functions(self, name: str) -> tuple[str, ...]:
        value = self._get(name)
        if value is None:
            return ()
        if value.HasField("func"):
            return (value.func.name,)
        return tuple(function.name for function in value.list.func)

    def shape(self, name: str) -> ir.Shape:
        value = self._get(name)
        return None if value is None else sizes(value.shape)

    def shapes(self, name: str) -> tuple[ir.Shape, ...]:
        value = self._get(name)
        return () if value is None else tuple(map(sizes, value.list.shape))

    def tensor(self, name: str) -> Any:
        if name not in self._names:
            return None
        known = self._read.get(name)
        if known is None:
            known = _values(self._attr[name].tensor)
            if known.size <= _SMALL:
                self._read[name] = known
        return known

    def bare(self) -> NodeAttributes:
        bare = self._alone()
        for name in self._names:
            if not ir.is_of_work(name):
                del bare.attr[name]
        return NodeAttributes(bare)

    def key(self) -> bytes:
        alone = self._alone() if self.proto.name else self.proto  # bare already
        return bytes(alone.SerializeToString(deterministic=True))

    def _alone(self) -> node_def_pb2.NodeDef:
        """A NodeDef with these attributes and nothing else."""
        alone = node_def_pb2.NodeDef()
        alone.CopyFrom(self.proto)  # much faster than the attributes one by one
        for field in _NO_ATTRIBUTES:
            alone.ClearField(field)
        return alone

    def texts(self) -> dict[str, str]:
        if self._texts is None:
            self._texts = self._read_texts()
        return self._texts

    def _read_texts(self) -> dict[str, str]:
        defaults, found = op_schema.defaults(self.proto.op), {}
        for name in sorted(self._names):
            if name.startswith("_"):
                continue
            value, default = self._attr[name], defaults.get(name)
            if default is None or value != default:
                found[name] = _text(value)
        return found


_TYPE_NAMES = {number: name for name, number in types_pb2.DataType.items()}


def _text(value: attr_value_pb2.AttrValue) -> str:
    match value.WhichOneof("value"):
        case "s":
            return str(value.s.decode("utf-8", "backslashreplace"))
        case "i" | "f" | "b" as kind:
            return str(getattr(value, kind))
        case "type":
            return str(_TYPE_NAMES[value.type])
        case "list" if value.list.i:
            return f"[{','.join(map(str, value.list.i))}]"
    return str(text_format.MessageToString(value, as_one_line=True))


def sizes(shape: Any) -> ir.Shape:
    """The shape in a TensorShapeProto; None for unknown rank."""
    return None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)


def write(proto: attr_value_pb2.AttrValue, value: ir.Value) -> None:
    """Writes `value` into `proto`.

    A function that is renamed keeps the attributes that its NameAttrList has.
    """
    match value:
        case ir.Type(number):
            proto.type = number
        case ir.Types(numbers):
            proto.list.type[:] = numbers
        case ir.Function(name):
            proto.func.name = name
        case ir.Functions(names) if proto.HasField("func"):
            proto.func.name = names[0]
        case ir.Functions(names):
            for function, name in zip(proto.list.func, names, strict=True):
                function.name = name
        case ir.Strings(values):
            proto.list.s[:] = [text.encode("utf-8") for text in values]
        case ir.Shapes(shapes):
            _write_shapes(proto.list.shape, shapes)
        case ir.OneShape(shape):
            write_shape(proto.shape, shape)
        case ir.Tensor(numbers, number):
            _write_tensor(proto, numbers, number)
        case bool():
            proto.b = value
        case int():
            proto.i = value
        case float():
            proto.f = value
        case str():
            proto.s = value.encode("utf-8")


def _write_shapes(protos: Any, shapes: Iterable[ir.Shape]) -> None:
    del protos[:]
    for shape in shapes:
        write_shape(protos.add(), shape)


def write_shape(proto: Any, shape: ir.Shape) -> None:
    """Writes `shape` into a TensorShapeProto, which has to be empty."""
    proto.SetInParent()  # a scalar's shape has nothing to write
    proto.unknown_rank = shape is None
    for size in shape or ():
        proto.dim.add(size=size)


def _values(proto: Any) -> np.ndarray:
    """A TensorProto's values as an ndarray.

    A float32 tensor that repeats one value is returned as a broadcast view, so that a
    large constant takes no memory.
    """
    shape = [dim.size for dim in proto.tensor_shape.dim]
    repeated = shape and not proto.tensor_content and len(proto.float_val) == 1
    if repeated and proto.dtype == ir.FLOAT:
        return np.broadcast_to(np.float32(proto.float_val[0]), shape)
    return np.asarray(tensor_util.MakeNdarray(proto))


def _write_tensor(proto: attr_value_pb2.AttrValue, values: Any, number: int) -> None:
    array: np.ndarray = np.asarray(values, _HELD_AS.get(number, np.float32))
    proto.tensor.Clear()
    proto.tensor.dtype = number
    for size in array.shape:
        proto.tensor.tensor_shape.dim.add().size = size
    if number == ir.BOOL:
        proto.tensor.bool_val.extend(array.ravel().tolist())
        return
    bits = rounding.to_bits(rounding.distinct(array), number)
    if bits.shape == array.shape:
        proto.tensor.tensor_content = bits.tobytes()
    elif number == ir.FLOAT:
        proto.tensor.float_val.append(float(bits.flat[0]))
    else:
        proto.tensor.half_val.append(int(bits.view(np.uint16).flat[0]))
