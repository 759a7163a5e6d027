"""Generators of random numbers that start from their seeds in each new function."""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from rewriting import graph_def, module_of
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.graph import calls, generators, ir
from amp.integration.runtime import definitions


def nodes() -> dict[str, ir.Node]:
    def build() -> None:
        tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32, name="free")
        tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32, seed2=7, name="seeded")
        tf.raw_ops.StatelessRandomUniform(shape=[2], seed=[1, 2], name="stateless")

    return dict(module_of(graph_def(build)).main.nodes)


def test_ops_that_take_seeds_as_attributes_are_generators() -> None:
    found = {name for name, node in nodes().items() if generators.is_random(node)}
    assert found == {"free", "seeded"}


def test_a_generator_without_seeds_gets_some_by_its_name() -> None:
    node = nodes()["free"]
    first, again = generators.repeating(node), generators.repeating(node)
    assert first.integer("seed", 0) == again.integer("seed", 0) != 0
    other = generators.repeating(dataclasses.replace(node, name="other"))
    assert other.integer("seed", 0) != first.integer("seed", 0)


def test_seeds_that_the_program_gave_stay() -> None:
    for name in ("seeded", "stateless"):
        node = nodes()[name]
        assert generators.repeating(node) is node


def test_forms_that_run_by_turns_draw_apart() -> None:
    """But for what draws at random in any case, and what is told what to draw."""
    graph = ir.Graph("", nodes())
    module = ir.Module(graph, {})
    one, same, other = (
        generators.drawing_apart(module, form).main.nodes for form in ("a", "a", "b")
    )
    seeds = [each["seeded"].integer("seed2", 0) for each in (one, same, other)]
    assert seeds[0] == seeds[1]
    assert len({7, 0, *seeds}) == 4
    for name in ("free", "stateless"):
        assert one[name] is graph.nodes[name]
    shared = generators.drawing_apart(module, "a", {"seeded"}).main.nodes
    assert shared["seeded"] is graph.nodes["seeded"]


def test_a_graph_that_draws_nothing_stays_also_one_that_calls_a_function() -> None:
    node = ir.Node("called", "__inference_f_1", (), (), "", None)
    module = ir.Module(ir.Graph("", {"called": node}), {})
    assert generators.drawing_apart(module, "a") is module


def test_functions_that_draw_are_called_by_other_names_where_others_call_them() -> None:
    """With those that call them, and no others."""

    @tf.function
    def step(x: tf.Tensor, training: tf.Tensor) -> tf.Tensor:
        def drawn() -> tf.Tensor:
            return tf.cond(x > 0.0, lambda: tf.random.uniform([], seed=3), lambda: x)

        return tf.cond(training, drawn, lambda: x) + tf.cond(
            training, lambda: x, lambda: 2.0 * x
        )

    concrete = step.get_concrete_function(tf.constant(1.0), tf.constant(True))
    module = definitions.read(context_lib.context(), concrete.name.decode())
    drawing = {
        name
        for name, graph in module.functions.items()
        if any(map(generators.is_random, graph.nodes.values()))
    }
    assert len(drawing) == 1
    one = generators.drawing_apart(module, "a", others=module.functions)
    made = one.functions.keys() - module.functions.keys()
    assert len(made) == 2  # the one that draws, and the branch that calls it
    assert all(graph.name == name for name, graph in one.functions.items())
    for name, graph in module.functions.items():
        assert one.functions[name] is graph
    called = {
        callee
        for graph in (one.main, *(one.functions[name] for name in made))
        for node, call in calls.calls(graph, one.functions)
        for callee in calls.callees_of(node, call)
    }
    assert made <= called
    assert drawing.isdisjoint(called)
    other = generators.drawing_apart(module, "b", others=module.functions)
    assert made.isdisjoint(other.functions)
    own = generators.drawing_apart(module, "a")
    assert own.functions.keys() == module.functions.keys()
    assert own.functions[drawing.pop()] not in module.functions.values()
