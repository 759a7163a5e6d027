"""Drills: single steps, apart from training, whose outcome is known to the last bit.

Training shows what a scaler does where it comes to it. A family whose gradients never
overflow never shows that an overflow is skipped, and what 16 bits cost an optimizer's
state may be less than any margin. So each setting with a loss scale takes steps at
states that are put together for them::

    any step                  some bit of a gradient is another than in float32
    one value of a gradient   nothing that the part's optimizers hold moves, the program
    of a part is infinite,    gets zeros, and each update that is skipped is counted; a
    of either sign, or NaN    dynamic scale halves and counts anew; the next step moves
                              weights
    one scale is far too      the same of its part, while the other parts' weights move
    large
    the last step of an       the scale doubles, or stays at its largest, and nothing
    interval, the last but    else differs from the step before which it does not
    one
    the same in float32       past the hooks for gradients and optimizers all moves to
                              the same place
    an overflow at the least  the scale stays
    scale, counted by hand
    1.5 times the scale       gradients differ in some bit, for 1.5 is no power of two,
                              and by no more than rounding may (`gradient_rule`); they,
                              the weights, what optimizers hold and statistics that
                              move with a step are float32. (Of a constant scale a step
                              is traced that has this one.)
    many steps in a row, in   gradients are the same, but for the order of a sum, no
    which scalers alone are   update is skipped, and the scale doubles at the end of an
    not put back              interval; then an overflow is skipped once more
    all steps together        losses are float32
    no step                   a dynamic scale is by default what it should be, and is
                              float16's; what is saved of scalers comes back, also to
                              one that is made later, as after a restart

A tensor *is float32* if one of its values is none that 16 bits hold. (After a scale
that is a power of two a gradient need not be, nor a momentum that is the last one.) No
results are judged here, and no run is changed: a drill has a step of its own, whose
losses have a term more, so that one value alone can be made infinite (`terms`).
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
from convergence import (
    dynamics,
    gradient_rule,
    scaler_drills,
    settings,
    terms,
    unhooked,
)
from convergence.steps import Scope, Step
from convergence.task import Batch, Part, Task
from convergence.terms import WARM
from convergence.tracks import _scaler

# A scale with which gradients overflow: in float16 where they are over 2^-84; bfloat16
# has float32's range, and takes more.
FAR = {"float16": 2.0**100, "bfloat16": math.inf}
# Fewer different values may all be held by 16 bits as it happens: of those that 1.5
# divides, one in three has a significand that is a multiple of 3.
FEW = 16
FEW_LOSSES = 3  # that 16 bits hold so many by chance has a probability under 2^-36
# Of a part's variables, whose gradients alone are not finite: at so many it is seen
# that nothing moves, at all others that the optimizers' counts stand still.
SOME = 3
# With more variables, each of the two settings with a scale takes every second one.
MANY = 32
# TensorFlow may change the order of a sum in the course of a process: from its 78th
# call on, one gradient of eight of a GAN was off by last bits. So where many steps or
# two functions are compared, so large a share of values other than 0 has to differ, or
# a variable's move by so large a share of itself.
APART = 0.5
OTHERWISE = 2.0**-4
LATE = 64  # steps in a row
LONG = 2**20  # what counts are set on by then, as after so many steps


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A loss of a step.

    Attributes:
      scaler: of its gradients.
      places: in `Step.state`, of its weights and of what their optimizers hold.
      weights: those of its weights.
      gradients: places among the gradients that a step returns.
      terms: of its variables, by which one gradient alone is made infinite.
      optimizers: which update them.
    """

    scaler: Any
    places: frozenset[int]
    weights: frozenset[int]
    gradients: tuple[int, ...]
    terms: tuple[int, ...]
    optimizers: tuple[keras.Optimizer, ...]


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
    found: list[str] = []
    try:
        made = _made(task, policy, planted)
        other = plain = None
        if rule.interval:
            found.extend(scaler_drills.of_defaults())
            found.extend(scaler_drills.of_restarts())
            plain = unhooked.step(task)
        else:
            scale = amp.loss_scaling.ConstantLossScale(1.5 * 2.0**rule.first)
            other = _made(task, dataclasses.replace(policy, loss_scale=scale), planted)
        for stage in task.stages:
            where = f"stage {stage}: " if len(task.stages) > 1 else ""
            rescaled = other and _Drill(other, task, stage, rule, seed)
            drill = _Drill(made, task, stage, rule, seed, rescaled)
            found.extend(where + text for text in drill.faults())
            if plain is not None and stage == task.stages[0]:
                found.extend(drill.unhooked(plain))
        saved = scaler_drills.of_copies(made.scalers, moves=bool(rule.interval))
        found.extend(saved)
    except tf.errors.OpError as e:
        found.append(f"a step raises {type(e).__name__}: {e.message.splitlines()[0]}")
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """A step that was traced, and the scalers of its gradient calls."""

    step: Step
    scalers: Sequence[Any]


def _made(task: Task, policy: amp.Policy, planted: Scope) -> _Made:
    known = set(amp.loss_scaling.current().scalers)
    step = Step(terms.added(task), policy, planted)
    return _Made(
        step, [s for s in amp.loss_scaling.current().scalers if s not in known]
    )


class _Drill:
    """The drills of one stage.

    Args:
      made: its step.
      task, rule, seed: as of `faults`.
      stage: of the task.
      rescaled: the same with one and a half times a constant scale.
    """

    def __init__(
        self,
        made: _Made,
        task: Task,
        stage: int,
        rule: dynamics.Rule,
        seed: int,
        rescaled: _Drill | None = None,
    ) -> None:
        self._step, self._stage, self._rule = made.step, stage, rule
        self._rescaled = rescaled or self
        self._parts: list[_Part] = []
        for part in task.parts(stage):
            self._parts.append(self._of(part, made.scalers))
        scaled = {id(v) for s in made.scalers for v in s.variables}
        state = self._step.state
        self._own = frozenset(p for p, v in enumerate(state) if id(v) in scaled)
        model = {id(v.value) for v in task.model.variables}
        carried = set(map(id, task.carried))
        trained = {
            id(v.value) for s in task.stages for p in task.parts(s) for v in p.variables
        }
        # Of the model's, what moves with a step without being trained.
        self._statistics = frozenset(
            p for p, v in enumerate(state) if id(v) in model - trained - carried
        )
        self._terms = sum(len(part.variables) for part in task.parts(stage))
        self._batches = terms.batches(task, stage, seed)
        self._exponent = rule.first
        self._first = self._step.fresh  # where drills begin, once it is found
        self._losses: list[np.ndarray] = []

    def _of(self, part: Part, scalers: Sequence[Any]) -> _Part:
        at = _scaler(scalers, part)
        places = {id(variable): at for at, variable in enumerate(self._step.state)}
        weights = [v for _, some in part.updates for v in some]
        held = [v for optimizer, _ in part.updates for v in optimizer.variables]
        begin = sum(len(p.weights) for p in self._parts)
        return _Part(
            scaler=None if at is None else scalers[at],
            places=frozenset(places[id(v.value)] for v in (*weights, *held)),
            weights=frozenset(places[id(v.value)] for v in weights),
            gradients=self._gradients(part),
            terms=tuple(range(begin, begin + len(weights))),
            optimizers=tuple(optimizer for optimizer, _ in part.updates),
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
        self._first = self._held
        usual = self._take()
        if self._rule.interval:
            yield from self._grown(usual)
        yield from self._in_float32(usual)
        yield from self._not_finite()
        if self._rule.interval:
            yield from self._overflown()
        other = self._rescaled
        other.follow(self)
        scale = 1.5 * 2.0**self._exponent
        seen = other._take(dict.fromkeys(range(len(self._parts)), scale))
        yield from self._one_and_a_half(seen, usual)
        yield from self._losses_are_float32()
        yield from other._late(seen, scale)

    def unhooked(self, plain: Step) -> Iterator[str]:
        """Of the same step in float32, with hooks and without them."""
        after = []
        for step in (self._step, plain):
            self._step.put(self._first)
            step.in_float32(self._stage, self._batch)
            after.append(self._step.values())
        hooked, alone = after
        places = [p for p, v in enumerate(self._first) if v.dtype == np.float32]
        places = [p for p in places if p not in self._own]
        differ = [p for p in places if self._moves_otherwise(p, hooked[p], alone[p])]
        if not differ and _apart(
            [hooked[p] for p in places], [alone[p] for p in places]
        ):
            differ = places
        if differ:
            more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
            told = f"{self._name(differ[0])}{more} otherwise than without them"
            yield f"in float32 the hooks for gradients and optimizers move {told}"

    def _moves_otherwise(self, at: int, ours: np.ndarray, other: np.ndarray) -> bool:
        if _same(ours, other):
            return False
        off = _norm([np.subtract(ours, other, dtype=np.float64)])
        return not off <= OTHERWISE * _norm([np.subtract(other, self._first[at])])

    def follow(self, drill: _Drill) -> None:
        """Takes over the state, the batch and the scale of a drill of the same task."""
        drill._step.put(drill._held)
        self._held, self._batch = self._step.values(), drill._batch
        self._exponent = drill._exponent

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
            some = np.linspace(0, len(part.terms) - 1, SOME).round().astype(int)
            for number, place in enumerate(dict.fromkeys(some.tolist())):
                for turn, value in enumerate((math.inf, -math.inf, math.nan)):
                    where = (number + turn) % terms.PLACES
                    factors = self._factors(part.terms[place], value, where)
                    last = number == turn == 0
                    told = [*self._left_out(at, factors, good, again=last)]
                    if told:  # the other gradients would tell the same
                        yield from told
                        return
        yield from self._each_not_finite(good)

    def _each_not_finite(self, good: int) -> Iterator[str]:
        """The same of each gradient, as the counts of optimizers and scalers tell."""
        self._step.put(self._held)
        model = frozenset(range(len(self._held))) - self._own
        for at, part in enumerate(self._parts):
            half = len(part.terms) > MANY
            first = int(half and bool(self._rule.interval))
            for term in part.terms[first :: 1 + half]:
                factors = self._factors(term, math.inf, term % terms.PLACES)
                # Otherwise so many overflows in a row are looked into, and told of.
                self._put_all_but(model)
                self._set({}, good)
                before, counts = self._scaled(), self._counts()
                self._step(self._stage, self._with_factors(factors))
                grown = self._scaled()[at].skipped - before[at].skipped
                stood = self._counts()[at] == counts[at]
                if stood and grown == len(part.optimizers):
                    continue
                told = [*self._left_out(at, factors, good)]
                yield from told or ["one gradient that is inf skips no update"]
                return

    def _factors(self, term: int, value: float, where: int = 0) -> np.ndarray:
        factors = np.zeros((self._terms, terms.PLACES), np.float32)
        factors[term, where] = value
        return factors

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
        due_skips = len(part.optimizers)
        if now.skipped != was.skipped + due_skips:
            told = f"{now.skipped - was.skipped}, where {due_skips} were due"
            yield f"{when} the count of skipped updates grows by {told}"
        due = max(was.scale / 2, 2.0**dynamics.LOWEST)
        scale = due if self._rule.interval else was.scale
        yield from self._scale_is(now, scale, 0, when)

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
        yield from self._scale_is(after.scaled[at], *due, when)

    def _overflown(self) -> Iterator[str]:
        """Of an overflow of each part alone."""
        far, good = FAR[self._dtype], self._rule.interval // 2
        for at, part in enumerate(self._parts):
            seen = self._take({at: far}, good)
            yield from self._skipped(at, seen, f"after the scale {_power(far)}")
            for other in self._parts:
                apart = other.scaler is not part.scaler
                if apart and not other.places & seen.moved:
                    yield "an overflow of one loss holds back the update by another"

    def _grown(self, usual: _Seen) -> Iterator[str]:
        """Of the end of an interval."""
        interval, scale = self._rule.interval, 2.0**self._exponent
        last, parts = self._take(good=interval - 1), range(len(self._parts))
        for at in parts:
            when = f"after {interval} good steps"
            yield from self._scale_is(last.scaled[at], scale * 2, 0, when)
        if interval > 1:
            early = self._take(good=interval - 2)
            for at in parts:
                when = f"after {interval - 1} good steps"
                yield from self._scale_is(early.scaled[at], scale, interval - 1, when)
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
            yield from self._scale_is(top.scaled[at], due, 0, "at the largest scale")
        # Float16 may overflow there; by hand the scale's rule takes a good step.
        yield from self._by_hand(most, interval - 1, True, "the largest")
        yield from self._by_hand(2.0**dynamics.LOWEST, 0, False, "the least")

    def _by_hand(
        self, scale: float, good: int, finite: bool, which: str
    ) -> Iterator[str]:
        """Of a scale that neither a good step nor an overflow moves."""
        self._set(dict.fromkeys(range(len(self._parts)), scale), good)
        for part in self._parts:
            part.scaler.update(finite)
        for now in self._scaled():
            yield from self._scale_is(now, scale, 0, f"by hand, at {which} scale")

    def _one_and_a_half(self, seen: _Seen, usual: _Seen) -> Iterator[str]:
        """Of a scale that is no power of two."""
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
        yield from self._statistics_are_float32(seen)

    def _statistics_are_float32(self, seen: _Seen) -> Iterator[str]:
        """Of what a step moves without training it: batch norm's means."""
        moved = {
            place: seen.after[place]
            for place in sorted(self._statistics & seen.moved)
            if seen.after[place].dtype == np.float32
        }
        low = [place for place, values in moved.items() if _in_16_bits(values)]
        for place in low:
            yield f"{self._name(place)} is held in 16 bits"
        every = [values.ravel() for values in moved.values()]
        if not low and every and _in_16_bits(np.concatenate(every)):
            yield "statistics that move with a step are held in 16 bits"

    def _losses_are_float32(self) -> Iterator[str]:
        for values in np.transpose(self._losses):
            if _in_16_bits(values, FEW_LOSSES):
                yield "a loss is held in 16 bits"

    def _late(self, first: _Seen, scale: float) -> Iterator[str]:
        """Of many steps in a row, in which scalers alone are not put back.

        So none overflows, and gradients are those of the first step. The last step is
        one of a long run, as counts tell.
        """
        scales = dict.fromkeys(range(len(self._parts)), scale)
        good = max(self._rule.interval - LATE // 2, 0)  # it grows once at least
        self._step.put(self._held)
        for number in range(1, LATE + 2):
            self._put_all_but(self._own)
            if number > LATE:
                for part in self._parts:
                    calls = np.eye(1, part.scaler.tally.shape[0], dtype=np.int64)[0]
                    part.scaler.tally.assign_add(calls * LONG)
            self._set(scales, good)
            told = [*self._of_a_row(first, scale, good)]
            if told:
                yield from (f"in step {number} of a row {text}" for text in told)
                return
            good = good + 1 if good + 1 < self._rule.interval else 0
        self._put_all_but(self._own)
        for part in self._parts:
            for optimizer in part.optimizers:
                optimizer.iterations.assign_add(LONG)
        self._held = self._step.values()
        late = [*self._each_overflows()]
        yield from (f"after {LATE} steps in a row, {text}" for text in late)

    def _of_a_row(self, first: _Seen, scale: float, good: int) -> Iterator[str]:
        """Of the next step of a row."""
        before, counts = self._scaled(), self._counts()
        found = self._step(self._stage, self._batch)[1]
        after, moved = self._scaled(), self._counts()
        for at, part in enumerate(self._parts):
            pairs = zip(counts[at], moved[at], strict=True)
            stood = any(now == was for was, now in pairs)
            if stood or after[at].skipped != before[at].skipped:
                yield "an update is skipped without an overflow"
            ours = [found[i].numpy() for i in part.gradients]
            if _apart(ours, [first.gradients[i] for i in part.gradients]):
                yield "gradients are not those of the first"
            grows = self._rule.interval == good + 1
            due = (scale * 2, 0) if grows else (scale, good + 1)
            yield from self._scale_is(after[at], *due, "without an overflow")

    def _each_overflows(self) -> Iterator[str]:
        """Of an overflow of each part, by one gradient, and by a scale too large."""
        for at, part in enumerate(self._parts):
            factors = self._factors(part.terms[-1], math.inf)
            yield from self._left_out(at, factors, self._rule.interval // 2)
        if self._rule.interval:
            yield from self._overflown()

    def _put_all_but(self, places: frozenset[int]) -> None:
        """Puts back the state that is held, but for some places."""
        for place, variable in enumerate(self._step.state):
            if place not in places:
                variable.assign(self._held[place])

    def _counts(self) -> list[list[int]]:
        """The optimizers' own counts of updates, by part."""
        return self._step.tracks.before(self._stage)[1]

    def _scale_is(
        self, now: _Scaled, scale: float, good: int, when: str
    ) -> Iterator[str]:
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
    ) -> _Seen:
        """Takes the step from the state that is held."""
        self._step.put(self._held)
        self._set(scales, good)
        batch = self._batch if factors is None else self._with_factors(factors)
        return self._taken(self._step.values(), batch)

    def _with_factors(self, factors: np.ndarray) -> Batch:
        return (*self._batch[:-1], tf.constant(factors))

    def _taken(self, state: Sequence[np.ndarray], batch: Batch) -> _Seen:
        self._step.put(state)
        before = self._scaled()
        losses, found = self._step(self._stage, batch)
        self._losses.append(losses)
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


def _norm(values: Sequence[np.ndarray]) -> float:
    squares = (float(np.sum(np.square(each, dtype=np.float64))) for each in values)
    return math.sqrt(sum(squares))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays hold the same values; NaNs are the same."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _apart(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether most of the values that are not 0 in both differ."""
    differ = sum(int(np.sum(a != b)) for a, b in zip(some, others, strict=True))
    known = sum(
        int(np.sum((a != 0) | (b != 0))) for a, b in zip(some, others, strict=True)
    )
    return differ > APART * known


def _in_16_bits(values: np.ndarray, few: int = FEW) -> bool:
    """Whether float16 or bfloat16 holds all of many different float32 values.

    Args:
      values: of any type.
      few: with fewer different ones the answer is no.
    """
    if values.dtype != np.float32:
        return False
    some = np.unique(values[(values != 0) & np.isfinite(values)])
    if some.size < few:
        return False
    with np.errstate(over="ignore"):
        half = some.astype(np.float16).astype(np.float32)
    return bool(np.all(half == some)) or not np.any(some.view(np.uint32) & 0xFFFF)


def _power(scale: float) -> str:
    exact = scale > 0 and math.log2(scale).is_integer()
    return f"2^{math.log2(scale):g}" if exact else f"{scale:g}"
