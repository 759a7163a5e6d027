"""Training on one batch over and over."""

from __future__ import annotations

from typing import Any

import keras


def losses(model: keras.Model, batch: tuple[Any, ...], steps: int) -> list[float]:
    """The loss before each step (Keras 3.12 gives means, unless they are reset)."""
    found = []
    for _ in range(steps):
        model.reset_metrics()
        found.append(float(model.train_on_batch(*batch)))
    return found
