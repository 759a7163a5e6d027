"""The intermediate representation: one `Graph` for GraphDef and FunctionDef.

The values of attributes are defined in `values`, and other modules find them here. No
protobuf class and no policy may enter: `serde` reads and writes protobuf, and the later
phases make the decisions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from amp.graph_rewrite.graph import values

# Numbers of tensorflow.DataType (tensorflow/core/framework/types.proto).
FLOAT, DOUBLE, INT32, STRING, INT64, BOOL = 1, 2, 3, 7, 9, 10
COMPLEX64, COMPLEX128 = 8, 18
BFLOAT16, HALF, RESOURCE, VARIANT = 14, 19, 20, 21
INTEGERS = frozenset({3, 4, 5, 6, 9, 17, 22, 23})  # of all widths, with sign or without
LOW = frozenset({HALF, BFLOAT16})  # the 16-bit types
FLOATS = LOW | {FLOAT}  # of the types that plans choose from
HANDLES = frozenset({RESOURCE, VARIANT})  # tensors without numbers
DTYPE_NUMBERS = {"float32": FLOAT, "float16": HALF, "bfloat16": BFLOAT16}
DTYPE_NAMES = {number: name for name, number in DTYPE_NUMBERS.items()}
REF_OFFSET = 100  # a reference type is its base type plus this number

# Attributes that this package writes on nodes.
UNSCALE = "_amp_unscale"  # the multiply that unscales a gradient; float32 downstream
SOURCE = (
    "_amp_source"  # beside UNSCALE: number of the scaler, ":", name of the variable
)
SEED = "_amp_seed"  # the loss scale times the incoming gradient
KEEP = "_amp_keep"  # stays as it is: true, or the text who keeps it, one of these:
OPTIMIZER = "optimizer"  # built by an optimizer, and not under keep_float32()
UNGUARDED = "unguarded"  # of a gradient that is not scaled, under a rule that scales
CUSTOM = "custom"  # of a saved graph, with a gradient of its own
EMULATED = "_amp_emulated"  # a float32 kernel whose results are rounded to 16 bits
CLUSTER = "_amp_cluster"  # a fused cluster's call: the edges that its results replace
LATE = "_amp_late"  # a cast with control inputs that delay it to the backward pass
COPIED = "_amp_copied"  # a lookup of rows: elements of the variable copied in float32
PASSES = "_amp_passes"  # a batch norm: how often less it moves its data than as written
ALONE = "_amp_alone"  # a convolution: XLA compiled it by itself
AFTER = "_amp_after"  # the control inputs a node had before a cluster's call got them
_STANDING = frozenset({SOURCE, LATE, AFTER})  # say where a node stands in its graph

# Of attributes; defined in `values`.
Attributes: TypeAlias = values.Attributes
Function: TypeAlias = values.Function
Functions: TypeAlias = values.Functions
OneShape: TypeAlias = values.OneShape
Shape: TypeAlias = values.Shape
Shapes: TypeAlias = values.Shapes
Strings: TypeAlias = values.Strings
Tensor: TypeAlias = values.Tensor
Type: TypeAlias = values.Type
Types: TypeAlias = values.Types
Value: TypeAlias = values.Value
Edge: TypeAlias = tuple[str, int]  # (node or argument, flat output index)
ShapeSource: TypeAlias = Callable[[Edge], Shape]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation of a graph.

    Attributes:
      name, op, device: as in the NodeDef.
      inputs: the edges it reads, in order.
      controls: names of the nodes it waits for.
      attrs: the attributes it was read with, None for a node that the rewriter adds.
      updates: new attribute values, which take precedence over `attrs`.
      pristine: whether nothing changed since it was read; it is then written with the
        same bytes.
    """

    name: str
    op: str
    inputs: tuple[Edge, ...]
    controls: tuple[str, ...]
    device: str
    attrs: Attributes | None
    updates: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    pristine: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the nodes and arguments that it reads or waits for."""
        return (*(source for source, _ in self.inputs), *self.controls)

    def types(self, attr: str) -> tuple[int, ...]:
        """The DataType numbers of a type or list(type) attribute, () where absent."""
        if self.updates:  # few nodes have any
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

    def integers(self, attr: str) -> tuple[int, ...]:
        return self.attrs.integers(attr) if self.attrs is not None else ()

    def flag(self, attr: str) -> bool:
        if attr in self.updates:
            return bool(self.updates[attr])
        return self.attrs is not None and self.attrs.flag(attr)

    @property
    def kept(self) -> bool:
        """Whether it is to stay as it is, whoever keeps it."""
        return self.flag(KEEP) or bool(self.text(KEEP))

    def has(self, attr: str) -> bool:
        return attr in self.updates or (self.attrs is not None and attr in self.attrs)

    def text(self, attr: str) -> str:
        value = self.updates.get(attr)
        if isinstance(value, str):
            return value
        return self.attrs.text(attr) if self.attrs is not None else ""

    def strings(self, attr: str) -> tuple[str, ...]:
        value = self.updates.get(attr)
        if isinstance(value, Strings):
            return value.values
        return self.attrs.strings(attr) if self.attrs is not None else ()

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
        """A copy with other inputs, and with `updates` added to its attributes."""
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
    """A function argument; nodes read it as the edge (name, 0)."""

    name: str
    type: int


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A function result and the edge that it returns."""

    name: str
    type: int
    edge: Edge


def is_of_work(attr: str) -> bool:
    """Whether an attribute says what a node does, and not where in a graph it stands.

    Of the private ones only ours are told apart; all others are about a graph.
    """
    if attr.startswith("_amp_"):
        return attr not in _STANDING
    return not attr.startswith("_")


def unknown_shape(edge: Edge) -> Shape:
    """The `ShapeSource` of a graph without known shapes."""
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a GraphDef, or a FunctionDef.

    Attributes:
      name: the function's name, "" for a GraphDef.
      nodes: by name, in the order they were read.
      args, results: the function's interface, () for a GraphDef.
      control_results: nodes that run even if nothing reads them.
      origin: the protobuf that it was read from, which `serde` starts from when it
        writes; None for a function that the rewriter adds.
      shape: gives the shape of an edge as far as it is the same at every call, as known
        when the graph was traced. Whatever affects results is decided by it.
      sizes: gives the shape of an edge at the call that plans are made for, None if it
        is not known more exactly than by `shape`. Only costs depend on it.
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
    sizes: ShapeSource | None = None
    flags: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()

    @functools.cached_property
    def ops(self) -> frozenset[str]:
        """The ops of its nodes: most questions about a rare one end here."""
        return frozenset(node.op for node in self.nodes.values())

    @functools.cached_property
    def order(self) -> list[str]:
        """Node names, each after its inputs.

        Nodes on a cycle that is no `tf.compat.v1.while_loop` are missing.
        """
        return _topological(self)

    @functools.cached_property
    def readers(self) -> Mapping[Edge, list[tuple[str, int]]]:
        """The (node, input index) pairs that read each edge."""
        readers: dict[Edge, list[tuple[str, int]]] = {}
        for node in self.nodes.values():
            for index, edge in enumerate(node.inputs):
                known = readers.get(edge)
                if known is None:
                    readers[edge] = [(node.name, index)]
                else:
                    known.append((node.name, index))
        return readers

    def needed_for(self, ends: Iterable[str]) -> set[str]:
        """Some nodes, and all that they read or wait for.

        Args:
          ends: names of nodes; those of arguments are left out.
        """
        needed: set[str] = set()
        pending = [*ends]
        while pending:
            name = pending.pop()
            if name in self.nodes and name not in needed:
                needed.add(name)
                pending += self.nodes[name].sources
        return needed

    def computed_from(
        self, edges: Iterable[Edge], onward: Callable[[Node], bool] | None = None
    ) -> set[str]:
        """The nodes and arguments that edges are computed from, their own among them.

        Args:
          edges: where to begin.
          onward: whether to go on to what a node reads; None for every node.
        """
        found: set[str] = set()
        pending = [name for name, _ in edges]
        while pending:
            name = pending.pop()
            if name in found:
                continue
            found.add(name)
            node = self.nodes.get(name)
            if node is not None and (onward is None or onward(node)):
                pending += [source for source, _ in node.inputs]
        return found

    @functools.cached_property
    def size(self) -> ShapeSource:
        """Gives the shape of an edge at the call that plans are made for."""
        return self.shape if self.sizes is None else self.sizes

    def of_same_nodes(self, **changes: Any) -> Graph:
        """A copy with the same nodes, and what was found out about them.

        Args:
          **changes: the attributes that differ, `nodes` not among them.
        """
        made = dataclasses.replace(self, **changes)
        known = {name: self.__dict__[name] for name in _FOUND if name in self.__dict__}
        made.__dict__.update(known)
        return made

    def with_shapes(self, change: Callable[[ShapeSource], ShapeSource]) -> Graph:
        """A copy with both sources of shapes, `shape` and `sizes`, changed alike."""
        sizes = None if self.sizes is None else change(self.sizes)
        return self.of_same_nodes(shape=change(self.shape), sizes=sizes)

    def with_nodes(
        self, nodes: Mapping[str, Node], results: tuple[Result, ...] | None = None
    ) -> Graph:
        """A copy with other nodes and, if given, other results.

        A node that the rewriter added (no `attrs`, no node of that name before) is a
        cast or a constant: its shape is that of its input or of its value.
        """
        results = self.results if results is None else results
        added = {
            name: node
            for name, node in nodes.items()
            if node.attrs is None and name not in self.nodes
        }
        shaped = self.with_shapes(lambda known: _with_added(known, added))
        return dataclasses.replace(shaped, nodes=nodes, results=results)


# What a graph finds out from its nodes alone, once, when it is first asked.
_FOUND = ("ops", "order", "readers")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A main graph and the functions of its library, by name."""

    main: Graph
    functions: Mapping[str, Graph]

    def graphs(self) -> Iterator[Graph]:
        yield self.main
        yield from self.functions.values()


def _with_added(before: ShapeSource, added: Mapping[str, Node]) -> ShapeSource:
    """Shapes as `before`, and those of the nodes that the rewriter added."""
    if not added:
        return before

    @functools.cache  # copies of copies would look up repeatedly
    def shape(edge: Edge) -> Shape:
        while (node := added.get(edge[0])) is not None:
            if not node.inputs:
                return tuple(node.tensor().shape)
            edge = node.inputs[edge[1]]
        return before(edge)

    return shape


def _topological(graph: Graph) -> list[str]:
    """Node names in topological order.

    The back edge of a v1 loop (NextIteration into Merge) does not count as an input.
    """
    nodes = graph.nodes
    order: list[str] = []
    waiting: dict[str, int] = {}
    feeds: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        inputs = node.inputs
        if node.op in ("Merge", "RefMerge"):
            inputs = tuple(edge for edge in inputs if not _goes_back(edge[0], nodes))
        count = 0
        for source, _ in inputs:
            if source in feeds:
                feeds[source].append(name)
                count += 1
        for source in node.controls:
            if source in feeds:
                feeds[source].append(name)
                count += 1
        if count:
            waiting[name] = count
        else:
            order.append(name)
    for name in order:
        for reader in feeds[name]:
            left = waiting[reader] - 1
            if left:
                waiting[reader] = left
            else:
                order.append(reader)
    return order


def _goes_back(name: str, nodes: Mapping[str, Node]) -> bool:
    return name in nodes and nodes[name].op in ("NextIteration", "RefNextIteration")
