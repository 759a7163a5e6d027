"""`given_values`: what nobody computed comes as it is to a reader that needs it so."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled, spec, traced

import amp
from amp.graph_rewrite.rewrite import rewrite

IDS = np.arange(9001, 9017, dtype=np.float32)[:, None]  # not in 16 bits
BATCH = np.concatenate([np.eye(16, dtype=np.float32), IDS], 1)
W = tf.constant(np.eye(16, dtype=np.float32))
Fn = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def rules(fn: Fn, *specs: tf.TensorSpec, **fields: object) -> dict[str, str]:
    """By the last part of a node's name, the rule that decided."""
    report = rewrite(traced(fn, *specs)[0], settled(**fields)).report
    return {d.node.rpartition("/")[2].rpartition("::")[2]: d.rule
            for d in report.decisions}  # fmt: skip


def by_split(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x, ids = tf.split(batch, [16, 1], 1)
    return tf.matmul(x, W), tf.cast(ids, tf.int32)


def by_transposition(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    turned = tf.transpose(batch)
    x = tf.transpose(turned[:16])
    return tf.matmul(x, W), tf.cast(tf.transpose(turned[16:]), tf.int32)


def as_a_result(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x, ids = tf.split(tf.reshape(batch, [16, 17]), [16, 1], 1)
    return tf.matmul(x, W), tf.identity(ids)


def beside_what_is_computed(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """In one tensor with a product's result."""
    x, ids = batch[:, :16], batch[:, 16:]
    both = tf.concat([tf.matmul(x, W), ids], 1)
    return both[:, :16], tf.cast(both[:, 16:], tf.int32)


def by_a_branch(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    turned = tf.transpose(batch)
    yes = tf.reduce_sum(batch) > 0
    no = tf.zeros([1, 16], tf.int32)
    ids = tf.cond(yes, lambda: tf.cast(turned[16:], tf.int32), lambda: no)
    return tf.matmul(turned[:16], W, transpose_a=True), tf.transpose(ids)


def by_a_list(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    def body(row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.matmul(row[None, :16], W)[0], tf.cast(row[16:], tf.int32)

    return tf.map_fn(body, batch, (tf.float32, tf.int32))


def through_a_list(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    def body(row: tf.Tensor) -> tf.Tensor:
        return tf.concat([tf.matmul(row[None, :16], W)[0], row[16:]], 0)

    both = tf.map_fn(body, batch)
    return both[:, :16], tf.cast(both[:, 16:], tf.int32)


WAYS = [
    by_split,
    by_transposition,
    as_a_result,
    beside_what_is_computed,
    by_a_branch,
    by_a_list,
    through_a_list,
]


@pytest.mark.parametrize("emulate", [False, True], ids=["native", "emulated"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
def test_ids_that_come_with_features_are_not_rounded(
    way: Fn, dtype: str, emulate: bool
) -> None:
    policy = amp.Policy(dtype=dtype, emulate=emulate, assignment="all", strict=True)
    assert "compute" in rules(way, spec(16, 17), dtype=dtype, emulate=emulate).values()
    x, ids = amp.twin(way, BATCH, policy=policy)(BATCH)
    np.testing.assert_array_equal(np.asarray(ids), IDS)
    np.testing.assert_array_equal(x, np.eye(16))


def test_a_keras_rnn_hands_on_what_its_cell_does() -> None:
    class Cell(keras.layers.Layer):
        state_size = output_size = 17

        def call(self, x: tf.Tensor, states: list) -> tuple:
            h = keras.ops.matmul(x[:, :16] + states[0][:, :16], W)
            out = keras.ops.concatenate([h, x[:, 16:]], -1)
            return out, [out]

    model = keras.Sequential([keras.layers.RNN(Cell(), return_sequences=True)])
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True, assignment="all"):
        got = model.predict(np.stack([BATCH, BATCH], 1), verbose=0)
    np.testing.assert_array_equal(got[:, 1, 16:], IDS)


def test_moves_to_products_alone_are_16_bit() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.transpose(x, name="moved"), x)

    assert rules(fn, spec(4, 4))["moved"] == "move"


def test_what_arithmetic_gave_is_moved_in_16_bits_to_any_reader() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        moved = tf.transpose(tf.matmul(x, x), name="moved")
        return tf.math.lgamma(moved), tf.matmul(moved, x)

    assert rules(fn, spec(4, 4))["moved"] == "move"


def test_a_loop_that_begins_with_a_given_value_carries_16_bits() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.transpose(tf.matmul(y, x), name="moved")

        return tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), x])[1]

    assert rules(fn, spec(4, 4))["moved"] == "move"


def test_the_gradient_of_a_list_of_given_values_hands_on_none_of_them() -> None:
    """It begins with zeros for each element of the list, and is read in float32."""
    layer = keras.layers.LSTM(16)
    layer.build([16, 3, 16])

    def fn(table: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(table, [0, 2, 1, 3] * 4, name="rows")
        gradient = tf.gradients(tf.reduce_sum(layer(rows)), rows)[0]
        return tf.math.lgamma(gradient)

    assert rules(fn, spec(4, 3, 16))["rows"] == "move"
