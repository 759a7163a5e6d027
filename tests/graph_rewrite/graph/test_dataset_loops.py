"""`dataset_loops`: where the state, the elements and the rest are in the arguments."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from rewriting import settled, spec, traced

from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.graph import calls, dataset_loops, ir
from amp.graph_rewrite.graph.unscale_markers import behind_markers
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.training import markers


def loop(op: str, carry: bool) -> tuple[ir.Module, ir.Node, ir.Graph]:
    """A loop over pairs with two states and a further argument, and its body.

    Args:
      op: the op that runs the body.
      carry: whether the second state becomes what is unscaled.
    """
    data = tf.data.Dataset.from_tensors((tf.ones([2, 2]), tf.ones([3])))

    def body(state: Any, x: Any, y: Any, further: Any) -> Any:
        with markers.attribute_scope(ir.UNSCALE):
            unscaled = tf.multiply(x, x)
        first = tf.matmul(state[1], x) + further
        return first + tf.reduce_sum(y), unscaled if carry else state[1]

    def over(x: tf.Tensor, data: Any) -> Any:
        if op == "ReduceDataset":
            return data.reduce((x, x), lambda s, e: body(s, *e, x))
        states = (x, x)
        for e in data:
            states = body(states, *e, x)
        return states

    module, _ = traced(lambda x: over(x, data), spec(2, 2))
    node = next(n for n in module.main.nodes.values() if n.op == op)
    return module, node, module.functions[node.functions("f")[0]]


def test_inputs_are_arguments_around_those_of_an_element() -> None:
    for op in ("ReduceDataset", "ScanDataset"):
        _, node, graph = loop(op, carry=False)
        call, count = calls.CALLS[op], len(graph.args)
        places = [
            dataset_loops.arguments_of(node, call, index, count)
            for index in range(len(node.inputs))
        ]
        states = len(places[0])  # an element has as many parts as there are states
        assert [*places[0]] == [states, states + 1], op
        assert [p for each in places[1:3] for p in each] == [0, 1], op
        rest = [p for each in places[3:] for p in each]
        assert rest == [*range(4, count)], op
        results = range(len(graph.results))
        assert dataset_loops.carried(node, call, results) == {0, 1}, op


def test_what_is_unscaled_in_one_trip_is_float32_in_the_next() -> None:
    for op in ("ReduceDataset", "ScanDataset"):
        for carry in (True, False):
            module, _, graph = loop(op, carry)
            behind = behind_markers(module)[graph.name]
            (product,) = (n.name for n in graph.nodes.values() if n.op == "MatMul")
            assert (product in behind) is carry, (op, carry)


def test_a_function_of_an_input_pipeline_is_not_called() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        data = tf.data.Dataset.from_tensors(x).map(lambda y: tf.matmul(y, y))
        return data.reduce(x, lambda state, y: state + tf.matmul(y, y))

    module, _ = traced(fn, spec(2, 2))
    (reduced,) = (n for n in module.main.nodes.values() if n.op == "ReduceDataset")
    uses = [use.name for use in calls.uses_with_weights(module)]
    assert uses == [module.main.name, *reduced.functions("f")]


def test_a_reduction_runs_on_the_cpu_and_a_loop_where_its_function_does() -> None:
    """By default `tf.data` runs functions on the CPU; AutoGraph says otherwise."""
    data = tf.data.Dataset.from_tensors(tf.ones([8, 8]))

    def reduced(x: tf.Tensor) -> tf.Tensor:
        return data.reduce(x, lambda state, y: tf.matmul(state, y))

    def looped(x: tf.Tensor, data: Any) -> tf.Tensor:
        for y in data:
            x = tf.matmul(x, y)
        return x

    def rules(fn: Any) -> set[str]:
        module, _ = traced(fn, spec(8, 8))
        report = rewrite(module, settled(A100, dtype="float16")).report
        return {d.rule for d in report.decisions if d.op == "MatMul"}

    assert rules(reduced) == {"device"}
    assert rules(lambda x: looped(x, data)) == {"compute"}
