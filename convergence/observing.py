"""What results hold of one step's gradients and update; everything is put back.

Takes the step three times, at the same state and batch: in its setting, in float32, and
in float32 at weights that are off by rounding. What follows from the figures is
`gradient_rule`'s matter; nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from convergence import probe, settings
from convergence.probe import Seen
from convergence.steps import Step
from convergence.task import Batch


def look(step: Step, stage: int, batch: Batch, seed: Sequence[int]) -> dict[str, Any]:
    """Observes a step in 16 bits.

    Args:
      step: in its setting, at the state that it starts from.
      stage: of the task.
      batch: tensors.
      seed: of the noise.

    Returns:
      "overflow", whether loss scaling left the update out; if not also "gradient" and
      "update", observations by variable, and "lost", shares of values by variable.
    """
    assert step.policy is not None
    held, trained = step.values(), step.trained(stage)
    ours = _seen(step, trained, held, lambda: step(stage, batch)[1])
    if ours.overflow:
        step.put(held)
        return {"overflow": True}
    dtype = step.policy.dtype
    places = list(trained.values())
    off = list(held)
    moved = settings.nudged([held[p] for p in places], seed, settings.UNIT[dtype])
    for place, value in zip(places, moved, strict=True):
        off[place] = value
    exact, noisy = (
        _seen(step, trained, start, lambda: step.in_float32(stage, batch))
        for start in (held, off)
    )
    step.put(held)
    names, each = step.names[stage], (ours, exact, noisy)
    spacings = [probe.spacing(held[p]) for p in places]
    scales = step.tracks.scales(stage)
    least = [settings.SMALLEST_NORMAL[dtype] / scales[name] for name in names]
    return {
        "overflow": False,
        "gradient": probe.compared(names, *(seen.gradients for seen in each)),
        "update": probe.compared(
            list(trained), *(seen.updates for seen in each), spacings
        ),
        "lost": probe.lost(names, ours.gradients, exact.gradients, least),
    }


def drawn(step: Step, stage: int, batch: Batch) -> dict[str, Any]:
    """Histograms of a step's gradients, for pictures.

    Returns:
      "weights": by variable, in the setting and unscaled; in float32 also "results": by
      the layers' results.
    """
    held = step.values()
    found = [gradient.numpy() for gradient in step(stage, batch)[1]]
    told = {"weights": probe.histograms(step.names[stage], found)}
    step.put(held)
    if step.policy is None:
        found = [gradient.numpy() for gradient in step.layer_gradients(stage, batch)]
        told["results"] = probe.histograms(step.layers[stage], found)
        step.put(held)
    return told


def _seen(
    step: Step,
    trained: dict[str, int],
    start: Sequence[np.ndarray],
    take: Callable[[], list[tf.Tensor]],
) -> Seen:
    """A step taken from a state, seen from outside; the state after it stays."""
    step.put(start)
    before = step.tracks.skipped()
    gradients = [gradient.numpy() for gradient in take()]
    updates = [step.state[p].numpy() - start[p] for p in trained.values()]
    return Seen(gradients, updates, overflow=step.tracks.skipped() > before)
