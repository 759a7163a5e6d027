"""TensorFlow infers shapes, and says which node it refuses."""

from __future__ import annotations

import pytest
import tensorflow as tf
from rewriting import graph_def, module_of, v1

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.size_questions import RefusedError
from amp.integration.runtime import shape_inference


def nodes(*sizes: int) -> list[ir.Node]:
    """The nodes of x by a matrix of ones, x of these sizes."""

    def build() -> None:
        x = v1.placeholder(tf.float32, sizes, name="x")
        ones = v1.placeholder(tf.float32, [4, 3], name="ones")
        tf.raw_ops.MatMul(a=x, b=ones, name="product")

    if sizes[-1] == 4:
        return [n.changed() for n in module_of(graph_def(build)).main.nodes.values()]
    fitting = nodes(2, 4)
    shape: dict[str, ir.Value] = {"shape": ir.OneShape(sizes)}
    return [n.changed(updates=shape) if n.name == "x" else n for n in fitting]


def test_shapes_follow_from_those_of_placeholders() -> None:
    assert shape_inference.infer(nodes(7, 4))(("product", 0)) == (7, 3)


def test_a_scalar_is_known_to_be_one() -> None:
    update: dict[str, ir.Value] = {"dtype": ir.Type(1), "shape": ir.OneShape(())}
    node = ir.Node("x", "Placeholder", (), (), "", None, update)
    assert shape_inference.infer([node])(("x", 0)) == ()


def test_the_node_that_is_refused_is_named() -> None:
    with pytest.raises(RefusedError) as error:
        shape_inference.infer(nodes(7, 5))
    assert error.value.node == "product"


def test_a_call_tells_the_shapes_of_its_arguments() -> None:
    call = shape_inference.at_call([tf.ones([2, 3]), tf.constant(1)])
    assert call.args == ((2, 3), ())
