"""What two runs on the same arguments may give differently, and what is done."""

from __future__ import annotations

import tensorflow as tf
from rewriting import graph_def, module_of
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.comparison import pairing
from amp.graph_rewrite.graph import generators, ir
from amp.integration.runtime import definitions

v1 = tf.compat.v1


def taken(build, variables=frozenset()):
    return pairing.taken(module_of(graph_def(build)), variables)


def function(fn, *args):
    concrete = tf.function(fn).get_concrete_function(*args)
    return definitions.read(context_lib.context(), concrete.name)


def test_random_numbers_are_recorded():
    found = taken(lambda: tf.random.uniform([3], name="drawn") + 1.0)
    assert [edge for edge, _ in found.tensors] == [("drawn/RandomUniform", 0)]
    assert not found.dropped


def test_what_only_has_an_effect_is_dropped():
    found = taken(lambda: tf.print("hello"))
    assert {name.partition("/")[0] for name in found.dropped} == {"PrintV2"}
    assert not found.tensors


def test_what_reads_floating_tensors_runs_on_both_sides():
    def build():
        x = v1.placeholder(tf.float32, [2])
        tf.numpy_function(lambda x: x, [x], tf.float32)

    found = taken(build)
    assert not found.tensors
    assert not found.dropped


def test_updates_of_variables_stay_as_these_are_restored():
    variable = tf.Variable(1)
    module = function(lambda: [variable.assign_add(2), tf.random.normal([])])
    (handle,) = (arg.name for arg in module.main.args)
    found = pairing.taken(module, frozenset({handle}))
    assert not found.dropped
    assert len(found.tensors) == 1
    assert pairing.taken(module, frozenset()).dropped


def test_a_batch_of_an_iterator_is_recorded_in_the_main_graph():
    batches = iter(tf.data.Dataset.from_tensors(tf.ones([2])))
    module = function(lambda: next(batches) * 2.0)
    found = pairing.taken(module, frozenset())
    assert [number for _, number in found.tensors] == [ir.FLOAT]


def test_what_a_loop_takes_of_an_iterator_cannot_be_paired():
    batches = iter(tf.data.Dataset.from_tensors(tf.ones([2])).repeat())

    def loop():
        return tf.while_loop(
            lambda i, x: i < 2, lambda i, x: (i + 1, x + next(batches)), (0, tf.ones(2))
        )

    (found,) = pairing.taken(function(loop), frozenset()).unpaired
    assert "IteratorGetNext" in found


def test_generators_in_loops_get_seeds_and_their_functions_new_names():
    def loop():
        return tf.while_loop(
            lambda x: x < 2.0, lambda x: (x + tf.random.uniform([]),), (0.0,)
        )

    tf.random.set_seed(None)
    module = function(loop)
    assert not pairing.taken(module, frozenset()).unpaired
    seeded = pairing.seeded(module)
    assert seeded.functions.keys().isdisjoint(module.functions)
    named = {n for node in seeded.main.nodes.values() for n in node.functions("body")}
    assert named <= seeded.functions.keys()
    (seed,) = {
        node.integer("seed", 0)
        for graph in seeded.functions.values()
        for node in graph.nodes.values()
        if generators.is_random(node)
    }
    assert seed != 0
    (loop,) = (n for n in seeded.main.nodes.values() if n.functions("body"))
    assert loop.integer("parallel_iterations", 10) == 1


def test_without_generators_nothing_is_renamed():
    module = function(lambda: tf.while_loop(lambda x: x < 2, lambda x: (x + 1,), (0,)))
    assert pairing.seeded(module) is module
