"""Wide & Deep: a linear part of features and crosses, and sparse gradients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from models import wide_deep


def test_adds_a_linear_part() -> None:
    """A row's wide weight moves the logit by itself times how often the row occurs."""
    model = wide_deep.build()
    (ids, numbers), _ = wide_deep.example_batch(2, seed=0)
    ids[0, 1] = ids[0, 0]
    before = np.asarray(model([ids, numbers]))
    table = np.zeros((1000, 1), np.float32)
    table[ids[0, 0]] = 0.5
    model.get_layer("wide").set_weights([table])
    after = np.asarray(model([ids, numbers]))
    assert ids[0, 0] not in ids[1]
    np.testing.assert_allclose(after - before, [[1.0], [0.0]], atol=1e-6)


def test_keeps_each_field_in_its_rows() -> None:
    (ids, _), _ = wide_deep.example_batch(64, seed=0, rows=600, fields=6)
    np.testing.assert_array_equal(ids // 100, np.tile(np.arange(6), (64, 1)))


def test_crosses_are_hashed_evenly_and_by_their_fields_alone() -> None:
    cross = wide_deep.Cross(((0, 1), (1, 0), (0, 1, 2)), 50)
    ids = np.stack(np.unravel_index(np.arange(1000), (10, 10, 10)), 1).astype(np.int32)
    found = cross(ids).numpy()
    assert found.min() >= 0
    assert found.max() < 50
    for pair in found[:, :2].T:
        assert (pair.reshape(100, 10) == pair[::10, None]).all()  # field 2 is no part
        assert len(np.unique(pair)) > 35  # of 50; by chance 43 of 100 draws
    assert (found[:, 0] != found[:, 1]).mean() > 0.9
    # 1000 draws of 50 rows: 20 each, five standard deviations are 22.
    assert np.bincount(found[:, 2], minlength=50).max() < 42


def test_crossed_weights_move_the_logit() -> None:
    sizes = {"crosses": ((0, 1), (2, 3)), "cross_rows": 97}
    model = wide_deep.build(**sizes)
    x, _ = wide_deep.example_batch(8, seed=0)
    before = np.asarray(model(x))
    table = np.arange(97, dtype=np.float32)[:, None]
    model.get_layer("wide_crossed").set_weights([table])
    rows = model.get_layer("cross")(x[0]).numpy().sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(model(x)) - before, rows, atol=1e-4)
    wide, deep = wide_deep.wide_variables(model), wide_deep.deep_variables(model)
    assert {v.path for v in wide} == {"wide/embeddings", "wide_crossed/embeddings"}
    assert len(wide) + len(deep) == len(model.trainable_variables)


def test_tables_have_sparse_gradients() -> None:
    model = wide_deep.build(crosses=((0, 1),))
    x, y = wide_deep.example_batch(8, seed=0)
    with tf.GradientTape() as tape:
        loss = wide_deep.LOSS()(y, model(x))
    tables = [v for v in model.trainable_variables if "embeddings" in v.path]
    found = tape.gradient(loss, tables)
    assert len(found) == 3
    assert all(isinstance(g, tf.IndexedSlices) for g in found)
