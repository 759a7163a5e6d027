"""`LossScaleMonitor` in `fit`."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.process import PROCESS

keras = pytest.importorskip("keras")


def written(directory):
    """The steps of which there are values for TensorBoard."""
    return {
        event.step
        for file in directory.glob("events.*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        if event.summary.value
    }


def test_fit_logs_the_scale_and_writes_it(tmp_path, capsys):
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    monitor = amp.callbacks.LossScaleMonitor(tmp_path, every=4)
    x, y = np.ones([24, 4], np.float32), np.ones([24, 2], np.float32)
    policy = {"dtype": "float16", "emulate": True, "assignment": "all"}
    with amp.mixed_precision_scope(**policy, strict=True):
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[monitor])
    said = capsys.readouterr().err
    assert [f"step {n}: loss scale" in said for n in (0, 4, 5, 1)] == [
        *(True, True, True, False)
    ]
    assert list(tmp_path.glob("events.*"))
    assert not PROCESS.monitors


def test_batches_are_counted_where_several_are_one_execution(tmp_path):
    """16 in executions of 4, twice: read at the first that ends at 8 more, or past."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", steps_per_execution=4)
    monitor = amp.callbacks.LossScaleMonitor(tmp_path, every=8)
    x, y = np.ones([64, 4], np.float32), np.ones([64, 2], np.float32)
    policy = {"dtype": "float16", "emulate": True, "assignment": "all"}
    with amp.mixed_precision_scope(**policy):
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[monitor])
    assert written(tmp_path) == {11, 19, 27, 31}


def test_a_fit_that_was_interrupted_is_not_observed_any_more(tmp_path):
    """Keras calls no `on_train_end` then."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")

    def interrupt(batch, logs):
        raise KeyboardInterrupt

    stops = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
    monitor = amp.callbacks.LossScaleMonitor(tmp_path, every=1)
    x, y = np.ones([8, 4], np.float32), np.ones([8, 2], np.float32)
    policy = {"dtype": "float16", "emulate": True, "assignment": "all"}
    with amp.mixed_precision_scope(**policy), pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[monitor, stops])
    assert len(PROCESS.monitors) == 1
    del monitor, stops, model
    gc.collect()
    assert not PROCESS.monitors


def test_a_second_fit_is_written_too(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    monitor = amp.callbacks.LossScaleMonitor(tmp_path, every=1)
    x, y = np.ones([8, 4], np.float32), np.ones([8, 2], np.float32)
    policy = {"dtype": "float16", "emulate": True, "assignment": "all"}
    with amp.mixed_precision_scope(**policy):
        for _ in range(2):
            model.fit(x, y, batch_size=4, verbose=0, callbacks=[monitor])
    assert written(tmp_path) == {0, 1, 2, 3}
