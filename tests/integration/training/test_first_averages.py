"""A `fit` whose updates were all left out leaves the weights what they are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.loss_scaling import DynamicLossScale

keras = pytest.importorskip("keras")

X = np.linspace(0, 1, 32, dtype=np.float32).reshape(8, 4)
Y = np.ones((8, 1), np.float32)
POLICY = amp.Policy(
    dtype="float16",
    emulate=True,
    loss_scale=DynamicLossScale(initial=4.0),
    strict=True,
    trial=False,
)
OPTIMIZERS = {
    "averaging": lambda: keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.5),
    "accumulating": lambda: keras.optimizers.SGD(
        0.01, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2
    ),
}


def trained(optimizer: str, factors: list[float]) -> list[np.ndarray]:
    """The kernel before the first, and after each `fit` of two steps."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    factor = tf.Variable(1.0, trainable=False)
    model.compile(
        OPTIMIZERS[optimizer](),
        loss=lambda y, found: tf.reduce_mean(tf.square(y - found), -1) * factor,
    )
    kernels = [model.get_weights()[0]]
    for each in factors:
        factor.assign(each)
        model.fit(X, Y, batch_size=4, verbose=0, shuffle=False)
        kernels.append(model.get_weights()[0])
    return kernels


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_averages_that_no_update_has_filled_are_not_made_the_weights(
    optimizer: str,
) -> None:
    plain = trained(optimizer, [1.0, 1.0])
    with amp.mixed_precision_scope(POLICY):
        found = trained(optimizer, [np.inf, 1.0, 1.0])
    np.testing.assert_array_equal(found[0], found[1])
    # Four updates by 0.01 of a gradient under 8, of which three roundings to float16
    # change 3 * 2^-11 at most.
    np.testing.assert_allclose(found[2:], plain[1:], rtol=0, atol=5e-4)
    assert not np.array_equal(plain[0], plain[1])
