"""`SCALING`: everything that loss scaling keeps, forgotten by the one reset."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import tensorflow as tf

import amp
from amp.integration.install import install
from amp.integration.process import PROCESS
from amp.loss_scaling import DynamicLossScale, current, process
from amp.loss_scaling.process import SCALING

KEPT = {"updated", "bends", "generation", "ask"}


def test_a_reset_forgets_every_scaler_and_what_traces_depend_on_stays() -> None:
    install()
    v = tf.Variable(2.0)
    with amp.mixed_precision_scope(dtype="float16", loss_scale=DynamicLossScale()):
        with tf.GradientTape() as tape:
            loss = v * v
        grad = tape.gradient(loss, v)
    kept = {name: getattr(SCALING, name) for name in KEPT}
    assert len(current().scalers) == len(SCALING.scalers) == 1
    assert SCALING.gradients
    PROCESS.reset()
    fresh = dataclasses.asdict(process.Scaling()) | kept
    assert {n: getattr(SCALING, n) for n in fresh if n != "scalers"} == {
        n: value for n, value in fresh.items() if n != "scalers"
    }
    assert not SCALING.scalers
    assert current().scalers == []
    np.testing.assert_allclose(grad, 4.0)  # exact: small integers
    del v, grad, loss, tape  # their finalizers find what they were made for, or nothing
    gc.collect()
    assert current().scalers == []
