"""Copies that return the tensors inside: which there are, and what is left out."""

from __future__ import annotations

import tensorflow as tf
from pairs import pair_of
from rewriting import graph_def, module_of
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.comparison import observed
from amp.graph_rewrite.comparison.pair import Pair
from amp.graph_rewrite.graph import calls, ir
from amp.integration.runtime import definitions

v1 = tf.compat.v1


def layer():
    x = v1.placeholder(tf.float32, [4, 8], name="x")
    hidden = tf.matmul(x, tf.ones([8, 8]), name="hidden")
    tf.identity(tf.tanh(tf.matmul(hidden, tf.ones([8, 8])), name="tanh"), name="y")
    tf.exp(hidden, name="aside")


def test_a_tensor_is_watched_in_its_16_bit_form_and_only_where_results_need_it():
    watched = {each.edge[0]: each for each in pair_of(layer).watched()}
    assert watched["hidden"].dtype == "bfloat16"
    assert watched["x"].twin != watched["x"].edge
    assert "aside" not in watched
    assert "y" not in watched, "it only hands on"
    assert watched["tanh"].role == "result"


def test_the_order_is_that_of_the_graph():
    names = [each.edge[0] for each in pair_of(layer).watched()]
    assert names.index("x") < names.index("hidden") < names.index("tanh")


def test_tensors_of_an_emulated_twin_are_watched_as_rounded():
    watched = {each.edge[0]: each for each in pair_of(layer, emulate=True).watched()}
    assert watched["hidden"].dtype == "bfloat16"
    assert watched["hidden"].twin[0] != "hidden"


def test_nodes_of_v1_branches_are_not_watched():
    def build():
        x = v1.placeholder(tf.float32, [4, 8])
        switch = tf.raw_ops.Switch(data=x, pred=tf.reduce_sum(x) > 0)
        maybe = tf.exp(switch.output_true, name="maybe")
        both = tf.raw_ops.Merge(inputs=[maybe, switch.output_false])
        tf.matmul(both.output, tf.ones([8, 8]), name="y")

    names = {each.edge[0] for each in pair_of(build).watched()}
    assert "maybe" not in names
    assert any("Merge" in name for name in names)


def test_a_copy_takes_what_was_recorded_and_has_no_effect():
    def build():
        x = tf.random.uniform([4, 8], name="drawn")
        with tf.control_dependencies([tf.print("hello")]):
            tf.matmul(x, tf.ones([8, 8]), name="y")

    pair = pair_of(build)
    taken = pair.taken()
    copy = observed.copy(pair.plain, taken, [("y", 0)], "copy")
    assert len(copy.main.args) == 1
    ops = {node.op for node in copy.main.nodes.values()}
    assert not ops & {"RandomUniform", "PrintV2"}
    assert [result.edge for result in copy.main.results] == [("y", 0)]
    recorder = observed.recorder(pair.plain, taken, "recorder")
    assert {"RandomUniform", "PrintV2"} <= {n.op for n in recorder.main.nodes.values()}
    assert [result.edge for result in recorder.main.results] == [
        ("drawn/RandomUniform", 0)
    ]


def test_what_xla_compiles_is_looked_into_too():
    @tf.function(jit_compile=True)
    def compiled(x):
        return tf.tanh(x, name="inside")

    def outer(x):
        return compiled(x)

    concrete = tf.function(outer).get_concrete_function(tf.zeros([4]))
    flat = observed.flat(definitions.read(context_lib.context(), concrete.name))
    assert any(name.endswith("/inside") for name in flat.main.nodes)
    assert not any(calls.calls_once(node.op) for node in flat.main.nodes.values())


def test_what_the_loss_scale_is_a_factor_of_ends_where_gradients_are_unscaled():
    def build():
        x = v1.placeholder(tf.float32, [4])
        tf.negative(tf.tanh(tf.multiply(x, 8.0, name="seed"), name="g"), name="unscale")
        tf.exp(x, name="forward")

    module = module_of(graph_def(build))
    marks = {"seed": ir.SEED, "unscale": ir.UNSCALE}
    marked = {
        name: module.main.nodes[name].changed(updates={mark: True})
        for name, mark in marks.items()
    }
    main = module.main.with_nodes({**module.main.nodes, **marked})
    module = ir.Module(main, {})
    pair = Pair(module, module, ir.HALF, frozenset())
    assert pair.scaled() == {"seed", "g"}
    assert "unscale" not in {each.edge[0] for each in pair.may_be_low()}


def test_what_a_stand_in_reads_is_not_taken_for_a_rounded_value():
    def build():
        x = v1.placeholder(tf.float32, [8, 16], name="x")
        y = tf.matmul(x, tf.ones([16, 16]), name="product")
        total = tf.raw_ops.BiasAddGrad(out_backprop=y, name="total")
        tf.matmul(tf.reshape(total, [4, 4]), tf.ones([4, 4]), name="y")

    pair = pair_of(build)
    assert pair.twin.main.nodes["total"].op == "Sum"
    watched = {each.edge[0]: each for each in pair.watched()}
    assert watched["total"].twin == ("total", 0)
