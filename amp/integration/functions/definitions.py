"""Definitions out of the runtime and back: functions as modules, shapes, twins.

Knows TensorFlow's private names for that; holds no hook and no graph algorithm.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import function_def_to_graph, op_def_registry

from amp.graph_rewrite.graph import attributes, calls, ir, op_schema, serde
from amp.graph_rewrite.ops.op_table import facts
from amp.graph_rewrite.ops.row import Kind
from amp.integration.process import PROCESS


def new_suffix() -> str:
    """Ends the names of one rewrite's functions; no two rewrites share a name."""
    return f"__amp{next(PROCESS.rewrite_numbers)}"


def without_suffix(text: str) -> str:
    """A text with the names of twins replaced by those of their originals."""
    return re.sub(r"__amp\d+(_xla)?\b", "", text)


def remember(name: str, graph: Any) -> None:
    """Notes, weakly, what a function was traced as."""
    PROCESS.traced[name] = weakref.ref(graph)


def forget(name: str) -> None:
    """Drops the note on a function that is going."""
    PROCESS.traced.pop(name, None)


def read(context: Any, name: str) -> ir.Module:
    """Reads a function and every function it reaches from the eager runtime.

    Args:
      context: TensorFlow's eager context.
      name: of a registered function.

    Raises:
      GraphError: its definition is damaged.
    """
    definitions: dict[str, Any] = {}
    pending = [name]
    while pending:
        function = pending.pop()
        if function in definitions or not context.has_function(function):
            continue
        definition = context.get_function_def(function)
        definitions[function] = definition
        for node in definition.node_def:
            if op_def_registry.get(node.op) is None:
                pending.append(node.op)
            elif node.op in calls.CALLS:
                pending += _named(node)
    lookup = op_schema.lookup_in(definitions)
    graphs = {
        key: serde.read_function(definition, lookup, traced_shapes(definition))
        for key, definition in definitions.items()
    }
    return ir.Module(graphs.pop(name), graphs)


def _named(node: Any) -> list[str]:
    attrs = attributes.NodeAttributes(node)
    return [f for a in calls.CALLS[node.op].attrs for f in attrs.functions(a)]


# What only looks at a variable's memory, though TensorFlow calls it stateful.
_READS = frozenset({Kind.VARIABLE, Kind.READ_VARIABLE, Kind.READ_PART})


def has_effects(module: ir.Module) -> bool:
    """Whether running a function changes anything: a variable, an iterator, a seed."""
    return any(
        op_schema.is_stateful(node.op)
        and facts(node.op).kind not in _READS
        and calls.call_of(node, module.functions) is None
        for graph in module.graphs()
        for node in graph.nodes.values()
    )


class StaticShapes:
    """Static shapes of edges, from tensors that are looked up when first asked for.

    Args:
      load: gives the output tensors of each node, by its name.
    """

    def __init__(self, load: Callable[[], Mapping[str, Sequence[Any]]]) -> None:
        self._load = load
        self._tensors: Mapping[str, Sequence[Any]] | None = None
        self._known: dict[ir.Edge, ir.Shape] = {}

    def __call__(self, edge: ir.Edge) -> ir.Shape:
        if edge not in self._known:
            self._known[edge] = self._find(edge)
        return self._known[edge]

    def _find(self, edge: ir.Edge) -> ir.Shape:
        if self._tensors is None:
            self._tensors = self._load()
        tensors = self._tensors.get(edge[0], ())
        return dimensions(tensors[edge[1]].shape) if edge[1] < len(tensors) else None


def outputs_of(graph: Any) -> dict[str, Sequence[Any]]:
    """The output tensors of every operation of a `tf.Graph`, by name."""
    return {operation.name: operation.outputs for operation in graph.get_operations()}


def traced_shapes(definition: Any) -> StaticShapes:
    """The shapes of a FunctionDef's edges, from the graph that it was traced as."""

    def load() -> Mapping[str, Sequence[Any]]:
        reference = PROCESS.traced.get(definition.signature.name)
        graph = None if reference is None else reference()
        if graph is None:
            return {}
        names = [arg.name for arg in definition.signature.input_arg]
        args = {n: (t,) for n, t in zip(names, graph.inputs, strict=False)}
        return {**outputs_of(graph), **args}

    return StaticShapes(load)


def dimensions(shape: tf.TensorShape) -> ir.Shape:
    """A TensorShape as the rewriter has shapes: -1 unknown, None for unknown rank."""
    if shape.rank is None:
        return None
    return tuple(-1 if size is None else size for size in shape.as_list())


def concrete_of(original: Any, module: ir.Module) -> Any:
    """A ConcreteFunction of a rewritten module, with the captures of `original`."""
    lookup = op_schema.lookup_of(module)
    added = _registered(module, lookup)
    definition = serde.write_function(module.main, lookup)
    graph = function_def_to_graph.function_def_to_graph(
        definition,
        structured_input_signature=original.structured_input_signature,
        structured_outputs=original.graph.structured_outputs,
        input_shapes=[tensor.shape for tensor in original.inputs],
        include_library_functions=True,
    )
    weakref.finalize(graph, _unregister, added).atexit = False
    given = len(original.inputs) - len(original.captured_inputs)
    for outer, inner in zip(
        original.captured_inputs, graph.inputs[given:], strict=True
    ):
        graph.replace_capture(outer, inner)
    for variable in original.graph.variables:
        graph.watch_variable(variable)
    made = concrete_function.ConcreteFunction.from_func_graph(
        graph, original.function_type, definition.attr
    )
    made._arg_keywords = original._arg_keywords
    made._num_positional_args = original._num_positional_args
    made._amp_original = original  # its variables live as long as this does
    return made


def _registered(module: ir.Module, lookup: op_schema.Lookup) -> list[str]:
    """Registers the functions of a module that are not yet; the names of those."""
    context = context_lib.context()
    added = [name for name in module.functions if not context.has_function(name)]
    for name in added:
        function = module.functions[name]
        context.add_function_def(serde.write_function(function, lookup))
    return added


def _unregister(names: Sequence[str]) -> None:
    """Removes functions once the graph is gone that alone called them.

    Whatever may still run the graph holds it: its ConcreteFunction, and every function
    that was traced with a call of that.
    """
    context = context_lib.context()
    for name in names:
        if context.has_function(name):
            context.remove_function(name)
