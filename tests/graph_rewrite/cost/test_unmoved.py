"""What hands its operand on costs nothing, so padded batches plan as full ones do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from rewriting import context_of, graph_def, module_of, traced, v1
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.candidates.context import type_ports
from amp.graph_rewrite.cost import resolution, shipped_devices
from amp.graph_rewrite.cost.unmoved import moves_nothing
from amp.graph_rewrite.fusion import fuse
from amp.graph_rewrite.ops.op_table import ROWS, Unmoved
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.runtime import definitions, shape_inference
from amp.policy import Policy

NONE = tf.zeros([0], tf.int32)
# By op, a run of its kernel that moves nothing and one that does, on [8, 1, 16].
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Transpose": ({"perm": [1, 0, 2]}, {"perm": [2, 1, 0]}),
    "Sum": ({"axis": [1]}, {"axis": [2]}),
    "Mean": ({"axis": NONE}, {"axis": [0]}),
    "Tile": ({"multiples": [1, 1, 1]}, {"multiples": [1, 2, 1]}),
    "BroadcastTo": ({"shape": [8, 1, 16]}, {"shape": [8, 2, 16]}),
    "Slice": (
        {"begin": [0, 0, 0], "size": [-1, -1, -1]},
        {"begin": [1, 0, 0], "size": [-1, -1, -1]},
    ),
}


def shares(op: str, dtype: tf.DType, given: dict[str, Any]) -> bool:
    """Whether a kernel's result is in the memory of its operand."""
    x = tf.cast(tf.random.normal([8, 1, 16]), dtype)
    name = "x" if op == "Transpose" else "input"
    made = getattr(tf.raw_ops, op)(**{name: x}, **given)
    places = [one._numpy_internal().__array_interface__["data"][0] for one in (x, made)]
    return places[0] == places[1]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("op", RUNS)
def test_kernels_hand_their_operand_on_where_the_table_says_so(
    op: str, dtype: tf.DType
) -> None:
    nothing, something = RUNS[op]
    assert shares(op, dtype, nothing)
    assert not shares(op, dtype, something)


@pytest.mark.parametrize("op", [op for op in RUNS if ROWS[op].constant_operands])
def test_xla_hands_on_the_same_values_in_a_cluster(op: str) -> None:
    x = np.array([[[np.nan, np.inf, -np.inf, 0.0, 3e38]]], np.float32)
    name = "x" if op == "Transpose" else "input"
    given = {"shape": x.shape} if op == "BroadcastTo" else RUNS[op][0]
    kernel = getattr(tf.raw_ops, op)
    run = tf.function(lambda x: kernel(**{name: x}, **given), jit_compile=True)
    made = run(tf.constant(x))
    assert made.numpy().tobytes() == x.tobytes()


def test_every_such_op_of_the_table_is_run() -> None:
    named = {row.op for row in ROWS.values() if row.unmoved is not Unmoved.NEVER}
    assert named == RUNS.keys()


def x(*shape: int | None) -> tf.Tensor:
    return v1.placeholder(tf.float32, shape or (4, 1, 2), name="x")


def joined(*parts: list[int]) -> tf.Tensor:
    """A permutation as Tensordot computes it where sizes are unknown."""
    return tf.raw_ops.ConcatV2(values=[tf.constant(part) for part in parts], axis=0)


def moves(build: Callable[[], object]) -> bool:
    module = module_of(graph_def(build))
    views = type_ports(module.main, context_of(module))
    return not moves_nothing(module.main, views["n"])


@pytest.mark.parametrize(
    ("why", "build"),
    [
        ("the order", lambda: tf.transpose(x(), [0, 1, 2], name="n")),
        ("of what is computed", lambda: tf.transpose(x(), joined([0, 1], [2]),
                                                     name="n")),
        ("and inverted", lambda: tf.transpose(x(), tf.math.invert_permutation(
            joined([0], [1, 2])), name="n")),
        ("at any size", lambda: tf.transpose(x(None, None, 2), joined([0, 1], [2]),
                                             name="n")),
        ("but for an axis of one", lambda: tf.transpose(x(), [1, 0, 2], name="n")),
        ("counted from the end", lambda: tf.transpose(x(), [0, -2, -1], name="n")),
        ("no axis", lambda: tf.reduce_sum(x(), tf.zeros([0], tf.int32), name="n")),
        ("an axis of one", lambda: tf.reduce_mean(x(), 1, name="n")),
        ("one copy", lambda: tf.tile(x(), [1, 1, 1], name="n")),
    ],
)  # fmt: skip
def test_a_node_moves_nothing_if(why: str, build: Callable[[], object]) -> None:
    assert not moves(build), why


@pytest.mark.parametrize(
    ("why", "build"),
    [
        ("another order", lambda: tf.transpose(x(), [2, 1, 0], name="n")),
        ("an axis of unknown size", lambda: tf.transpose(x(None, None, 2), [1, 0, 2],
                                                         name="n")),
        ("a computed order", lambda: tf.transpose(x(), joined([2], [0, 1]), name="n")),
        ("inverted", lambda: tf.transpose(x(), tf.math.invert_permutation(
            joined([2], [0, 1])), name="n")),
        ("an order that is fed", lambda: tf.transpose(x(), v1.placeholder(
            tf.int32, [3]), name="n")),
        ("an axis", lambda: tf.reduce_sum(x(), 0, name="n")),
        ("an unknown count", lambda: tf.reduce_sum(x(None, 1), 1, name="n")),
        ("arithmetic", lambda: tf.tanh(x(), name="n")),
    ],
)  # fmt: skip
def test_a_node_moves_something_if(why: str, build: Callable[[], object]) -> None:
    assert moves(build), why


# The law that all of this is for

BATCH, LENGTH, WIDTH = 32, 64, 256
# One on which all products run at the rate of the type.
ONE_RATE = dataclasses.replace(
    shipped_devices.CPU_AVX512_BF16, speed={"bfloat16": {"product": 2.0}}
)


def encoder() -> keras.Model:
    """A block of a transformer, for any number of sequences of any length."""
    given = keras.Input((None, WIDTH))
    y = keras.layers.MultiHeadAttention(4, WIDTH // 4, dropout=0.1)(given, given)
    y = keras.layers.LayerNormalization()(given + y)
    z = keras.layers.Dense(4 * WIDTH, activation="gelu")(y)
    z = keras.layers.Dense(WIDTH)(z)
    y = keras.layers.LayerNormalization()(y + z)
    y = keras.layers.GlobalAveragePooling1D()(y)
    return keras.Model(given, keras.layers.Dense(8)(y))


def planned(*shape: int | None) -> Report:
    """The plan of a training step that was traced for batches of a shape."""
    keras.utils.set_random_seed(0)
    model = encoder()

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    concrete = step.get_concrete_function(tf.TensorSpec((*shape, WIDTH)))
    definitions.remember(concrete.name.decode(), concrete.graph)
    module = definitions.read(context_lib.context(), concrete.name)
    given = np.zeros([BATCH, LENGTH, WIDTH], np.float32)
    sizes = shape_inference.at_call([tf.constant(given), *concrete.captured_inputs])
    settled = resolution.resolve(Policy(), ONE_RATE)
    return rewrite(module, settled, sizes=sizes).report


def products(report: Report) -> int:
    return sum(d.rule == "compute" and d.dtype == "bfloat16" for d in report.decisions)


def test_a_step_on_padded_batches_plans_as_one_on_batches_of_one_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long a step, with the same products and what clusters save of it.

    Where nothing of this was known the padded step was to take a quarter longer, and
    clusters saved a third as much. Left is that Keras makes other products of other
    shapes (Einsum for BatchMatMulV2), under 1 % of the step at equal rates, and that
    the mask of a dropout is made for a shape that is read off an activation, which no
    cluster crosses: 0.9 of some 30 ms that are saved for each of the two behind it.
    That a cluster of several sizes has to win back its compilation for each is left
    out.
    """
    monkeypatch.setattr(fuse, "SIZES", 1)
    static, padded = planned(BATCH, LENGTH), planned(None, None)
    assert padded.made_for == {"x": [BATCH, LENGTH, WIDTH]}
    assert static.made_for == {}
    assert products(padded) == products(static) > 20
    assert padded.seconds16 == pytest.approx(static.seconds16, rel=0.03)
    assert padded.fused_seconds > 0.8 * static.fused_seconds > 0


def test_a_rank_that_was_assumed_and_is_another_is_no_fault() -> None:
    """What Python gives has the shape of the largest operand until it is known."""

    def step(ids: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        found = tf.numpy_function(lambda given: given, [ids], tf.float32)
        moved = tf.transpose(found, [0, 2, 1])
        return tf.matmul(tf.reshape(moved, [-1, 64]), w)

    specs = [tf.TensorSpec([8, 64]), tf.TensorSpec([64, 64])]
    module, _ = traced(step, *specs)
    settled = resolution.resolve(Policy(strict=True), shipped_devices.CPU_AVX512_BF16)
    sizes = shape_inference.at_call([tf.zeros(spec.shape) for spec in specs])
    assert rewrite(module, settled, sizes=sizes).report.nodes_total > 3
