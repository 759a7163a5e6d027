"""Drills: single steps, apart from training, whose outcome is known to the last bit.

Training shows what a scaler does where it comes to it. A family whose gradients never
overflow never shows that an overflow is skipped, and what 16 bits cost an optimizer's
state may be less than any margin. So each setting with a loss scale takes steps at
states that are put together for them::

    any step                  some bit of a gradient is another than in float32
    a NaN in a weight         nothing that the part's optimizers hold moves; a dynamic
                              scale halves, and counts anew
    one scale is far too      the same of its part, while the other parts' weights move
    large
    the last step of an       the scale doubles, and nothing else differs from the step
    interval, the last but    before which it does not
    one
    1.5 times the scale       gradients differ in some bit, for 1.5 is no power of two,
                              and by no more than rounding may (`gradient_rule`); they,
                              the weights and what optimizers hold are float32

A tensor *is float32* if one of its values is none that 16 bits hold. (After a scale
that is a power of two a gradient need not be, nor a momentum that is the last one.) No
results are judged here, and no run is changed: a drill has a step of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import amp
from convergence import dynamics, gradient_rule, settings
from convergence.steps import Scope, Step, tensors
from convergence.task import Part, Task
from convergence.tracks import _scaler

FIRST = 8  # exponent of the scale at which steps are taken, or less where it overflows
# A scale with which gradients overflow: in float16 where they are over 2^-84; bfloat16
# has float32's range, and takes more.
FAR = {"float16": 2.0**100, "bfloat16": math.inf}
WARM = 3  # steps before the first, so that optimizers hold something
# Fewer values may all be held by 16 bits as it happens. One is with probability 2^-13
# where the 13 bits that float16 lacks are random, but zeros and ones are not.
FEW = 16


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A loss of a step.

    Attributes:
      scaler: of its gradients.
      places: in `Step.state`, of its weights and of what their optimizers hold.
      weights: those of its weights.
      gradients: places among the gradients that a step returns.
    """

    scaler: Any
    places: frozenset[int]
    weights: tuple[int, ...]
    gradients: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """A step that was taken.

    Attributes:
      gradients: that it returned.
      after: values of the state after it.
      moved: places in the state of what it changed.
      scales: of each part, its scale and count of good steps after it.
    """

    gradients: list[np.ndarray]
    after: list[np.ndarray]
    moved: frozenset[int]
    scales: tuple[tuple[float, int], ...]


def faults(
    task: Task, policy: amp.Policy, planted: Scope, rule: dynamics.Rule, seed: int
) -> list[str]:
    """What drills find of a setting; empty if nothing is wrong.

    Args:
      task: made anew, with the first weights of a seed.
      policy: with a loss scale.
      planted: see `Step`.
      rule: how its scale moves.
      seed: of the batches.
    """
    known = set(amp.loss_scaling.current().scalers)
    step = Step(task, policy, planted)
    scalers = [s for s in amp.loss_scaling.current().scalers if s not in known]
    found = []
    for stage in task.stages:
        where = f"stage {stage}: " if len(task.stages) > 1 else ""
        drill = _Drill(step, task, stage, scalers, rule, seed)
        found += [where + text for text in drill.faults()]
    return found


class _Drill:
    """The drills of one stage."""

    def __init__(
        self,
        step: Step,
        task: Task,
        stage: int,
        scalers: Sequence[Any],
        rule: dynamics.Rule,
        seed: int,
    ) -> None:
        self._step, self._stage, self._rule = step, stage, rule
        parts = task.parts(stage)
        self._parts = [self._of(part, scalers) for part in parts]
        scaled = {id(v) for s in scalers for v in s.variables}
        self._own = frozenset(p for p, v in enumerate(step.state) if id(v) in scaled)
        first = next(n for n in range(10**9) if task.stage(n) == stage)
        batches = [tensors(task.batch(seed, first + n)) for n in range(WARM + 1)]
        self._batch = batches[-1]
        step.put(step.fresh)
        self._exponent = self._fitting(batches[0])
        for batch in batches[:-1]:
            self._set({})
            step(stage, batch)
        self._held = step.values()

    def _of(self, part: Part, scalers: Sequence[Any]) -> _Part:
        at = _scaler(scalers, part)
        places = {id(variable): at for at, variable in enumerate(self._step.state)}
        weights = [v for _, some in part.updates for v in some]
        held = [v for optimizer, _ in part.updates for v in optimizer.variables]
        paths = {variable.path for variable in part.variables}
        names = self._step.names[self._stage]
        return _Part(
            scaler=None if at is None else scalers[at],
            places=frozenset(places[id(v.value)] for v in (*weights, *held)),
            weights=tuple(places[id(v.value)] for v in weights),
            gradients=tuple(i for i, name in enumerate(names) if name in paths),
        )

    def faults(self) -> Iterator[str]:
        """What is wrong, in words."""
        if any(part.scaler is None for part in self._parts):
            yield "a gradient has no loss scale"
            return
        usual = self._take()
        for part, (scale, _) in zip(self._parts, usual.scales, strict=True):
            if not part.places & usual.moved:
                yield f"a step at the scale {_power(scale)} moves no weight"
        yield from self._in_float32(usual)
        yield from self._poisoned()
        if self._rule.interval:
            yield from self._grown(usual)
            yield from self._rescaled(usual)
            yield from self._overflown()

    def _in_float32(self, usual: _Seen) -> Iterator[str]:
        """Of the same step in float32: 16 bits are to make a difference."""
        self._step.put(self._held)
        exact = self._step.in_float32(self._stage, self._batch)
        if all(map(_same, usual.gradients, [each.numpy() for each in exact])):
            yield "16 bits change no bit of a gradient"

    def _poisoned(self) -> Iterator[str]:
        """Of a NaN in the weights of each part: what should have been left out."""
        for at, part in enumerate(self._parts):
            place = max(part.weights, key=lambda p: self._held[p].size)
            value = np.full_like(self._held[place], math.nan)
            seen = self._take(put={place: value})
            yield from self._left_out(at, seen, 2.0**self._exponent, "a NaN")

    def _overflown(self) -> Iterator[str]:
        """Of an overflow of each part alone."""
        far = FAR[self._step.policy.dtype]
        for at, part in enumerate(self._parts):
            seen = self._take(scales={at: far})
            yield from self._left_out(at, seen, far, f"the scale {_power(far)}")
            for other in self._parts:
                apart = other.scaler is not part.scaler
                if apart and not other.places & seen.moved:
                    yield "an overflow of one loss holds back the update by another"

    def _left_out(self, at: int, seen: _Seen, scale: float, why: str) -> Iterator[str]:
        moved = self._parts[at].places & seen.moved
        if moved:
            names = ", ".join(map(self._name, sorted(moved)[:3]))
            more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
            yield f"after {why} moved {names}{more}"
        yield from self._scale_is(at, seen, self._after_overflow(scale), f"after {why}")

    def _after_overflow(self, scale: float) -> tuple[float, int]:
        return (scale / 2, 0) if self._rule.interval else (2.0**self._rule.first, 0)

    def _grown(self, usual: _Seen) -> Iterator[str]:
        """Of the end of an interval."""
        interval, scale = self._rule.interval, 2.0**self._exponent
        last = self._take(good=interval - 1)
        for at, _ in enumerate(self._parts):
            told = f"after {interval} good steps"
            yield from self._scale_is(at, last, (scale * 2, 0), told)
        if interval > 1:
            early = self._take(good=interval - 2)
            for at, _ in enumerate(self._parts):
                told = f"after {interval - 1} good steps"
                yield from self._scale_is(at, early, (scale, interval - 1), told)
        differ = [
            self._name(place)
            for place in range(len(self._held))
            if place not in self._own
            and not _same(last.after[place], usual.after[place])
        ]
        if differ:
            yield f"where the scale grows, {differ[0]} moves otherwise"

    def _rescaled(self, usual: _Seen) -> Iterator[str]:
        """Of a scale that is no power of two."""
        policy, scale = self._step.policy, 1.5 * 2.0**self._exponent
        seen = self._take(scales=dict.fromkeys(range(len(self._parts)), scale))
        for part in self._parts:
            pairs = [(seen.gradients[i], usual.gradients[i]) for i in part.gradients]
            if all(_same(ours, other) for ours, other in pairs):
                yield "one and a half times the scale changes no bit of a gradient"
            off, size = (
                math.sqrt(sum(float(np.sum(np.square(x))) for x in values))
                for values in ([a - b for a, b in pairs], [b for _, b in pairs])
            )
            if not off <= gradient_rule.FLOOR * settings.UNIT[policy.dtype] * size:
                told = f"changes gradients by {off / size:.2g} of their size"
                yield f"one and a half times the scale {told}"
            for i, (ours, _) in zip(part.gradients, pairs, strict=True):
                if _in_16_bits(ours):
                    name = self._step.names[self._stage][i]
                    yield f"the unscaled gradient of {name} is held in 16 bits"
            for place in sorted(part.places & seen.moved):
                if _in_16_bits(seen.after[place]):
                    yield f"{self._name(place)} is held in 16 bits"

    def _scale_is(
        self, at: int, seen: _Seen, due: tuple[float, int], when: str
    ) -> Iterator[str]:
        scale, good = seen.scales[at]
        if scale != due[0]:
            yield f"{when} the scale is {_power(scale)}, where {_power(due[0])} was due"
        elif self._rule.interval and good != due[1]:
            yield f"{when} {good} good steps are counted, where {due[1]} were due"

    def _fitting(self, batch: Any) -> int:
        """The largest exponent, up to `FIRST`, of a scale that overflows nothing."""
        fresh = self._step.values()
        for self._exponent in range(FIRST, dynamics.LOWEST, -1):
            self._set({})
            self._step(self._stage, batch)
            places = range(len(fresh))
            moved = {
                p for p in places if not _same(fresh[p], self._step.state[p].numpy())
            }
            self._step.put(fresh)
            if all(part.places & moved for part in self._parts):
                break
        return self._exponent

    def _set(self, scales: Mapping[int, float], good: int = 0) -> None:
        """Sets the parts' scales; a constant one has none to be set."""
        if self._rule.interval:
            for at, part in enumerate(self._parts):
                part.scaler.scale.assign(scales.get(at, 2.0**self._exponent))
                part.scaler.good_steps.assign(good)

    def _take(
        self,
        scales: Mapping[int, float] = {},
        good: int = 0,
        put: Mapping[int, np.ndarray] = {},
    ) -> _Seen:
        """Takes the step from the state that is held."""
        self._step.put([put.get(at, value) for at, value in enumerate(self._held)])
        self._set(scales, good)
        before = self._step.values()
        found = self._step(self._stage, self._batch)[1]
        after = self._step.values()
        places = range(len(before))
        state = [
            (float(p.scaler.scale.numpy()), int(p.scaler.good_steps.numpy()))
            for p in self._parts
        ]
        return _Seen(
            gradients=[gradient.numpy() for gradient in found],
            after=after,
            moved=frozenset(p for p in places if not _same(before[p], after[p])),
            scales=tuple(state),
        )

    def _name(self, place: int) -> str:
        return str(self._step.state[place].name)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays hold the same values; NaNs are the same."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _in_16_bits(values: np.ndarray) -> bool:
    """Whether float16 or bfloat16 holds all of many float32 values that are not 0."""
    if values.dtype != np.float32:
        return False
    some = values[(values != 0) & np.isfinite(values)]
    if some.size < FEW:
        return False
    with np.errstate(over="ignore"):
        half = some.astype(np.float16).astype(np.float32)
    return bool(np.all(half == some)) or not np.any(some.view(np.uint32) & 0xFFFF)


def _power(scale: float) -> str:
    exact = scale > 0 and math.log2(scale).is_integer()
    return f"2^{math.log2(scale):g}" if exact else f"{scale:g}"
