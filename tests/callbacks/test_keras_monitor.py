"""`LossScaleMonitor` in `fit`."""

from __future__ import annotations

import numpy as np
import pytest

import amp
from amp.integration.process import PROCESS

keras = pytest.importorskip("keras")


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
    assert PROCESS.monitors == []
