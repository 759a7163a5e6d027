"""The line of a node is the user's own, wherever the node was built."""

from __future__ import annotations

import pytest
import tensorflow as tf

from amp.integration import install
from amp.integration.comparing import source_lines, traced
from amp.policy import Policy


@pytest.fixture(autouse=True)
def hooks():
    """Lines are those of the graph that a function was traced as."""
    install.install()


def graph_of(fn, *args):
    return tf.function(fn).get_concrete_function(*args).graph


@tf.function
def inner(x):
    return tf.tanh(x, name="inside")


def test_the_line_is_that_of_the_innermost_frame_that_is_no_librarys():
    def fn(x):
        return tf.nn.relu(tf.keras.activations.gelu(x), name="named")

    graph = graph_of(fn, tf.zeros([2]))
    line = source_lines.line_of(graph, "named")
    assert line.startswith("test_source_lines.py:")
    assert line.endswith(
        'return tf.nn.relu(tf.keras.activations.gelu(x), name="named")'
    )


def test_a_line_of_an_installed_package_is_the_users_only_where_no_other_is():
    """As in reports."""
    code = "def layer(x):\n    return tf.tanh(x, name='theirs')\n"
    theirs = {"tf": tf}
    exec(compile(code, "/x/site-packages/zoo/net.py", "exec"), theirs)

    def fn(x):
        return theirs["layer"](x)  # the user's own

    graph = graph_of(fn, tf.zeros([2]))
    line = source_lines.line_of(graph, "theirs")
    assert line.endswith('return theirs["layer"](x)  # the user\'s own')


def test_nodes_of_called_functions_are_found():
    graph = graph_of(lambda x: inner(x), tf.zeros([2]))
    (call,) = (op.name for op in graph.get_operations() if "Call" in op.type)
    assert 'tf.tanh(x, name="inside")' in source_lines.line_of(graph, f"{call}/inside")


def test_a_node_that_is_not_there_has_no_line():
    assert source_lines.line_of(graph_of(tf.exp, tf.zeros([2])), "nowhere") == ""


def test_an_argument_has_the_line_that_reads_it_and_a_gradient_that_of_its_node():
    def fn(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x, name="forward")
        return tape.gradient(y, x)

    call = traced.traced(
        fn, (tf.zeros([2]),), {}, Policy(dtype="float16", emulate=True)
    )
    graph = call.module.main
    (argument,) = (arg.name for arg in graph.args)
    assert 'name="forward"' in source_lines.line_of_edge(
        call.concrete.graph, graph, (argument, 0)
    )
    (gradient,) = (name for name in graph.nodes if name.endswith("/TanhGrad"))
    where = f"gradient_tape/forward/{gradient.rpartition('/')[2]}"
    assert 'name="forward"' in source_lines.line_of_edge(
        call.concrete.graph,
        graph.with_nodes({**graph.nodes, where: graph.nodes[gradient]}),
        (where, 0),
    )


def test_who_called_amp_compare_built_nothing():
    call = traced.traced(
        tf.keras.layers.ReLU(),
        (tf.zeros([2]),),
        {},
        Policy(dtype="float16", emulate=True),
    )
    (relu,) = (
        node.name for node in call.module.main.nodes.values() if node.op == "Relu"
    )
    assert source_lines.line_of(call.concrete.graph, relu) == ""
