"""`row_reads`: a table of which rows are written is not copied to look rows up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled, traced
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.cost import shipped_devices
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.normalize.row_reads import read_rows
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.runtime import definitions

POLICY = {"dtype": "bfloat16", "assignment": "all", "emulate": True}
POLICY |= {"strict": True, "check": False, "trial": False}
ROWS, WIDTH = 32, 8
TABLE = tf.Variable(tf.reshape(tf.range(ROWS * WIDTH, dtype=tf.float32), [ROWS, WIDTH]))
IDS = tf.TensorSpec([3], tf.int32)
Step = Callable[..., Any]


def write_rows(ids: tf.Tensor, change: float = 1.0) -> None:
    TABLE.scatter_sub(tf.IndexedSlices(tf.fill([3, WIDTH], change), ids))


def looked_up(ids: tf.Tensor) -> tf.Tensor:
    """As Keras does it: `ops.take` of the variable's value."""
    rows = tf.gather(tf.convert_to_tensor(TABLE), ids)
    write_rows(ids)
    return rows


def twice(ids: tf.Tensor) -> tf.Tensor:
    """Two lookups, each with a read of its own."""
    rows = tf.gather(tf.convert_to_tensor(TABLE), ids)
    rows += tf.gather(tf.convert_to_tensor(TABLE), ids + 1)
    write_rows(ids)
    return rows


def written_in_a_branch(ids: tf.Tensor) -> tf.Tensor:
    """A branch that never runs leaves reads without a copy."""
    rows = tf.gather(tf.convert_to_tensor(TABLE), ids)

    def update() -> tf.Tensor:
        write_rows(ids)
        return tf.constant(1)

    tf.cond(ids[0] > 0, update, lambda: tf.constant(0))
    return rows


def written_twice(ids: tf.Tensor) -> tf.Tensor:
    """The second write waits for the first alone."""
    rows = tf.gather(tf.convert_to_tensor(TABLE), ids)
    write_rows(ids)
    write_rows(ids, 2.0)
    return rows


def main(fn: Step, *, differentiable: bool = False) -> ir.Graph:
    module = inline(traced(fn, IDS)[0])
    return read_rows(module, differentiable).main


@pytest.mark.parametrize(
    ("fn", "count"),
    [(looked_up, 1), (twice, 2), (written_twice, 1)],
)
def test_a_lookup_takes_no_more_than_its_rows(fn: Step, count: int) -> None:
    graph = main(fn)
    made = [node for node in graph.nodes.values() if node.op == "ResourceGather"]
    assert len(made) == count
    assert "GatherV2" not in graph.ops


def test_the_new_nodes_have_the_shape_of_the_rows() -> None:
    module = inline(traced(looked_up, IDS)[0])
    shapes = {("ReadVariableOp", 0): (ROWS, WIDTH), ("GatherV2", 0): (3, WIDTH)}
    before = module.main.with_shapes(lambda _: shapes.get)
    after = read_rows(ir.Module(before, module.functions), False).main
    assert after.nodes["ReadVariableOp"].op == "ResourceGather"
    assert after.nodes["GatherV2"].op == "Identity"
    assert {after.shape(edge) for edge in shapes} == {(3, WIDTH)}


def made() -> set[str]:
    """The functions of the runtime that look rows up in a variable."""
    context = context_lib.context()
    names = context.list_function_names()
    functions = {name: context.get_function_def(name).node_def for name in names}
    return {
        n for n, ops in functions.items() if "ResourceGather" in {o.op for o in ops}
    }


@pytest.mark.parametrize("fn", [looked_up, twice, written_twice])
def test_results_and_what_is_written_stay_the_same(fn: Step) -> None:
    def step(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        eye = tf.eye(WIDTH)  # so that there is something to convert, and it is exact
        return fn(ids), tf.matmul(eye, eye)

    start = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    ids = np.array([3, 5, 3], np.int32)
    TABLE.assign(start)
    plain = tf.function(step)
    want, after = [plain(ids)[0].numpy() for _ in range(3)], TABLE.numpy()
    TABLE.assign(start)
    before, twin = made(), tf.function(step)
    with amp.mixed_precision_scope(**POLICY):
        got = [twin(ids)[0].numpy() for _ in range(3)]
    assert made() > before
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(TABLE.numpy(), after)
    assert not np.array_equal(after, start)


def only_read(ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.convert_to_tensor(TABLE), ids)


def written_whole(ids: tf.Tensor) -> tf.Tensor:
    rows = tf.gather(tf.convert_to_tensor(TABLE), ids)
    TABLE.assign(tf.convert_to_tensor(TABLE) + 1.0)
    return rows


def columns(ids: tf.Tensor) -> tf.Tensor:
    rows = tf.gather(tf.convert_to_tensor(TABLE), ids, axis=1)
    write_rows(ids)
    return rows


def along_a_batch(ids: tf.Tensor) -> tf.Tensor:
    rows = tf.gather(
        tf.convert_to_tensor(TABLE), tf.fill([ROWS, 2], ids[0]), batch_dims=1
    )
    write_rows(ids)
    return rows


def read_by_more(ids: tf.Tensor) -> tf.Tensor:
    value = tf.convert_to_tensor(TABLE)
    rows = tf.gather(value, ids) + tf.reduce_sum(value)
    write_rows(ids)
    return rows


def returned(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    value = tf.convert_to_tensor(TABLE)
    rows = tf.gather(value, ids)
    write_rows(ids)
    return rows, value


def ids_of_the_table(ids: tf.Tensor) -> tf.Tensor:
    """The indices come of a later write, before which the read is to be made."""
    value = tf.convert_to_tensor(TABLE)
    write_rows(ids)
    later = tf.cast(tf.convert_to_tensor(TABLE)[0, :3], tf.int32) % ROWS
    return tf.gather(value, later)


def kept(ids: tf.Tensor) -> tf.Tensor:
    with amp.keep_float32():
        rows = tf.gather(tf.convert_to_tensor(TABLE), ids)
    write_rows(ids)
    return rows


def unused(ids: tf.Tensor) -> tf.Tensor:
    """What nothing needs is pruned, wrong indices or not; a read is not."""
    tf.gather(tf.convert_to_tensor(TABLE), ids + ROWS)
    write_rows(ids)
    return ids


def by_short_integers(ids: tf.Tensor) -> tf.Tensor:
    """ResourceGather takes no int16."""
    rows = tf.gather(tf.convert_to_tensor(TABLE), tf.cast(ids, tf.int16))
    write_rows(ids)
    return rows


OTHER = tf.Variable(tf.zeros([ROWS, WIDTH]))


def crossed(ids: tf.Tensor) -> tf.Tensor:
    """Each lookup may wait for its indices, but not both for each other's."""
    value, other = tf.convert_to_tensor(TABLE), tf.convert_to_tensor(OTHER)
    write_rows(ids)
    change = tf.IndexedSlices(tf.ones([3, WIDTH]), ids)
    OTHER.scatter_sub(change)
    rows = tf.gather(value, tf.cast(tf.convert_to_tensor(OTHER)[0, :3], tf.int32))
    late = tf.cast(tf.convert_to_tensor(TABLE)[0, :3], tf.int32)
    return rows + tf.gather(other, late)


def beside_python(ids: tf.Tensor) -> tf.Tensor:
    rows = tf.gather(tf.convert_to_tensor(TABLE), ids)
    rows += tf.numpy_function(lambda: np.float32(1), [], tf.float32)
    write_rows(ids)
    return rows


@pytest.mark.parametrize(
    "fn",
    [
        only_read,
        written_whole,
        columns,
        along_a_batch,
        read_by_more,
        returned,
        ids_of_the_table,
        kept,
        unused,
        by_short_integers,
        crossed,
        written_in_a_branch,
        beside_python,
    ],
)
def test_every_other_read_stays(fn: Step) -> None:
    assert "ResourceGather" not in main(fn).ops


def test_a_function_that_is_differentiated_later_stays() -> None:
    assert "ResourceGather" not in main(looked_up, differentiable=True).ops


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_a_keras_embedding_is_looked_up_row_by_row(name: str) -> None:
    embedding = keras.layers.Embedding(ROWS, WIDTH)
    dense = keras.layers.Dense(4)
    embedding.build()
    dense.build((None, WIDTH))
    variables = [*embedding.trainable_variables, *dense.trainable_variables]
    optimizer = getattr(keras.optimizers, name)()
    optimizer.build(variables)

    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(dense(embedding(ids))))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    module, _ = traced(step, IDS)
    made = rewrite(module, settled()).graph.main
    assert "ResourceGather" in made.ops
    assert "GatherV2" not in {
        n.op for n in made.nodes.values() if "embedding" in n.name
    }
    # A second rewrite finds nothing to do.
    again = read_rows(
        ir.Module(made, rewrite(module, settled()).graph.functions), False
    )
    assert again.main is made


def test_a_graph_of_a_session_stays() -> None:
    """A session may run its nodes in any order."""
    nodes = inline(traced(looked_up, IDS)[0]).main.nodes
    given = ir.Module(ir.Graph("", nodes), {})
    assert read_rows(given, False).main is given.main


def reported(lookup: Step, width: int) -> amp.Report:
    """The report on a step with a large table, and a product of some width."""
    table = tf.Variable(tf.zeros([200_000, WIDTH]))

    def step(ids: tf.Tensor) -> tf.Tensor:
        rows = lookup(table, ids)
        table.scatter_sub(tf.IndexedSlices(tf.ones([3, WIDTH]), ids))
        x = tf.tile(rows, [width, width // WIDTH])
        return tf.matmul(x, tf.ones([width, width]))

    concrete = tf.function(step).get_concrete_function(IDS)
    definitions.remember(concrete.name.decode(), concrete.graph)
    module = definitions.read(context_lib.context(), concrete.name)
    fields = {"assignment": "cost", "min_gain": 0.02}
    return rewrite(module, settled(shipped_devices.CPU_AMX, **fields)).report


def gathered(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.convert_to_tensor(table), ids)


@pytest.mark.parametrize("lookup", [gathered, tf.nn.embedding_lookup])
def test_a_copy_spared_is_no_reason_for_16_bits(lookup: Step) -> None:
    """Whether a step gains enough is asked of its types alone."""
    report = reported(lookup, WIDTH)
    assert report.nodes_low == 0
    assert report.seconds16 == report.seconds32


def test_a_step_in_16_bits_is_predicted_to_spare_the_copy() -> None:
    """Every row is read and written; all else is the same."""
    rows, moved = reported(gathered, 1024), 2 * 200_000 * WIDTH
    same = reported(tf.nn.embedding_lookup, 1024)
    assert rows.nodes_low > 0
    spared = rows.seconds32 - same.seconds32
    assert spared >= 4 * moved / shipped_devices.CPU_AMX.bandwidth
    assert rows.seconds16 == pytest.approx(same.seconds16, rel=0.05)
