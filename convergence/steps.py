"""A training step in one setting: traced once, with all the state that it may change.

Used by `training`, which takes steps, by `observing`, which takes them back, by drills,
and by `replanning`, which takes none. Knows a setting only as a policy; no loop, no
files and no statistics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import amp
from convergence import probe, traced
from convergence.task import Batch, Part, Task
from convergence.tracks import Tracks

Scope = Callable[[], contextlib.AbstractContextManager[Any]]


class Step:
    """The step of a task in one setting.

    Args:
      task: what is trained.
      policy: of the setting; None for float32.
      planted: a scope of the steps in 16 bits, in which a negative control plants its
        fault (see `controls`).

    Attributes:
      policy: as given.
      tracks: follows the scalers of its gradient calls.
      state: every variable that it may change, always in the same order.
      fresh: their first values.
      earlier: functions that were rewritten before it was traced.
      traced: digests of its graphs, one a stage, with loss scaling and as they are
        before they are rewritten.
      names: by stage, the variables that have a gradient, as it returns them.
      layers: by stage, the layers of whose results `layer_gradients` takes gradients.
    """

    def __init__(
        self,
        task: Task,
        policy: amp.Policy | None,
        planted: Scope = contextlib.nullcontext,
    ) -> None:
        self.policy, self._task, self._planted = policy, task, planted
        self._run = tf.function(self._train, autograph=False)
        self._layer_run = tf.function(self._by_layers, autograph=False)
        self.names: dict[int, list[str]] = {}
        self.layers: dict[int, list[str]] = {}
        for part in self._parts():
            for optimizer, variables in part.updates:
                if not optimizer.built:
                    optimizer.build(variables)
        self.earlier = {report.function for report in amp.reports()}
        before = set(amp.loss_scaling.current().scalers)
        self.traced: list[str] = []
        for stage in task.stages:
            number = next(s for s in range(10**9) if task.stage(s) == stage)
            with self.scope():
                made_of = self._run.get_concrete_function(
                    stage, tensors(task.batch(0, number))
                )
            self.traced.append(traced.digest(made_of.graph))
        made = [s for s in amp.loss_scaling.current().scalers if s not in before]
        self.tracks = Tracks(task, made)
        self.state = self._variables(made)
        self.fresh = self.values()

    def __call__(self, stage: int, batch: Batch) -> tuple[np.ndarray, list[tf.Tensor]]:
        """Takes a step in its setting.

        Returns:
          The losses of its parts, and the gradients by which it changed the weights.
        """
        with self.scope():
            losses, gradients = self._run(stage, batch)
        return losses.numpy(), gradients

    def in_float32(self, stage: int, batch: Batch) -> list[tf.Tensor]:
        """Takes the same step in float32, whatever the setting; returns gradients."""
        gradients: list[tf.Tensor] = self._run(stage, batch)[1]
        return gradients

    def layer_gradients(self, stage: int, batch: Batch) -> list[tf.Tensor]:
        """Gradients in float32 by the results of layers; no update."""
        found: list[tf.Tensor] = self._layer_run(stage, batch)
        return found

    def values(self) -> list[np.ndarray]:
        """The values of `state`."""
        return [variable.numpy() for variable in self.state]

    def put(self, values: Sequence[np.ndarray]) -> None:
        """Gives `state` other values."""
        for variable, value in zip(self.state, values, strict=True):
            variable.assign(value)

    def trained(self, stage: int) -> dict[str, int]:
        """The weights that a stage trains, by path, and their places in `state`."""
        places = {id(variable): place for place, variable in enumerate(self.state)}
        return {
            variable.path: places[id(variable.value)]
            for part in self._task.parts(stage)
            for variable in part.variables
        }

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Where steps of the setting are traced and taken."""
        if self.policy is None:
            yield
            return
        with amp.mixed_precision_scope(self.policy), self._planted():
            yield

    def _parts(self) -> list[Part]:
        return [part for s in self._task.stages for part in self._task.parts(s)]

    def _variables(self, scalers: Sequence[Any]) -> list[tf.Variable]:
        optimizers = {id(o): o for part in self._parts() for o, _ in part.updates}
        held = [*self._task.model.variables]
        held += [v for o in optimizers.values() for v in o.variables]
        held = [getattr(variable, "value", variable) for variable in held]
        held += [*self._task.carried, *(v for s in scalers for v in s.variables)]
        return list({id(variable): variable for variable in held}.values())

    def _train(self, stage: int, batch: Batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        losses, found, names = [], [], []
        for part in self._task.parts(stage):
            with tf.GradientTape() as tape:
                loss = part.loss(batch)
            gradients = tape.gradient(loss, part.variables)
            left = iter(gradients)
            for optimizer, variables in part.updates:
                own = [next(left) for _ in variables]
                pairs = zip(own, variables, strict=True)
                optimizer.apply_gradients([p for p in pairs if p[0] is not None])
            losses.append(loss)
            for variable, gradient in zip(part.variables, gradients, strict=True):
                if gradient is not None:
                    found.append(probe.dense(gradient))
                    names.append(variable.path)
        self.names[stage] = names
        return tf.stack(losses), found

    def _by_layers(self, stage: int, batch: Batch) -> list[tf.Tensor]:
        found, names = [], []
        for part in self._task.parts(stage):
            with tf.GradientTape() as tape, probe.recording() as results:
                loss = part.loss(batch)
            gradients = tape.gradient(loss, [tensor for _, tensor in results])
            for (name, _), gradient in zip(results, gradients, strict=True):
                if gradient is not None:
                    found.append(probe.dense(gradient))
                    names.append(name)
        self.layers[stage] = names
        return found


def tensors(batch: Batch) -> Batch:
    """A batch of arrays as one of tensors."""
    return tf.nest.map_structure(tf.convert_to_tensor, batch)
