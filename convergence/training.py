"""The training loop, one for all families: steps, checkpoints, and what is recorded.

Knows a setting only as a policy, and a family only as a task. Statistics are
`verdict`'s matter, files of results `results`'.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import amp
from convergence import checkpoints, observing, plans, steps
from convergence.task import Task, mean

POINTS = 60  # of a curve in results
SAVES = 20  # checkpoints of a run
LOOKS = 4  # probed steps, evenly spaced from the first


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """One run.

    Attributes:
      seed: of first weights, data order, dropout and noise.
      steps: to take.
      first: first values of the model's variables.
      worst: metric of a diverged run.
      probed: whether gradients and updates are compared with float32's.
      drawn: whether histograms of gradients are kept, for pictures.
      place: file of the checkpoint.
    """

    seed: int
    steps: int
    first: Sequence[np.ndarray]
    worst: float
    probed: bool
    drawn: bool
    place: Path


class Trainer:
    """A task in one setting: traced once, run with every seed.

    Args:
      task: what to train.
      policy: of the setting; None for float32.
      planted: see `steps.Step`.
    """

    def __init__(
        self,
        task: Task,
        policy: amp.Policy | None,
        planted: steps.Scope = contextlib.nullcontext,
    ) -> None:
        self._task = task
        self._step = steps.Step(task, policy, planted)

    def run(self, spec: Spec, advance: Callable[[int], None]) -> dict[str, Any]:
        """Trains with one seed, from its checkpoint if there is one.

        Args:
          spec: the run.
          advance: told the number of steps taken.

        Returns:
          What results hold of a run, setting and seed excepted.
        """
        started, (begin, history) = time.monotonic(), self._begin(spec)
        past, every = history["seconds"], max(spec.steps // SAVES, 1)
        for step in range(begin, spec.steps):
            self._take(spec, step, history)
            advance(step + 1)
            history["seconds"] = round(past + time.monotonic() - started, 2)
            if (step + 1) % every == 0 and step + 1 < spec.steps:
                checkpoints.save(spec.place, step + 1, self._step.state, history)
        return self._finished(spec, history)

    def plan(self) -> plans.Plan:
        """What the plan of the training step holds in 16 bits."""
        return plans.plan(self._step)

    def _begin(self, spec: Spec) -> tuple[int, dict[str, Any]]:
        self._step.put(self._step.fresh)
        for variable, value in zip(self._task.model.variables, spec.first, strict=True):
            variable.assign(value)
        fresh = {"losses": [], "scalers": [], "probes": [], "seconds": 0.0}
        return checkpoints.restore(spec.place, self._step.state) or (0, fresh)

    def _take(self, spec: Spec, number: int, history: dict[str, Any]) -> None:
        """Takes one step, and looks at it first where that is due."""
        batch = steps.tensors(self._task.batch(spec.seed, number))
        stage, tracks = self._task.stage(number), self._step.tracks
        looks = [spec.steps * k // LOOKS for k in range(LOOKS)]
        told: dict[str, Any] = {"step": number, "scale": min(tracks.scale(stage))}
        if spec.probed and number in looks:
            told |= observing.look(self._step, stage, batch, (spec.seed, number))
        if spec.drawn and number in (looks[0], looks[LOOKS // 2]):
            told |= observing.drawn(self._step, stage, batch)
        if len(told) > 2:
            history["probes"].append(told)
        before = tracks.before(stage)
        losses, _ = self._step(stage, batch)
        history["losses"].append([float(loss) for loss in losses])
        tracks.note(history["scalers"], number, before)

    def _finished(self, spec: Spec, history: dict[str, Any]) -> dict[str, Any]:
        variables = self._task.model.variables
        sound = all(np.isfinite(v.numpy()).all() for v in variables)
        judged = self._task.evaluate() if sound else float("nan")
        metric = mean(judged)
        diverged = not np.isfinite(metric)
        losses = np.array(history["losses"])
        return {
            "metric": spec.worst if diverged else metric,
            "classes": judged if isinstance(judged, dict) else {},
            "diverged": diverged,
            "seconds": history["seconds"],
            "ends": ends(losses),
            "losses": curve(losses),
            "scalers": history["scalers"],
            "probes": history["probes"],
        }


def ends(values: np.ndarray) -> list[float | None]:
    """Each part's mean loss over the last quarter of the steps; None if not finite.

    Args:
      values: losses, [steps, parts].
    """
    last = values[-max(len(values) // 4, 1) :].mean(axis=0)
    return [float(f"{x:.9g}") if np.isfinite(x) else None for x in last]


def curve(values: np.ndarray) -> list[list[float | None]]:
    """Each part's losses [steps, parts] as at most `POINTS` means over equal shares.

    A mean is of finite losses; where there are none it is None.
    """
    found = []
    for losses in values.T:
        pieces = np.array_split(losses, min(POINTS, len(losses)))
        kept = [piece[np.isfinite(piece)] for piece in pieces]
        found.append([float(f"{k.mean():.5g}") if len(k) else None for k in kept])
    return found
