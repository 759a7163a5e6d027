"""Follows loss scales and optimizers through a run, for `dynamics` to judge.

Reads variables between steps; changes none of them, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from convergence.task import Part, Task


class Tracks:
    """The scalers of a task's gradient calls, each with the optimizers that it serves.

    Args:
      task: what is trained.
      scalers: those that were made when its steps were traced.
    """

    def __init__(self, task: Task, scalers: Sequence[Any]) -> None:
        self._task, self._scalers = task, scalers
        self._of_stage = {
            stage: [_scaler(scalers, part) for part in task.parts(stage)]
            for stage in task.stages
        }

    def scale(self, stage: int) -> list[float]:
        """The scale of each part of a stage's next step; 1 where there is no scaler."""
        return [
            1.0 if at is None else float(self._scalers[at].scale.numpy())
            for at in self._of_stage[stage]
        ]

    def scales(self, stage: int) -> dict[str, float]:
        """The scale of each variable's gradient in a stage's next step, by path."""
        parts = zip(self._task.parts(stage), self.scale(stage), strict=True)
        return {v.path: scale for part, scale in parts for v in part.variables}

    def skipped(self) -> int:
        """Updates that the scalers say they had left out."""
        return sum(int(scaler.skipped_steps.numpy()) for scaler in self._scalers)

    def before(self, stage: int) -> tuple[list[float], list[list[int]]]:
        """What `note` needs to know of the time before a step."""
        return self.scale(stage), [_counts(p) for p in self._task.parts(stage)]

    def note(
        self,
        history: list[dict[str, Any]],
        step: int,
        before: tuple[list[float], list[list[int]]],
    ) -> None:
        """Adds a step that was taken to what is told of each scaler.

        Args:
          history: what is told, which grows by a scaler where one begins.
          step: its number.
          before: what `before` returned.
        """
        stage = self._task.stage(step)
        parts = self._task.parts(stage)
        for at, part, scale, counts in zip(
            self._of_stage[stage], parts, *before, strict=True
        ):
            if at is None:
                continue
            own = next((told for told in history if told["scaler"] == at), None)
            if own is None:
                own = {"scaler": at, "begin": step, "count": 0, "path": [], "held": []}
                history.append(own)
            own["count"] += 1
            if not own["path"] or own["path"][-1][1] != scale:
                own["path"].append([step, scale])
            if _counts(part) == counts:
                own["held"].append(step)


def _counts(part: Part) -> list[int]:
    """The optimizers' own counts of the updates that they made."""
    return [int(optimizer.iterations.numpy()) for optimizer, _ in part.updates]


def _scaler(scalers: Sequence[Any], part: Part) -> int | None:
    """Which scaler is of the gradient by all of a part's variables; None: none is."""
    own: list[tf.Variable] = [variable.value for variable in part.variables]
    for index, scaler in enumerate(scalers):
        size = int(scaler.overflow.shape[0])
        if size == len(own) == len(scaler.positions(own)):
            return index
    return None
