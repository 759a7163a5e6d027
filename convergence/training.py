"""The training loop, one for all families: steps, checkpoints, and what is recorded.

Knows a setting only as a policy, and a family only as a task. Statistics are
`verdict`'s matter, files of results `results`'.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import amp
from convergence import checkpoints, probe
from convergence.errors import ResultError
from convergence.task import Batch, Task, mean

POINTS = 60  # of a curve in results
SAVES = 20  # checkpoints of a run


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """One run.

    Attributes:
      seed: of first weights, data order, dropout and noise.
      steps: to take.
      first: first values of the model's variables.
      worst: metric of a diverged run.
      probed: whether gradients are looked at.
      place: file of the checkpoint.
    """

    seed: int
    steps: int
    first: Sequence[np.ndarray]
    worst: float
    probed: bool
    place: Path


class Trainer:
    """A task in one setting: traced once, run with every seed.

    Args:
      task: what to train.
      policy: of the setting; None for float32.
    """

    def __init__(self, task: Task, policy: amp.Policy | None) -> None:
        self._task, self._policy = task, policy
        self._step = tf.function(self._train, autograph=False)
        self._gradients = tf.function(self._differentiated, autograph=False)
        self._names: dict[int, tuple[list[str], list[str]]] = {}
        for stage in task.stages:
            for part in task.parts(stage):
                for optimizer, variables in part.updates:
                    if not optimizer.built:
                        optimizer.build(variables)
        before = set(amp.loss_scaling.current().scalers)
        for stage in task.stages:
            step = next(s for s in range(10**9) if task.stage(s) == stage)
            with self._scope():
                self._step.get_concrete_function(stage, _tensors(task.batch(0, step)))
        scalers = amp.loss_scaling.current().scalers
        self._scalers = [scaler for scaler in scalers if scaler not in before]
        self._state = self._variables()
        self._fresh = [variable.numpy() for variable in self._state]

    def run(self, spec: Spec, advance: Callable[[int], None]) -> dict[str, Any]:
        """Trains with one seed, from its checkpoint if there is one.

        Args:
          spec: the run.
          advance: told the number of steps taken.

        Returns:
          What results hold of a run, setting and seed excepted.
        """
        begin, history = self._begin(spec)
        every = max(spec.steps // SAVES, 1)
        looks = {spec.steps * k // 4 for k in range(3)} | {spec.steps - 1}
        for step in range(begin, spec.steps):
            batch = _tensors(self._task.batch(spec.seed, step))
            stage = self._task.stage(step)
            if spec.probed and step in looks:
                history["probes"].append(self._probe(step, spec.steps, batch))
            scale = self._scale()
            with self._scope():
                losses = self._step(stage, batch).numpy()
            self._note(history, step, scale, losses)
            advance(step + 1)
            if (step + 1) % every == 0 and step + 1 < spec.steps:
                checkpoints.save(spec.place, step + 1, self._state, history)
        return self._finished(spec, history)

    def nodes(self) -> tuple[int, int]:
        """Nodes of the training step in 16 bits, and all of them.

        Raises:
          ResultError: the policy converted nothing.
        """
        if self._policy is None:
            return 0, 0
        reports = [r for r in amp.reports() if "_train_" in r.function]
        most = max(reports, key=lambda r: r.nodes_total, default=None)
        if most is None or not most.nodes_low:
            raise ResultError(
                "nothing of the training step was converted",
                where=f"the setting with {self._policy}",
                allowed="a step with nodes in 16 bits",
                remedy="read amp.reports(); without it nothing is compared",
            )
        return most.nodes_low, most.nodes_total

    def _variables(self) -> list[tf.Variable]:
        """All that a step may change, each once, always in the same order."""
        task = self._task
        optimizers = {
            id(optimizer): optimizer
            for stage in task.stages
            for part in task.parts(stage)
            for optimizer, _ in part.updates
        }
        held = [*task.model.variables]
        held += [v for o in optimizers.values() for v in o.variables]
        held = [getattr(variable, "value", variable) for variable in held]
        held += [*task.carried, *(v for s in self._scalers for v in s.variables)]
        return list({id(variable): variable for variable in held}.values())

    def _begin(self, spec: Spec) -> tuple[int, dict[str, Any]]:
        for variable, value in zip(self._state, self._fresh, strict=True):
            variable.assign(value)
        for variable, value in zip(self._task.model.variables, spec.first, strict=True):
            variable.assign(value)
        fresh = {"losses": [], "scales": [], "skips": [], "skipped": 0, "probes": []}
        return checkpoints.restore(spec.place, self._state) or (0, fresh)

    def _scope(self) -> contextlib.AbstractContextManager[Any]:
        if self._policy is None:
            return contextlib.nullcontext()
        return amp.mixed_precision_scope(self._policy)

    def _train(self, stage: int, batch: Batch) -> tf.Tensor:
        losses = []
        for part in self._task.parts(stage):
            with tf.GradientTape() as tape:
                loss = part.loss(batch)
            gradients = iter(_gradient(tape, loss, part.variables))
            for optimizer, variables in part.updates:
                own = [next(gradients) for _ in variables]
                pairs = zip(own, variables, strict=True)
                optimizer.apply_gradients([p for p in pairs if p[0] is not None])
            losses.append(loss)
        return tf.stack(losses)

    def _differentiated(self, stage: int, batch: Batch) -> list[tf.Tensor]:
        """Gradients of all parts by variables and by layers' results; no update."""
        weights, results, names, layers = [], [], [], []
        for part in self._task.parts(stage):
            with tf.GradientTape() as tape, probe.recording() as found:
                loss = part.loss(batch)
            sources = [*part.variables, *(tensor for _, tensor in found)]
            gradients = _gradient(tape, loss, sources)
            count = len(part.variables)
            for variable, gradient in zip(part.variables, gradients, strict=False):
                if gradient is not None:
                    weights.append(probe.dense(gradient))
                    names.append(variable.path.rpartition("/")[0])
            for (name, _), gradient in zip(found, gradients[count:], strict=True):
                if gradient is not None:
                    results.append(probe.dense(gradient))
                    layers.append(name)
        self._names[stage] = names, layers
        return [*weights, *results]

    def _probe(self, step: int, steps: int, batch: Batch) -> dict[str, Any]:
        """What results hold of the gradients of one step; changes nothing."""
        stage = self._task.stage(step)
        held = [variable.numpy() for variable in self._state]
        scale = self._scale()
        with self._scope():
            found = [g.numpy() for g in self._gradients(stage, batch)]
        overflow = any(scaler.overflow.numpy().any() for scaler in self._scalers)
        self._put(held)
        told: dict[str, Any] = {"step": step, "scale": scale, "overflow": overflow}
        names, layers = self._names[stage]
        if self._policy is not None and not overflow:
            exact = [g.numpy() for g in self._gradients(stage, batch)]
            self._put(held)
            told["error"] = probe.error(found[: len(names)], exact[: len(names)])
        if step in (0, steps // 2):  # the others tell the error only
            told["weights"] = probe.histograms(names, found[: len(names)])
            told["results"] = probe.histograms(layers, found[len(names) :])
        return told

    def _put(self, values: Sequence[np.ndarray]) -> None:
        for variable, value in zip(self._state, values, strict=True):
            variable.assign(value)

    def _scale(self) -> float:
        """The loss scale of the next step: of several scalers, the smallest."""
        return min((float(s.scale.numpy()) for s in self._scalers), default=1.0)

    def _note(
        self, history: dict[str, Any], step: int, scale: float, losses: np.ndarray
    ) -> None:
        history["losses"].append([float(loss) for loss in losses])
        if not history["scales"] or history["scales"][-1][1] != scale:
            history["scales"].append([step, scale])
        skipped = sum(int(s.skipped_steps.numpy()) for s in self._scalers)
        if skipped > history["skipped"]:
            history["skips"].append(step)
            history["skipped"] = skipped

    def _finished(self, spec: Spec, history: dict[str, Any]) -> dict[str, Any]:
        variables = self._task.model.variables
        sound = all(np.isfinite(v.numpy()).all() for v in variables)
        judged = self._task.evaluate() if sound else float("nan")
        metric = mean(judged)
        diverged = not np.isfinite(metric)
        return {
            "metric": spec.worst if diverged else metric,
            "classes": judged if isinstance(judged, dict) else {},
            "diverged": diverged,
            "skipped": history["skipped"],
            "skips": history["skips"],
            "scales": history["scales"],
            "losses": curve(np.array(history["losses"])),
            "probes": history["probes"],
        }


def _gradient(tape: tf.GradientTape, loss: tf.Tensor, sources: list[Any]) -> list[Any]:
    # The one line where gradients are taken: training and probe share a loss scaler.
    return tape.gradient(loss, sources)


def _tensors(batch: Batch) -> Batch:
    return tf.nest.map_structure(tf.convert_to_tensor, batch)


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
