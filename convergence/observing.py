"""What results hold of one step's gradients and update; everything is put back.

Takes the step at the same state and batch in its setting, in float32, and `DRAWS` times
in float32 at weights that are off by rounding. What follows from the figures is
`gradient_rule`'s matter; nothing is judged here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from convergence import gradient_rule, probe, settings
from convergence.probe import Seen
from convergence.steps import Step
from convergence.task import Batch

# Near a kink, as in a gradient penalty of leaky units, one draw in ten is off by a
# hundred times what the others are. 16 bits round activations too, and pass more kinks
# than noise of the weights: in a GAN 3 probes of 24 did, and 1 with five draws.
DRAWS = 16


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
      Updates are of the values whose gradient is not mere rounding (`gradient_rule`).
    """
    assert step.policy is not None
    held, trained = step.values(), step.trained(stage)
    ours = _seen(step, trained, held, lambda: step(stage, batch)[1])
    if ours.overflow:
        step.put(held)
        return {"overflow": True}
    dtype = step.policy.dtype
    places, unit = list(trained.values()), settings.UNIT[dtype]
    starts = [held] + [_off(held, places, (*seed, d), unit) for d in range(DRAWS)]
    exact, *noisy = (
        _seen(step, trained, start, lambda: step.in_float32(stage, batch))
        for start in starts
    )
    step.put(held)
    names = step.names[stage]
    rounding = gradient_rule.FLOOR * unit
    known = probe.above(names, exact.gradients, rounding)
    part = functools.partial(_part, [known.get(path) for path in trained])
    scales = step.tracks.scales(stage)
    least = [settings.SMALLEST_NORMAL[dtype] / scales[name] for name in names]
    return {
        "overflow": False,
        "gradient": probe.compared(
            names, ours.gradients, exact.gradients, [seen.gradients for seen in noisy]
        ),
        "update": probe.compared(
            list(trained),
            part(ours.updates),
            part(exact.updates),
            [part(seen.updates) for seen in noisy],
            [probe.spacing(weights) for weights in part([held[p] for p in places])],
        ),
        "lost": probe.lost(names, ours.gradients, exact.gradients, least),
    }


def _part(
    masks: Sequence[np.ndarray | None], values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The values that masks choose; all where a mask is None, or of other rows."""
    return [
        value[mask] if mask is not None and mask.shape == value.shape else value
        for mask, value in zip(masks, values, strict=True)
    ]


def _off(
    held: Sequence[np.ndarray], places: Sequence[int], seed: Sequence[int], unit: float
) -> list[np.ndarray]:
    """The values of a state, those at `places` off by at most so much of themselves."""
    off = list(held)
    moved = settings.nudged([held[p] for p in places], seed, unit)
    for place, value in zip(places, moved, strict=True):
        off[place] = value
    return off


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
