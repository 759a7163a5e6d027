"""`GradientCheck`: the copies compute what the step computes, of any kind of model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import amp
from amp.integration.functions.gradient_copies import GradientCopies

RANDOM = np.random.default_rng(1)


def dense() -> tuple[Any, np.ndarray, np.ndarray]:
    layers = [keras.layers.Dense(64, "relu"), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(4)])
    return model, RANDOM.normal(size=[64, 64]), RANDOM.normal(size=[64, 4])


def dropped_out() -> tuple[Any, np.ndarray, np.ndarray]:
    layers = [keras.layers.Dense(32, "gelu"), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(4)])
    return model, RANDOM.normal(size=[64, 8]), RANDOM.normal(size=[64, 4])


def embedded() -> tuple[Any, np.ndarray, np.ndarray]:
    layers = [keras.layers.Embedding(32, 16), keras.layers.LSTM(16)]
    model = keras.Sequential([*layers, keras.layers.Dense(4)])
    return model, RANDOM.integers(0, 32, [64, 8]), RANDOM.normal(size=[64, 4])


def convolved() -> tuple[Any, np.ndarray, np.ndarray]:
    layers = [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.MaxPool2D()]
    model = keras.Sequential(
        [*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)]
    )
    return model, RANDOM.normal(size=[32, 8, 8, 3]), RANDOM.normal(size=[32, 4])


MODELS = (dense, dropped_out, embedded, convolved)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize(
    ("dtype", "jit"), [("bfloat16", False), ("float16", False), ("bfloat16", True)]
)
def test_fit_of_keras_is_checked(
    make: Callable[[], tuple[Any, np.ndarray, np.ndarray]], dtype: str, jit: bool
) -> None:
    keras.utils.set_random_seed(1)
    model, x, y = make()
    model.compile("sgd", "mse", jit_compile=jit)
    # However small the model, all that may be is 16-bit.
    forced = {"assignment": "all", "check": True}
    with amp.mixed_precision_scope(dtype=dtype, emulate=True, **forced):
        model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    (report,) = [r for r in amp.reports() if r.accuracy is not None]
    assert report.accuracy.error is not None, report.accuracy.text
    variables = len(model.trainable_variables)
    assert 0 < len(report.accuracy.worst) <= min(5, variables)
    # Rounding is what the figures are of, so none of them is 0.
    assert 0 < report.accuracy.products < 0.5
    assert 0 < report.accuracy.error < 0.5
    updates = int(model.optimizer.iterations)
    assert updates == 2 * -(-len(x) // 16)


def test_the_copies_give_what_the_step_itself_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In float32, by plain gradient descent: the change of a weight is its gradient."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)])
    x, y = RANDOM.normal(size=[16, 8]), RANDOM.normal(size=[16, 2])
    model.compile(keras.optimizers.SGD(2.0**-3), "mse", jit_compile=False)
    model.build([None, 8])
    seen: list[list[np.ndarray]] = []
    honest = GradientCopies.gradients

    def spied(self: GradientCopies, step: Any) -> list[np.ndarray]:
        seen.append(honest(self, step))
        return seen[-1]

    monkeypatch.setattr(GradientCopies, "gradients", spied)
    weights = []
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True, deny=["MatMul"]):
        model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    assert not seen  # nothing in 16 bits, nothing to compare
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True):
        for _ in range(2):
            weights.append([np.array(w) for w in model.trainable_variables])
            model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    exact, products, planned = seen[:3]
    # The copies ran at the weights after the step that took the batch.
    weights.append([np.array(w) for w in model.trainable_variables])
    changes = [(a - b) * 2.0**3 for a, b in zip(weights[1], weights[2], strict=True)]
    sizes = sorted(float(np.linalg.norm(grad)) for grad in planned)
    for found, wanted in zip(
        sizes, sorted(float(np.linalg.norm(c)) for c in changes), strict=True
    ):
        # Grappler may order float32 sums otherwise than a copy has them; a value that
        # is rounded to bfloat16 afterwards may then fall to its neighbour, 2**-8 off.
        assert abs(found - wanted) <= 2.0**-8 * wanted
    assert len(exact) == len(products) == len(planned) == 4
