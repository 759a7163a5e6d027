"""Training steps as modules, in float32 with their calls inlined, and calls of such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from rewriting import settled
from tensorflow.python.eager import context as context_lib
from tensorflow.python.eager import execute

import amp
from amp.graph_rewrite.graph import ir, op_schema, serde
from amp.graph_rewrite.rewrite import prepare
from amp.integration import as_written
from amp.integration.runtime import definitions

X = tf.constant([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])


def module_of(step: Any, *args: Any) -> ir.Module:
    """A step in float32, calls inlined."""
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True):
        concrete = step.get_concrete_function(*args)
    context = context_lib.context()
    module = definitions.read(context, concrete.name.decode())
    prepared = prepare(module, settled(emulate=True))
    return prepared.in_float32(definitions.new_suffix())


def call(module: ir.Module, inputs: Sequence[Any]) -> list[tf.Tensor]:
    """Registers a function, and calls it as it is written, as checks do."""
    lookup = op_schema.lookup_of(module)
    context = context_lib.context()
    for graph in (*module.functions.values(), module.main):
        if not context.has_function(graph.name):
            context.add_function_def(serde.write_function(graph, lookup))
    return list(
        execute.execute(
            module.main.name,
            num_outputs=len(module.main.results),
            inputs=list(inputs),
            attrs=as_written.options(),
            ctx=context,
        )
    )


class Linear:
    """A step with a weight of three rows, its update and a counter."""

    def __init__(self, loss: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.weight = tf.Variable([[1.0], [2.0], [3.0]])
        self.count = tf.Variable(0)

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = loss(x @ self.weight)
            (grad,) = tape.gradient(value, [self.weight])
            self.weight.assign_sub(grad)
            self.count.assign_add(1)
            tf.print("stepped", output_stream="file:///dev/null")
            return value

        self.step = step

    def inputs(self) -> list[Any]:
        return [X, *self.step.get_concrete_function(X).captured_inputs]
