"""Reads functions from TensorFlow's runtime, and makes functions of rewritten graphs.

Used by `twins`, the session folder and `files`. A function and all that it calls is
read as an `ir.Module`, with the static shapes of the graph that it was traced as. No
hook and no graph algorithm is here.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import function_def_to_graph, op_def_registry

from amp.graph_rewrite.graph import attributes, calls, ir, op_schema, serde
from amp.graph_rewrite.ops.op_table import facts
from amp.integration.process import PROCESS


def new_suffix() -> str:
    """Returns a new ending for the names of the functions that one rewrite makes."""
    return f"__amp{next(PROCESS.rewrite_numbers)}"


def without_suffix(text: str) -> str:
    """Returns an error's message with twins' names replaced by their originals'."""
    return re.sub(r"__amp\d+\w*", "", text)  # what the twin is for may follow


def remember(name: str, graph: Any) -> None:
    """Records the `FuncGraph` that a function was traced as, by a weak reference."""
    PROCESS.traced[name] = weakref.ref(graph)


def traced_graph(name: str) -> Any:
    """The `FuncGraph` that a function, or the original of a twin, was traced as.

    None if it is gone.
    """
    reference = PROCESS.traced.get(without_suffix(name))
    return None if reference is None else reference()


def forget(name: str) -> None:
    """Drops that record, when TensorFlow removes the function."""
    PROCESS.traced.pop(name, None)


def read(context: Any, name: str) -> ir.Module:
    """Reads a function, and every function that it calls, from the eager runtime.

    Args:
      context: TensorFlow's eager context.
      name: the name of a registered function.

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
        ops = {node.op for node in definition.node_def}
        direct = {op for op in ops if op_def_registry.get(op) is None}
        calling = direct | (ops & calls.CALLS.keys())
        for node in definition.node_def if calling else ():
            if node.op in calling:
                pending += [node.op] if node.op in direct else _named(node)
    lookup = op_schema.lookup_in(definitions)
    graphs = {
        key: serde.read_function(definition, lookup, traced_shapes(definition))
        for key, definition in definitions.items()
    }
    return ir.Module(graphs.pop(name), graphs)


def _named(node: Any) -> list[str]:
    attrs = attributes.NodeAttributes(node)
    return [f for a in calls.CALLS[node.op].attrs for f in attrs.functions(a)]


def has_effects(module: ir.Module) -> bool:
    """Whether running a function changes state: a variable, an iterator, a seed."""
    return any(
        op_schema.is_stateful(node.op)
        and not facts(node.op).reads_state
        and calls.call_of(node, module.functions) is None
        for graph in module.graphs()
        for node in graph.nodes.values()
    )


def static_shapes(load: Callable[[], Mapping[str, Sequence[Any]]]) -> ir.ShapeSource:
    """A function from an edge to its static shape, for the rewriter.

    Each shape is read from TensorFlow once.

    Args:
      load: returns the output tensors of each node, by the node's name; called when the
        first shape is asked for.
    """
    tensors_of = functools.cache(load)

    @functools.cache
    def shape(edge: ir.Edge) -> ir.Shape:
        tensors = tensors_of().get(edge[0], ())
        return dimensions(tensors[edge[1]].shape) if edge[1] < len(tensors) else None

    return shape


def outputs_of(graph: Any) -> dict[str, Sequence[Any]]:
    """The output tensors of every operation of a `tf.Graph`, by name."""
    return {operation.name: operation.outputs for operation in graph.get_operations()}


def traced_shapes(definition: Any) -> ir.ShapeSource:
    """The shapes of a FunctionDef's edges, from the graph that it was traced as."""

    def load() -> Mapping[str, Sequence[Any]]:
        reference = PROCESS.traced.get(definition.signature.name)
        graph = None if reference is None else reference()
        if graph is None:
            return {}
        names = [arg.name for arg in definition.signature.input_arg]
        args = {n: (t,) for n, t in zip(names, graph.inputs, strict=False)}
        return {**outputs_of(graph), **args}

    return static_shapes(load)


def dimensions(shape: tf.TensorShape) -> ir.Shape:
    """A TensorShape as a tuple: -1 for unknown sizes, None if the rank is unknown."""
    if shape.rank is None:
        return None
    sizes = shape.as_list()
    return tuple(-1 if size is None else size for size in sizes)


def concrete_of(original: Any, module: ir.Module) -> Any:
    """Makes a ConcreteFunction of a rewritten module, for `amp.twin`.

    Args:
      original: the ConcreteFunction that was rewritten; the new one takes the same
        arguments and captures the same tensors and variables.
      module: the rewritten function, and the functions that it calls.
    """
    context = context_lib.context()
    added = register(context, module, module.functions.values())
    definition = serde.write_function(module.main, op_schema.lookup_of(module))
    graph = function_def_to_graph.function_def_to_graph(
        definition,
        structured_input_signature=original.structured_input_signature,
        structured_outputs=original.graph.structured_outputs,
        input_shapes=[tensor.shape for tensor in original.inputs],
        include_library_functions=True,
    )
    # Nothing calls them then: a ConcreteFunction holds its graph, and so does every
    # function that was traced with a call of it.
    weakref.finalize(graph, unregister, context, added).atexit = False
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


def register(
    context: Any, module: ir.Module, graphs: Iterable[ir.Graph] | None = None
) -> list[str]:
    """Registers those functions of a module that TensorFlow does not have yet.

    Args:
      context: TensorFlow's eager context.
      module: the functions.
      graphs: those of them to register, after the ones that they call; all by default.

    Returns:
      The names of those that were registered, for `unregister`.
    """
    lookup, added = op_schema.lookup_of(module), []
    if graphs is None:
        graphs = (*module.functions.values(), module.main)
    for graph in graphs:
        if not context.has_function(graph.name):
            context.add_function_def(serde.write_function(graph, lookup))
            added.append(graph.name)
    return added


def unregister(context: Any, names: Iterable[str]) -> None:
    """Removes functions that nothing calls any more, as far as they are there."""
    for name in names:
        if context.has_function(name):
            context.remove_function(name)
