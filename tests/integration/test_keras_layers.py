"""A node's Keras layers are found from its stack trace and its scope."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import amp
from amp.integration import keras_layers

ALL = {"dtype": "bfloat16", "assignment": "all", "trial": False, "check": False}
CALL = "/x/site-packages/keras/src/layers/layer.py"


class Block(tf.keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="block")
        self.inner = tf.keras.layers.Dense(4, name="inner")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(self.inner(x))  # the user's call


@pytest.fixture
def trained() -> tuple[amp.Report, list[str]]:
    """The report on a step of `fit`, and the names of two layers of one class."""
    layers = [
        tf.keras.layers.Dense(4),
        tf.keras.layers.Dense(4),
        tf.keras.layers.Activation("relu"),
        Block(),
    ]
    model = tf.keras.Sequential([tf.keras.Input((4,)), *layers], name="net")
    model.compile("sgd", "mse")
    with amp.mixed_precision_scope(**ALL):
        model.fit(tf.ones([8, 4]), tf.ones([8, 4]), epochs=2, verbose=0)
    return amp.reports()[-1], [layer.name for layer in layers[:2]]


def test_nodes_of_fit_name_their_layers_with_class_and_model(trained) -> None:
    found, names = trained
    layers = {op: [] for op in ("MatMul", "Relu", "Tanh")}
    for one in found.decisions:
        if one.op in layers:
            layers[one.op].append(one.layer)
    net = "net (Sequential)"
    for name in names:  # forward, and at least one gradient
        assert layers["MatMul"].count(f"{name} (Dense) in {net}") >= 2
    inner = f"inner (Dense) in block (Block) in {net}"
    assert layers["MatMul"].count(inner) == 3
    assert layers["Tanh"] == [f"block (Block) in {net}"]
    (relu,) = layers["Relu"]
    assert relu.endswith(f" (Activation) in {net}")


def test_a_layer_of_the_users_has_the_line_in_its_call(trained) -> None:
    found, _ = trained
    (tanh,) = (one for one in found.decisions if one.op == "Tanh")
    lines = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "# the user's call" in text)
    assert tanh.source == f"{__file__}:{line}"
    assert f"  layer    {tanh.layer}\n" in found.explain(tanh.node)
    assert amp.Report.from_json(found.to_json()) == found


def test_a_function_without_keras_has_no_layers() -> None:
    step = tf.function(lambda x: tf.matmul(x, x, name="scope_1/product"))
    report = amp.explain(step, tf.ones([4, 4]), policy=amp.Policy(**ALL))
    assert {one.layer for one in report.decisions} == {""}


def test_a_class_whose_file_is_not_here_is_left_out() -> None:
    frames = [("/gone/train.py", 3, "call"), (CALL, 9, "__call__")]
    frames += [("/gone/net.py", 7, "call"), (CALL, 9, "__call__")]
    assert keras_layers.classes(frames) == ("", "")
    assert keras_layers.described("net_1/head_1/MatMul", ("", "")) == "head in net"


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        ("net_1/dense_1_2/MatMul", "dense_1 (Dense) in net (Net)"),
        ("net/dense_1/MatMul", "dense_1 (Dense) in net (Net)"),
        ("net_1/dense_1/mul/y", "dense (Dense) in net (Net)"),
    ],
)
def test_a_scope_is_named_as_its_layer(node: str, shown: str) -> None:
    assert keras_layers.described(node, ("Net", "Dense")) == shown


def test_a_gradient_belongs_to_the_node_that_it_is_of() -> None:
    known = {"net_1/head_1/MatMul": None}
    gradient = "gradient_tape/net_1/head_1/MatMul/MatMul_1"
    assert keras_layers.forward(gradient, known) == "net_1/head_1/MatMul"
    assert keras_layers.forward("net_1/add", known) == "net_1/add"
    assert keras_layers.forward("gradient_tape/other", known) == "gradient_tape/other"
