"""Networks of keras.applications: any of them by its name, without a download."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from benchmarks import bench_models
from models import applications


def test_returns_one_vector_of_logits_per_label() -> None:
    x, y = applications.example_batch(2, seed=1)
    logits = applications.build()(x)
    assert tuple(logits.shape) == (*y.shape, 10)
    assert not np.allclose(np.sum(logits, axis=1), 1)  # no softmax behind them


def test_weights_are_of_the_seed() -> None:
    weights = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        weights.append(applications.build().get_weights()[0])
    np.testing.assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()


@pytest.mark.parametrize("name", bench_models.APPLICATIONS)
def test_the_timed_ones_are_networks_of_keras(name: str) -> None:
    sizes = bench_models.APPLICATIONS[name].sizes
    assert callable(getattr(keras.applications, sizes["network"]))
