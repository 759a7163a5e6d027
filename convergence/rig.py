"""`Rig`: the step of one stage, taken at states that are put together for it.

Used by `drills`, which say what is wrong with what is taken; nothing is judged here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import amp
from convergence import dynamics, terms
from convergence.bits import same
from convergence.steps import Scope, Step
from convergence.task import Batch, Part, Task
from convergence.terms import WARM
from convergence.tracks import _scaler


@dataclasses.dataclass(frozen=True, slots=True)
class PartPlaces:
    """A loss of a step.

    Attributes:
      scaler: of its gradients.
      places: in `Step.state`, of its weights and of what their optimizers hold.
      weights: those of its weights.
      gradients: places among the gradients that a step returns.
      terms: of its variables, by which one gradient alone is made infinite.
      tables: those of them of which a gradient is of rows.
      optimizers: which update them.
    """

    scaler: Any
    places: frozenset[int]
    weights: frozenset[int]
    gradients: tuple[int, ...]
    terms: tuple[int, ...]
    tables: tuple[int, ...]
    optimizers: tuple[keras.Optimizer, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Scaled:
    """What a part's scaler holds: the scale, good steps in a row, updates skipped."""

    scale: float
    good: int
    skipped: int


@dataclasses.dataclass(frozen=True, slots=True)
class TakenStep:
    """A step that was taken.

    Attributes:
      losses: of the parts.
      gradients: that it returned.
      after: values of the state after it.
      moved: places in the state of what it changed.
      before, scaled: of each part, what its scaler held before and after it.
    """

    losses: np.ndarray
    gradients: list[np.ndarray]
    after: list[np.ndarray]
    moved: frozenset[int]
    before: tuple[Scaled, ...]
    scaled: tuple[Scaled, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A step that was traced, and the scalers of its gradient calls."""

    step: Step
    scalers: Sequence[Any]


def made(task: Task, policy: amp.Policy, planted: Scope) -> Made:
    """The step of a task with terms, in a setting; arguments as of `Step`."""
    known = set(amp.loss_scaling.current().scalers)
    step = Step(terms.added(task), policy, planted)
    return Made(step, [s for s in amp.loss_scaling.current().scalers if s not in known])


class Rig:
    """The step of one stage, and the state that it is taken at.

    Args:
      made: the step.
      task: that it trains.
      stage: of the task.
      rule: how scales move.
      seed: of the batches.

    Attributes:
      step, stage, rule: as given.
      parts: the losses of the stage.
      scaler_places: places in `Step.state` of what scalers hold.
      statistics: those of what the model has, is not trained, and may move with a step.
      term_count: how many variables the parts train.
      held: the state that steps are taken from.
      batches: of its first steps, and further ones.
      batch: what steps are taken with.
      exponent: of the scale that they have, a power of two, unless another is given.
      losses: of the steps so far, a value for each part.
      usual: the step from the state that is held, once it was taken.
    """

    usual: TakenStep

    def __init__(
        self, made: Made, task: Task, stage: int, rule: dynamics.Rule, seed: int
    ) -> None:
        self.step, self.stage, self.rule = made.step, stage, rule
        self.parts: list[PartPlaces] = []
        for part in task.parts(stage):
            self.parts.append(self._of(part, made.scalers))
        scaled = {id(v) for s in made.scalers for v in s.variables}
        state = self.step.state
        self.scaler_places = frozenset(
            p for p, v in enumerate(state) if id(v) in scaled
        )
        model = {id(v.value) for v in task.model.variables}
        carried = set(map(id, task.carried))
        trained = {
            id(v.value) for s in task.stages for p in task.parts(s) for v in p.variables
        }
        self.statistics = frozenset(
            p for p, v in enumerate(state) if id(v) in model - trained - carried
        )
        self.term_count = sum(len(part.variables) for part in task.parts(stage))
        self.held, self.batches = self.step.fresh, terms.batches(task, stage, seed)
        self.batch, self.exponent = self.batches[0], rule.first
        self.losses: list[np.ndarray] = []

    def _of(self, part: Part, scalers: Sequence[Any]) -> PartPlaces:
        at = _scaler(scalers, part)
        places = {id(variable): at for at, variable in enumerate(self.step.state)}
        weights = [v for _, some in part.updates for v in some]
        held = [v for optimizer, _ in part.updates for v in optimizer.variables]
        begin = sum(len(p.weights) for p in self.parts)
        return PartPlaces(
            scaler=None if at is None else scalers[at],
            places=frozenset(places[id(v.value)] for v in (*weights, *held)),
            weights=frozenset(places[id(v.value)] for v in weights),
            gradients=self._gradients(part),
            terms=tuple(range(begin, begin + len(weights))),
            tables=tuple(
                at for at, v in enumerate(part.variables, begin) if terms.is_table(v)
            ),
            optimizers=tuple(optimizer for optimizer, _ in part.updates),
        )

    def _gradients(self, part: Part) -> tuple[int, ...]:
        """Places of a part's gradients, which follow those of the parts before it.

        Networks of two parts may have variables of the same paths; one that has no
        gradient is left out.
        """
        names, found = self.step.names[self.stage], list[int]()
        at = sum(len(before.gradients) for before in self.parts)
        for variable in part.variables:
            if names[at : at + 1] == [variable.path]:
                found.append(at)
                at += 1
        return tuple(found)

    def follow(self, rig: Rig) -> None:
        """Takes over the state, the batch and the scale of a rig of the same task."""
        rig.step.put(rig.held)
        self.held, self.batch = self.step.values(), rig.batch
        self.exponent = rig.exponent

    def prepare(self) -> bool:
        """Takes the first steps, and finds a scale that overflows nothing after them.

        Returns whether there is one; then the usual step is taken.

        The scale is the largest of which the double overflows nothing either. A
        constant one is as it is: then it is the batch that is chosen.
        """
        self.step.put(self.step.fresh)
        for batch in self.batches[:WARM]:
            if not self._fit(batch):
                return False
            self.set_scales({})
            self.step(self.stage, batch)
        self.held = self.step.values()
        for batch in self.batches[WARM:]:
            if self._fit(batch):
                self.usual = self.take()
                return True
        return False

    def _fit(self, batch: Batch) -> bool:
        """Finds the scale for a batch at the state that there is, and keeps both."""
        self.held, self.batch = self.step.values(), batch
        if not self.rule.interval:
            return self._would_move({})
        for exponent in range(self.rule.first, dynamics.LOWEST, -1):
            self.exponent = exponent
            if self._would_move(
                dict.fromkeys(range(len(self.parts)), 2.0 ** (exponent + 1))
            ):
                return True
        return False

    def _would_move(self, scales: Mapping[int, float]) -> bool:
        """Whether a step moves weights of each part, by finite gradients.

        It is taken back.
        """
        taken = self.take(scales)
        self.step.put(self.held)
        finite = all(np.isfinite(gradient).all() for gradient in taken.gradients)
        return finite and all(part.weights & taken.moved for part in self.parts)

    def hold(self) -> None:
        """Has further steps taken from the state as it is."""
        self.held = self.step.values()

    def factors(self, term: int, value: float, where: int = 0) -> np.ndarray:
        """Of all terms none but one, at one of `terms.PLACES`."""
        factors = np.zeros((self.term_count, terms.PLACES), np.float32)
        factors[term, where] = value
        return factors

    def put(self, *, scalers: bool) -> None:
        """Puts back what scalers hold, or all else, as it is held."""
        for place, variable in enumerate(self.step.state):
            if (place in self.scaler_places) is scalers:
                variable.assign(self.held[place])

    def counts(self) -> list[list[int]]:
        """The optimizers' own counts of updates, by part."""
        return self.step.tracks.before(self.stage)[1]

    def set_scales(self, scales: Mapping[int, float], good: int = 0) -> None:
        """Sets the parts' scales; a constant one has none to be set."""
        if self.rule.interval:
            for at, part in enumerate(self.parts):
                part.scaler.scale.assign(scales.get(at, 2.0**self.exponent))
                part.scaler.good_steps.assign(good)

    def take(
        self,
        scales: Mapping[int, float] = MappingProxyType({}),
        good: int = 0,
        factors: np.ndarray | None = None,
    ) -> TakenStep:
        """Takes the step from the state that is held."""
        self.step.put(self.held)
        self.set_scales(scales, good)
        batch = self.batch if factors is None else self.with_factors(factors)
        return self.take_from(self.step.values(), batch)

    @property
    def examples(self) -> int:
        """How many the batch has."""
        return int(tf.nest.flatten(self.batch)[0].shape[0])

    def repeated(self, number: int) -> Batch:
        """The batch with one of its examples in the place of all."""
        count = self.examples

        def again(each: tf.Tensor) -> tf.Tensor:
            whole = each.shape.rank and each.shape[0] == count
            return tf.repeat(each[number, None], count, axis=0) if whole else each

        return (*tf.nest.map_structure(again, self.batch[:-1]), self.batch[-1])

    def with_factors(self, factors: np.ndarray) -> Batch:
        """The batch, with other factors of terms."""
        return (*self.batch[:-1], tf.constant(factors))

    def take_from(self, state: Sequence[np.ndarray], batch: Batch) -> TakenStep:
        """Takes the step from another state."""
        self.step.put(state)
        before = self.scaled()
        losses, found = self.step(self.stage, batch)
        self.losses.append(losses)
        after = self.step.values()
        return TakenStep(
            losses=losses,
            gradients=[gradient.numpy() for gradient in found],
            after=after,
            moved=frozenset(
                place
                for place, value in enumerate(state)
                if not same(value, after[place])
            ),
            before=before,
            scaled=self.scaled(),
        )

    def scaled(self) -> tuple[Scaled, ...]:
        return tuple(
            Scaled(
                scale=float(part.scaler.scale.numpy()),
                good=int(part.scaler.good_steps.numpy()),
                skipped=int(part.scaler.skipped_steps.numpy()),
            )
            for part in self.parts
        )

    @property
    def dtype(self) -> str:
        assert self.step.policy is not None
        return self.step.policy.dtype

    def name(self, place: int) -> str:
        return str(self.step.state[place].name)
