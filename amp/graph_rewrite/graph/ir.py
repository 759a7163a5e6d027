"""The intermediate representation: one `Graph` for GraphDef and FunctionDef.

No protobuf class and no policy may enter: `serde` reads and writes, passes decide.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

# Numbers of tensorflow.DataType (tensorflow/core/framework/types.proto).
FLOAT, INT32, STRING, BOOL = 1, 3, 7, 10
BFLOAT16, HALF, RESOURCE, VARIANT = 14, 19, 20, 21
INTEGERS = frozenset({3, 4, 5, 6, 9, 17, 22, 23})  # of all widths, with sign or without
DTYPE_NUMBERS = {"float32": FLOAT, "float16": HALF, "bfloat16": BFLOAT16}
DTYPE_NAMES = {number: name for name, number in DTYPE_NUMBERS.items()}
REF_OFFSET = 100  # a reference type is its base type plus this number

# Attributes that this package writes on nodes.
UNSCALE = "_amp_unscale"  # the gradient-unscale marker: float32 from here on
SEED = "_amp_seed"  # the loss scale times the incoming gradient
KEEP = "_amp_keep"  # built under keep_float32() or by an optimizer
EMULATED = "_amp_emulated"  # holds 16-bit values in float32 kernels
CLUSTER = "_amp_cluster"  # a call of a cluster: the edges that its results replace
LATE = "_amp_late"  # a cast that waits, so that what it makes is held for less long
AFTER = "_amp_after"  # the control inputs of a node that is after a cluster's call now

Edge: TypeAlias = tuple[str, int]  # (node or argument, flat output index)
Shape: TypeAlias = tuple[int, ...] | None  # -1: unknown dimension, None: unknown rank
ShapeSource: TypeAlias = Callable[[Edge], Shape]


@dataclasses.dataclass(frozen=True, slots=True)
class Type:
    """A type attribute's new value."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Types:
    """A list(type) attribute's new value."""

    numbers: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Functions:
    """New names for the functions that a func or list(func) attribute calls."""

    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """The function that a func attribute of a made node calls."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Shapes:
    """A list(shape) attribute's new value."""

    shapes: tuple[Shape, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A constant: float32 `values` (an ndarray) to be stored as type `number`."""

    values: Any
    number: int


Value: TypeAlias = (
    Type | Types | Function | Functions | Shapes | Tensor | bool | int | str
)


class Attributes(Protocol):
    """What a node was read with; opaque, and written back untouched."""

    def __contains__(self, name: str) -> bool: ...

    def types(self, name: str) -> tuple[int, ...]:
        """The type or types an attribute holds, () where absent."""

    def integer(self, name: str, default: int) -> int: ...

    def text(self, name: str) -> str: ...

    def flag(self, name: str) -> bool: ...

    def functions(self, name: str) -> tuple[str, ...]:
        """The functions that a func or list(func) attribute names."""

    def shape(self, name: str) -> Shape: ...

    def shapes(self, name: str) -> tuple[Shape, ...]:
        """The shapes that a list(shape) attribute holds, () where absent."""

    def tensor(self, name: str) -> Any:
        """The ndarray of a tensor attribute, None where absent."""

    def texts(self) -> Mapping[str, str]:
        """All attributes but private ones and defaults, each as a short text."""

    def bare(self) -> Attributes:
        """Those that the op declares, and ours."""

    def key(self) -> bytes:
        """Equal only if all are."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation. `updates` overlay `attrs`; a `pristine` one is written as read."""

    name: str
    op: str
    inputs: tuple[Edge, ...]
    controls: tuple[str, ...]
    device: str
    attrs: Attributes | None
    updates: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    pristine: bool = False

    def types(self, attr: str) -> tuple[int, ...]:
        """Types that a type or list(type) attribute holds, () where absent."""
        value = self.updates.get(attr)
        if isinstance(value, Type):
            return (value.number,)
        if isinstance(value, Types):
            return value.numbers
        return self.attrs.types(attr) if self.attrs is not None else ()

    def integer(self, attr: str, default: int) -> int:
        value = self.updates.get(attr)
        if isinstance(value, int):
            return value
        return self.attrs.integer(attr, default) if self.attrs is not None else default

    def flag(self, attr: str) -> bool:
        if attr in self.updates:
            return bool(self.updates[attr])
        return self.attrs is not None and self.attrs.flag(attr)

    def has(self, attr: str) -> bool:
        return attr in self.updates or (self.attrs is not None and attr in self.attrs)

    def text(self, attr: str) -> str:
        value = self.updates.get(attr)
        if isinstance(value, str):
            return value
        return self.attrs.text(attr) if self.attrs is not None else ""

    def functions(self, attr: str) -> tuple[str, ...]:
        value = self.updates.get(attr)
        if isinstance(value, Functions):
            return value.names
        if isinstance(value, Function):
            return (value.name,)
        return self.attrs.functions(attr) if self.attrs is not None else ()

    def shapes(self, attr: str) -> tuple[Shape, ...]:
        value = self.updates.get(attr)
        if isinstance(value, Shapes):
            return value.shapes
        return self.attrs.shapes(attr) if self.attrs is not None else ()

    def tensor(self, attr: str = "value") -> Any:
        value = self.updates.get(attr)
        if isinstance(value, Tensor):
            return value.values
        return self.attrs.tensor(attr) if self.attrs is not None else None

    def changed(
        self,
        inputs: tuple[Edge, ...] | None = None,
        updates: Mapping[str, Value] | None = None,
    ) -> Node:
        """A copy with other inputs or attributes."""
        return Node(
            self.name,
            self.op,
            self.inputs if inputs is None else inputs,
            self.controls,
            self.device,
            self.attrs,
            {**self.updates, **(updates or {})},
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """A function argument: read as the edge (name, 0)."""

    name: str
    type: int


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A function result and the edge that gives it."""

    name: str
    type: int
    edge: Edge


def unknown_shape(edge: Edge) -> Shape:
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A GraphDef's nodes or a FunctionDef.

    Attributes:
      name: the function's name, "" for a GraphDef.
      nodes: by name, in the order they were read.
      args, results: the function's interface, () for a GraphDef.
      control_results: nodes that run even if nothing reads them.
      origin: what it was read from; opaque, and written back untouched. None for a
        function that was made.
      shape: the static shape of an edge as traced.
      flags: boolean attributes of the function that are set (`_XlaMustCompile`...).
      attributes: names of all the function's attributes.
    """

    name: str
    nodes: Mapping[str, Node]
    args: tuple[Argument, ...] = ()
    results: tuple[Result, ...] = ()
    control_results: tuple[str, ...] = ()
    origin: Any = None
    shape: ShapeSource = unknown_shape
    flags: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()

    @functools.cached_property
    def order(self) -> list[str]:
        """Node names, inputs first; those on a cycle outside a loop are missing."""
        return _topological(self)

    @functools.cached_property
    def readers(self) -> Mapping[Edge, list[tuple[str, int]]]:
        """The (node, input index) pairs that read each edge."""
        readers: dict[Edge, list[tuple[str, int]]] = {}
        for node in self.nodes.values():
            for index, edge in enumerate(node.inputs):
                readers.setdefault(edge, []).append((node.name, index))
        return readers

    def with_nodes(
        self, nodes: Mapping[str, Node], results: tuple[Result, ...] | None = None
    ) -> Graph:
        """A copy with other nodes and, if given, results.

        A node that was not read but made (no `attrs`) has its operand's shape.
        """

        known: dict[Edge, Shape] = {}  # graphs are made of graphs, some deep

        def shape(edge: Edge) -> Shape:
            if edge not in known:
                known[edge] = found(edge)
            return known[edge]

        def found(edge: Edge) -> Shape:
            node = nodes.get(edge[0])
            if node is None or node.attrs is not None:
                return self.shape(edge)
            if not node.inputs:
                return tuple(node.tensor().shape)
            return shape(node.inputs[edge[1]])

        results = self.results if results is None else results
        return dataclasses.replace(self, nodes=nodes, results=results, shape=shape)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A graph and every function it can reach."""

    main: Graph
    functions: Mapping[str, Graph]

    def graphs(self) -> Iterator[Graph]:
        yield self.main
        yield from self.functions.values()


def _topological(graph: Graph) -> list[str]:
    """A back edge of a v1 loop (NextIteration into Merge) does not count."""
    nodes = graph.nodes
    waiting: dict[str, int] = {}
    feeds: dict[str, list[str]] = {}
    for name, node in nodes.items():
        loop = node.op in ("Merge", "RefMerge")
        count = 0
        for source in (*[edge[0] for edge in node.inputs], *node.controls):
            producer = nodes.get(source)
            if producer is None or (loop and producer.op in _BACK):
                continue
            feeds.setdefault(source, []).append(name)
            count += 1
        waiting[name] = count
    order = [name for name, count in waiting.items() if count == 0]
    for name in order:
        for reader in feeds.get(name, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                order.append(reader)
    return order


_BACK = ("NextIteration", "RefNextIteration")
