"""Drills: single steps, apart from training, whose outcome is known to the last bit.

Training shows what a scaler does where it comes to it. A family whose gradients never
overflow never shows that an overflow is skipped, and what 16 bits cost an optimizer's
state may be less than any margin. So each setting with a loss scale takes steps at
states that are put together for them::

    any step                  some bit of a gradient is another than in float32
    one gradient of a part    nothing that the part's optimizers hold moves, the program
    is infinite, or NaN       gets zeros, and each update that is skipped is counted; a
                              dynamic scale halves and counts anew; the next step moves
                              weights
    one scale is far too      the same of its part, while the other parts' weights move
    large
    the last step of an       the scale doubles, or stays at its largest, and nothing
    interval, the last but    else differs from the step before which it does not
    one
    1.5 times the scale       gradients differ in some bit, for 1.5 is no power of two,
                              and by no more than rounding may (`gradient_rule`); they,
                              the weights and what optimizers hold are float32. (Of a
                              constant scale a step is traced that has this one.)

A tensor *is float32* if one of its values is none that 16 bits hold. (After a scale
that is a power of two a gradient need not be, nor a momentum that is the last one.) No
results are judged here, and no run is changed: a drill has a step of its own, whose
losses have a term more, so that one gradient alone can be made infinite.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import amp
from convergence import audit, drilled, dynamics, gradient_rule, settings
from convergence.steps import Scope, Step, tensors
from convergence.task import Batch, Part, Task
from convergence.tracks import _scaler

# A scale with which gradients overflow: in float16 where they are over 2^-84; bfloat16
# has float32's range, and takes more.
FAR = {"float16": 2.0**100, "bfloat16": math.inf}
WARM = 3  # steps before the first, so that optimizers hold something
# Fewer different values may all be held by 16 bits as it happens: of those that 1.5
# divides, one in three has a significand that is a multiple of 3.
FEW = 16
SOME = 6  # of a part's variables, whose gradients are made infinite
TRIES = 8  # batches at which a constant scale may overflow


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A loss of a step.

    Attributes:
      scaler: of its gradients.
      places: in `Step.state`, of its weights and of what their optimizers hold.
      weights: those of its weights.
      gradients: places among the gradients that a step returns.
      terms: of its variables, by which one gradient alone is made infinite.
      updates: how many optimizers update them.
    """

    scaler: Any
    places: frozenset[int]
    weights: frozenset[int]
    gradients: tuple[int, ...]
    terms: tuple[int, ...]
    updates: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Scaled:
    """What a part's scaler holds: the scale, good steps in a row, updates skipped."""

    scale: float
    good: int
    skipped: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """A step that was taken.

    Attributes:
      gradients: that it returned.
      after: values of the state after it.
      moved: places in the state of what it changed.
      before, scaled: of each part, what its scaler held before and after it.
    """

    gradients: list[np.ndarray]
    after: list[np.ndarray]
    moved: frozenset[int]
    before: tuple[_Scaled, ...]
    scaled: tuple[_Scaled, ...]


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
    found: list[str] = []
    try:
        step = Step(_with_terms(task), policy, planted)
        scalers = [s for s in amp.loss_scaling.current().scalers if s not in known]
        rescaled = None
        if not rule.interval:
            scale = amp.loss_scaling.ConstantLossScale(1.5 * 2.0**rule.first)
            other = dataclasses.replace(policy, loss_scale=scale)
            rescaled = Step(_with_terms(task), other, planted)
        for stage in task.stages:
            where = f"stage {stage}: " if len(task.stages) > 1 else ""
            drill = _Drill(step, task, stage, scalers, rule, seed, rescaled)
            found.extend(where + text for text in drill.faults())
    except tf.errors.OpError as e:
        found.append(f"a step raises {type(e).__name__}: {e.message.splitlines()[0]}")
    return found


def code(task: str) -> str:
    """The digest of the code behind drills of a family's task."""
    return audit.of([audit.code(task), drilled.by()])


def _with_terms(task: Task) -> Task:
    """The task with a term for each variable that a part trains.

    The term is 0, and its gradient by the variable is the factor at the variable's
    place in the last array of a batch, in each value or, where the gradient is of
    slices, in one row twice.
    """

    def parts(stage: int) -> list[Part]:
        found, begin = [], 0
        for part in task.parts(stage):
            found.append(_with_term(part, begin))
            begin += len(part.variables)
        return found

    def batch(seed: int, number: int) -> Batch:
        count = sum(len(p.variables) for p in task.parts(task.stage(number)))
        return (*task.batch(seed, number), np.zeros(count, np.float32))

    return dataclasses.replace(task, parts=parts, batch=batch)


def _with_term(part: Part, begin: int) -> Part:
    def loss(batch: Batch) -> tf.Tensor:
        found, factors = part.loss(batch[:-1]), batch[-1]
        for place, variable in enumerate(part.variables, begin):
            value = _value(variable)
            term = tf.reduce_sum(value - tf.stop_gradient(value))
            found += factors[place] * term
        return found

    return dataclasses.replace(part, loss=loss)


def _value(variable: keras.Variable) -> tf.Tensor:
    """What the term reads: of a table of embeddings two equal rows, else all."""
    if variable.path.endswith("/embeddings"):
        return tf.gather(variable.value, [0, 0])
    return tf.convert_to_tensor(variable.value)


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
        rescaled: Step | None,
    ) -> None:
        self._step, self._stage, self._rule = step, stage, rule
        self._with_another_scale = rescaled
        self._parts: list[_Part] = []
        for part in task.parts(stage):
            self._parts.append(self._of(part, scalers))
        scaled = {id(v) for s in scalers for v in s.variables}
        self._own = frozenset(p for p, v in enumerate(step.state) if id(v) in scaled)
        self._terms = sum(len(part.variables) for part in task.parts(stage))
        self._batches = _batches(task, stage, seed)
        self._exponent = rule.first

    def _of(self, part: Part, scalers: Sequence[Any]) -> _Part:
        at = _scaler(scalers, part)
        places = {id(variable): at for at, variable in enumerate(self._step.state)}
        weights = [v for _, some in part.updates for v in some]
        held = [v for optimizer, _ in part.updates for v in optimizer.variables]
        begin = sum(len(p.weights) for p in self._parts)
        some = np.linspace(0, len(weights) - 1, SOME).round().astype(int)
        return _Part(
            scaler=None if at is None else scalers[at],
            places=frozenset(places[id(v.value)] for v in (*weights, *held)),
            weights=frozenset(places[id(v.value)] for v in weights),
            gradients=self._gradients(part),
            terms=tuple(dict.fromkeys(begin + int(i) for i in some)),
            updates=len(part.updates),
        )

    def _gradients(self, part: Part) -> tuple[int, ...]:
        """Places of a part's gradients, which follow those of the parts before it.

        Networks of two parts may have variables of the same paths; one that has no
        gradient is left out.
        """
        names, found = self._step.names[self._stage], list[int]()
        at = sum(len(before.gradients) for before in self._parts)
        for variable in part.variables:
            if names[at : at + 1] == [variable.path]:
                found.append(at)
                at += 1
        return tuple(found)

    def faults(self) -> Iterator[str]:
        """What is wrong, in words."""
        if any(part.scaler is None for part in self._parts):
            yield "a gradient has no loss scale"
            return
        if not self._prepared():
            yield "with no scale does a step move the weights of each loss"
            return
        usual = self._take()
        yield from self._in_float32(usual)
        yield from self._not_finite()
        yield from self._rescaled(usual)
        if self._rule.interval:
            yield from self._grown(usual)
            yield from self._overflown()

    def _prepared(self) -> bool:
        """Takes the first steps, and finds a scale that overflows nothing after them.

        The scale is the largest of which the double overflows nothing either. A
        constant one is as it is: then it is the batch that is chosen.
        """
        self._step.put(self._step.fresh)
        for batch in self._batches[:WARM]:
            if not self._fits(batch):
                return False
            self._set({})
            self._step(self._stage, batch)
        self._held = self._step.values()
        return any(map(self._fits, self._batches[WARM:]))

    def _fits(self, batch: Batch) -> bool:
        """Finds the scale for a batch at the state that there is, and keeps both."""
        self._held, self._batch = self._step.values(), batch
        if not self._rule.interval:
            return self._moves({})
        for exponent in range(self._rule.first, dynamics.LOWEST, -1):
            self._exponent = exponent
            if self._moves(
                dict.fromkeys(range(len(self._parts)), 2.0 ** (exponent + 1))
            ):
                return True
        return False

    def _moves(self, scales: Mapping[int, float]) -> bool:
        """Whether a step moves weights of each part, by finite gradients.

        It is taken back.
        """
        seen = self._take(scales)
        self._step.put(self._held)
        finite = all(np.isfinite(gradient).all() for gradient in seen.gradients)
        return finite and all(part.weights & seen.moved for part in self._parts)

    def _in_float32(self, usual: _Seen) -> Iterator[str]:
        """Of the same step in float32: 16 bits are to make a difference."""
        self._step.put(self._held)
        exact = self._step.in_float32(self._stage, self._batch)
        for part in self._parts:
            pairs = [(usual.gradients[i], exact[i].numpy()) for i in part.gradients]
            if all(_same(ours, other) for ours, other in pairs):
                yield "16 bits change no bit of a gradient"

    def _not_finite(self) -> Iterator[str]:
        """Of one gradient that is not finite: what should have been left out."""
        good = self._rule.interval // 2
        for at, part in enumerate(self._parts):
            for number, term in enumerate(part.terms):
                for value in (math.inf, math.nan):
                    factors = np.zeros(self._terms, np.float32)
                    factors[term] = value
                    last = number == 0 and value == math.inf
                    told = [*self._left_out(at, factors, good, again=last)]
                    if told:  # the other gradients would tell the same
                        yield from told
                        return

    def _left_out(
        self, at: int, factors: np.ndarray, good: int, *, again: bool = False
    ) -> Iterator[str]:
        """Of a step in which a gradient of one part is not finite."""
        seen = self._take({}, good, factors)
        where = f"one gradient that is {np.sum(factors[factors != 0]):g}"
        yield from self._skipped(at, seen, f"after {where}")
        if again:
            yield from self._next_moves(at, seen)

    def _skipped(self, at: int, seen: _Seen, when: str) -> Iterator[str]:
        """Of a step that an update had to be left out of."""
        part, was, now = self._parts[at], seen.before[at], seen.scaled[at]
        if moved := part.places & seen.moved:
            names = ", ".join(map(self._name, sorted(moved)[:3]))
            more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
            yield f"{when} moved {names}{more}"
        if any(np.any(seen.gradients[i]) for i in part.gradients):
            yield f"{when} gradients are not 0"
        if now.skipped != was.skipped + part.updates:
            told = f"{now.skipped - was.skipped}, where {part.updates} were due"
            yield f"{when} the count of skipped updates grows by {told}"
        due = max(was.scale / 2, 2.0**dynamics.LOWEST)
        yield from self._scale_is(
            at, seen, due if self._rule.interval else was.scale, 0, when
        )

    def _next_moves(self, at: int, seen: _Seen) -> Iterator[str]:
        """Of the step after it, at the weights that there were, with their scalers."""
        state = [
            seen.after[place] if place in self._own else value
            for place, value in enumerate(self._held)
        ]
        after, part = self._taken(state, self._batch), self._parts[at]
        when = "in the step after a skipped one"
        if not part.weights & after.moved:
            yield f"{when} no weight moves"
        scale, at_once = seen.scaled[at].scale, self._rule.interval == 1
        due = (scale * 2, 0) if at_once else (scale, 1)
        yield from self._scale_is(at, after, *due, when)

    def _overflown(self) -> Iterator[str]:
        """Of an overflow of each part alone."""
        far, good = FAR[self._dtype], self._rule.interval // 2
        for at, part in enumerate(self._parts):
            seen = self._take({at: far}, good)
            yield from self._skipped(at, seen, f"after the scale {_power(far)}")
            for other in self._parts:
                apart = other.scaler is not part.scaler
                if apart and not other.weights & seen.moved:
                    yield "an overflow of one loss holds back the update by another"

    def _grown(self, usual: _Seen) -> Iterator[str]:
        """Of the end of an interval."""
        interval, scale = self._rule.interval, 2.0**self._exponent
        last, parts = self._take(good=interval - 1), range(len(self._parts))
        for at in parts:
            when = f"after {interval} good steps"
            yield from self._scale_is(at, last, scale * 2, 0, when)
        if interval > 1:
            early = self._take(good=interval - 2)
            for at in parts:
                when = f"after {interval - 1} good steps"
                yield from self._scale_is(at, early, scale, interval - 1, when)
        differ = [
            self._name(place)
            for place in range(len(self._held))
            if place not in self._own
            and not _same(last.after[place], usual.after[place])
        ]
        if differ:
            yield f"where the scale grows, {differ[0]} moves otherwise"
        most = 2.0**dynamics.HIGHEST
        top = self._take(dict.fromkeys(parts, most), interval - 1)
        for at, part in enumerate(self._parts):
            due = most if part.weights & top.moved else most / 2
            yield from self._scale_is(at, top, due, 0, "at the largest scale")

    def _rescaled(self, usual: _Seen) -> Iterator[str]:
        """Of a scale that is no power of two."""
        scale = 1.5 * 2.0**self._exponent
        scales = dict.fromkeys(range(len(self._parts)), scale)
        seen = self._take(scales, step=self._with_another_scale)
        most = gradient_rule.FLOOR * settings.UNIT[self._dtype]
        for part in self._parts:
            pairs = [(seen.gradients[i], usual.gradients[i]) for i in part.gradients]
            if all(_same(ours, other) for ours, other in pairs):
                yield "one and a half times the scale changes no bit of a gradient"
            off = _norm([np.subtract(a, b, dtype=np.float64) for a, b in pairs])
            size = _norm([b for _, b in pairs])
            if not off <= most * size:
                told = f"changes gradients by {off:.2g}, which are {size:.2g}"
                yield f"one and a half times the scale {told}"
            for i, (ours, _) in zip(part.gradients, pairs, strict=True):
                if _in_16_bits(ours):
                    name = self._step.names[self._stage][i]
                    yield f"the unscaled gradient of {name} is held in 16 bits"
            for place in sorted(part.places & seen.moved):
                if _in_16_bits(seen.after[place]):
                    yield f"{self._name(place)} is held in 16 bits"

    def _scale_is(
        self, at: int, seen: _Seen, scale: float, good: int, when: str
    ) -> Iterator[str]:
        now = seen.scaled[at]
        if now.scale != scale:
            told = f"{_power(now.scale)}, where {_power(scale)} was due"
            yield f"{when} the scale is {told}"
        elif self._rule.interval and now.good != good:
            yield f"{when} {now.good} good steps are counted, where {good} were due"

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
        factors: np.ndarray | None = None,
        step: Step | None = None,
    ) -> _Seen:
        """Takes the step from the state that is held, or another of the same task."""
        self._step.put(self._held)
        self._set(scales, good)
        batch = self._batch
        if factors is not None:
            batch = (*batch[:-1], tf.constant(factors))
        return self._taken(self._step.values(), batch, step)

    def _taken(
        self, state: Sequence[np.ndarray], batch: Batch, step: Step | None = None
    ) -> _Seen:
        self._step.put(state)
        before = self._scaled()
        found = (step or self._step)(self._stage, batch)[1]
        after = self._step.values()
        return _Seen(
            gradients=[gradient.numpy() for gradient in found],
            after=after,
            moved=frozenset(
                place
                for place, value in enumerate(state)
                if not _same(value, after[place])
            ),
            before=before,
            scaled=self._scaled(),
        )

    def _scaled(self) -> tuple[_Scaled, ...]:
        return tuple(
            _Scaled(
                scale=float(part.scaler.scale.numpy()),
                good=int(part.scaler.good_steps.numpy()),
                skipped=int(part.scaler.skipped_steps.numpy()),
            )
            for part in self._parts
        )

    @property
    def _dtype(self) -> str:
        assert self._step.policy is not None
        return self._step.policy.dtype

    def _name(self, place: int) -> str:
        return str(self._step.state[place].name)


def _batches(task: Task, stage: int, seed: int) -> list[Batch]:
    """Batches of a stage's first steps; of a short one the last again."""
    numbers: list[int] = []
    first = next(n for n in range(10**9) if task.stage(n) == stage)
    for number in range(first, first + WARM + TRIES):
        numbers.append(number if task.stage(number) == stage else numbers[-1])
    whole = _with_terms(task)
    return [tensors(whole.batch(seed, number)) for number in numbers]


def _norm(values: Sequence[np.ndarray]) -> float:
    squares = (float(np.sum(np.square(each, dtype=np.float64))) for each in values)
    return math.sqrt(sum(squares))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays hold the same values; NaNs are the same."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _in_16_bits(values: np.ndarray) -> bool:
    """Whether float16 or bfloat16 holds all of many different float32 values."""
    if values.dtype != np.float32:
        return False
    some = np.unique(values[(values != 0) & np.isfinite(values)])
    if some.size < FEW:
        return False
    with np.errstate(over="ignore"):
        half = some.astype(np.float16).astype(np.float32)
    return bool(np.all(half == some)) or not np.any(some.view(np.uint32) & 0xFFFF)


def _power(scale: float) -> str:
    exact = scale > 0 and math.log2(scale).is_integer()
    return f"2^{math.log2(scale):g}" if exact else f"{scale:g}"
