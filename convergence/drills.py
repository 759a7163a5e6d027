"""Drills: single steps, apart from training, whose outcome is known to the last bit.

Training shows what a scaler does where it comes to it. A family whose gradients never
overflow never shows that an overflow is skipped, and what 16 bits cost an optimizer's
state may be less than any margin. So each setting with a loss scale takes steps at
states that are put together for them::

    any step                  some bit of a gradient is another than in float32, and
                              all of them together are no multiple of float32's
    one value of a gradient   nothing that the part's optimizers hold moves, the program
    of a part is infinite,    gets zeros, and each update that is skipped is counted; a
    of either sign, or NaN    dynamic scale halves and counts anew; what moves untrained
                              moves as ever; the next step moves weights
    one scale is far too      the same of its part, while the other parts' weights move
    large
    scales that differ        gradients are the usual ones
    two equal rows of a       the same of its part
    gradient, of which only
    the sum is infinite
    the largest scale that    gradients are the usual ones but for what rounding may do
    nothing overflows by      (`gradient_rule`)
    the last step of an       the scale doubles, or stays at its largest, and nothing
    interval, the last but    else differs from the step before which it does not
    one
    the same in float32       past the hooks for gradients and optimizers all moves to
                              the same place
    an overflow at the least  the scale stays
    scale, counted by hand
    1.5 times the scale       gradients differ in some bit, for 1.5 is no power of two,
                              and by no more than rounding may; they, the weights, what
                              optimizers hold and statistics that move with a step are
                              float32; in float16 none is bfloat16 while it is scaled.
                              (Of a constant scale a step is traced that has this one.)
    moving means at 0, at 1   what they move by is float32
    many steps in a row, in   gradients are the same, but for the order of a sum, no
    which scalers alone are   update is skipped, and the scale doubles at the end of an
    not put back              interval; then an overflow is skipped once more
    all steps together; one   losses are float32; so is that of an example
    example many times
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
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

import amp
from convergence import (
    bits,
    dynamics,
    gradient_rule,
    rig,
    scaler_drills,
    settings,
    terms,
    unhooked,
)
from convergence.rig import Part, Rig, Scaled, Seen
from convergence.steps import Scope, Step
from convergence.task import Task

# A scale with which gradients overflow: in float16 where they are over 2^-84; bfloat16
# has float32's range, and takes more.
FAR = {"float16": 2.0**100, "bfloat16": math.inf}
# Rounding turns a gradient rather than making all of it larger: in sound steps by at
# most a third of what it turns it by, where that is more than a unit or two.
ALONG = 16  # units
# Two rows of a gradient are finite, and their sum is not.
LARGE = 1.5 * 2.0**127
# Of the gradient by a table some rows are sums, and so others than what 16 bits hold.
MOST = 0.75
# So many examples have a loss each; one in eighty is near to 16 bits by chance.
EXAMPLES = 5
# The rate of a moving mean is 1 less the rest, and known to fewer digits than that.
RATE = 2.0**-15
FEW_LOSSES = 3  # that 16 bits hold so many by chance has a probability under 2^-36
# Of a part's variables, whose gradients alone are not finite: at so many it is seen
# that nothing moves, at all others that the optimizers' counts stand still.
SOME = 3
# With more variables, each of the two settings with a scale takes every second one.
MANY = 32
# Where a variable's move is compared with that in another function, it has to differ by
# so large a share of itself (`bits.APART` says why).
OTHERWISE = 2.0**-4
LATE = 64  # steps in a row
LONG = 2**20  # what counts are set on by then, as after so many steps


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
        made = rig.made(task, policy, planted)
        other = plain = None
        if rule.interval:
            found.extend(scaler_drills.of_defaults())
            found.extend(scaler_drills.of_restarts())
            plain = unhooked.step(task)
        else:
            scale = amp.loss_scaling.ConstantLossScale(1.5 * 2.0**rule.first)
            other = rig.made(
                task, dataclasses.replace(policy, loss_scale=scale), planted
            )
        for stage in task.stages:
            where = f"stage {stage}: " if len(task.stages) > 1 else ""
            rescaled = other and Rig(other, task, stage, rule, seed)
            drill = _Drill(Rig(made, task, stage, rule, seed), rescaled)
            found.extend(where + text for text in drill.faults())
            if plain is not None and stage == task.stages[0]:
                found.extend(drill.unhooked(plain))
        saved = scaler_drills.of_copies(made.scalers, moves=bool(rule.interval))
        found.extend(saved)
    except tf.errors.OpError as e:
        found.append(f"a step raises {type(e).__name__}: {e.message.splitlines()[0]}")
    return found


class _Drill:
    """The drills of one stage.

    Args:
      own: takes its steps.
      rescaled: the same with one and a half times a constant scale.
      usual: a step from where drills begin, if it was taken.
    """

    def __init__(
        self, own: Rig, rescaled: Rig | None = None, usual: Seen | None = None
    ) -> None:
        self._rig, self._rescaled = own, rescaled or own
        self._first, self._usual = own.held, usual or own.nothing

    def faults(self) -> Iterator[str]:
        """What is wrong, in words."""
        own, other = self._rig, self._rescaled
        if any(part.scaler is None for part in own.parts):
            yield "a gradient has no loss scale"
            return
        if not own.prepared():
            yield "with no scale does a step move the weights of each loss"
            return
        self._first, self._usual = own.held, own.take()
        if own.rule.interval:
            yield from self._grown()
            yield from self._large()
            yield from self._each_by_its_own()
        yield from self._in_float32()
        yield from self._not_finite()
        if own.rule.interval:
            yield from self._overflown()
            yield from self._two_rows()
        other.follow(own)
        scale = 1.5 * 2.0**own.exponent
        seen = other.take(dict.fromkeys(range(len(own.parts)), scale))
        yield from self._one_and_a_half(seen, scale)
        yield from self._statistics_are_float32(seen)
        yield from self._losses_are_float32()
        yield from _Drill(other, usual=seen).late(scale)

    def unhooked(self, plain: Step) -> Iterator[str]:
        """Of the same step in float32, with hooks and without them."""
        after = []
        for step in (self._rig.step, plain):
            self._rig.step.put(self._first)
            step.in_float32(self._rig.stage, self._rig.batch)
            after.append(self._rig.step.values())
        hooked, alone = after
        places = [p for p, v in enumerate(self._first) if v.dtype == np.float32]
        places = [p for p in places if p not in self._rig.own]
        differ = [p for p in places if self._moves_otherwise(p, hooked[p], alone[p])]
        if not differ and bits.apart(
            [hooked[p] for p in places], [alone[p] for p in places]
        ):
            differ = places
        if differ:
            more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
            told = f"{self._rig.name(differ[0])}{more} otherwise than without them"
            yield f"in float32 the hooks for gradients and optimizers move {told}"

    def _moves_otherwise(self, at: int, ours: np.ndarray, other: np.ndarray) -> bool:
        if bits.same(ours, other):
            return False
        if ours.dtype.kind != "f":
            return True
        off = bits.norm([np.subtract(ours, other, dtype=np.float64)])
        return not off <= OTHERWISE * bits.norm([np.subtract(other, self._first[at])])

    def _in_float32(self) -> Iterator[str]:
        """Of the same step in float32: 16 bits make a difference, along no gradient."""
        self._rig.step.put(self._rig.held)
        exact = self._rig.step.in_float32(self._rig.stage, self._rig.batch)
        ours = self._usual.gradients
        for part in self._rig.parts:
            pairs = [(ours[i], exact[i].numpy()) for i in part.gradients]
            if all(bits.same(one, other) for one, other in pairs):
                yield "16 bits change no bit of a gradient"
            times, rest = bits.times([a for a, _ in pairs], [b for _, b in pairs])
            off, unit = abs(times - 1), settings.UNIT[self._rig.dtype]
            if not off <= max(ALONG * unit, 2 * rest):
                yield f"gradients are {times:.4g} times those in float32"

    def _not_finite(self) -> Iterator[str]:
        """Of one gradient that is not finite: what should have been left out."""
        good = self._rig.rule.interval // 2
        for at, part in enumerate(self._rig.parts):
            some = np.linspace(0, len(part.terms) - 1, SOME).round().astype(int)
            for number, place in enumerate(dict.fromkeys(some.tolist())):
                for turn, value in enumerate((math.inf, -math.inf, math.nan)):
                    where = (number + turn) % terms.PLACES
                    factors = self._rig.factors(part.terms[place], value, where)
                    last = number == turn == 0
                    told = [*self._left_out(at, factors, good, again=last)]
                    if told:  # the other gradients would tell the same
                        yield from told
                        return
        yield from self._each_not_finite(good)

    def _each_not_finite(self, good: int) -> Iterator[str]:
        """The same of each gradient, as the counts of optimizers and scalers tell."""
        self._rig.step.put(self._rig.held)
        model = frozenset(range(len(self._rig.held))) - self._rig.own
        for at, part in enumerate(self._rig.parts):
            half = len(part.terms) > MANY
            first = int(half and bool(self._rig.rule.interval))
            for term in part.terms[first :: 1 + half]:
                factors = self._rig.factors(term, math.inf, term % terms.PLACES)
                # Otherwise so many overflows in a row are looked into, and told of.
                self._rig.put_all_but(model)
                self._rig.set({}, good)
                before, counts = self._rig.scaled(), self._rig.counts()
                self._rig.step(self._rig.stage, self._rig.with_factors(factors))
                grown = self._rig.scaled()[at].skipped - before[at].skipped
                stood = self._rig.counts()[at] == counts[at]
                if stood and grown == len(part.optimizers):
                    continue
                told = [*self._left_out(at, factors, good)]
                yield from told or ["one gradient that is inf skips no update"]
                return

    def _left_out(
        self, at: int, factors: np.ndarray, good: int, *, again: bool = False
    ) -> Iterator[str]:
        """Of a step in which a gradient of one part is not finite."""
        seen = self._rig.take({}, good, factors)
        where = f"one gradient that is {np.sum(factors[factors != 0]):g}"
        yield from self._skipped(at, seen, f"after {where}")
        if again:
            yield from self._next_moves(at, seen)

    def _skipped(self, at: int, seen: Seen, when: str) -> Iterator[str]:
        """Of a step that an update had to be left out of."""
        part, was, now = self._rig.parts[at], seen.before[at], seen.scaled[at]
        if moved := part.places & seen.moved:
            names = ", ".join(map(self._rig.name, sorted(moved)[:3]))
            more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
            yield f"{when} moved {names}{more}"
        if any(np.any(seen.gradients[i]) for i in part.gradients):
            yield f"{when} gradients are not 0"
        yield from self._statistics_move(seen, when)
        due_skips = len(part.optimizers)
        if now.skipped != was.skipped + due_skips:
            told = f"{now.skipped - was.skipped}, where {due_skips} were due"
            yield f"{when} the count of skipped updates grows by {told}"
        due = max(was.scale / 2, 2.0**dynamics.LOWEST)
        scale = due if self._rig.rule.interval else was.scale
        yield from self._scale_is(now, scale, 0, when)

    def _statistics_move(self, seen: Seen, when: str) -> Iterator[str]:
        """Of what a step moves without training it: a skipped one moves it as well."""
        for place in sorted(self._rig.statistics):
            usual = self._usual.after[place]
            if self._moves_otherwise(place, seen.after[place], usual):
                yield f"{when} {self._rig.name(place)} moves otherwise than usual"
                return

    def _next_moves(self, at: int, seen: Seen) -> Iterator[str]:
        """Of the step after it, at the weights that there were, with their scalers."""
        state = [
            seen.after[place] if place in self._rig.own else value
            for place, value in enumerate(self._rig.held)
        ]
        after, part = self._rig.taken(state, self._rig.batch), self._rig.parts[at]
        when = "in the step after a skipped one"
        if not part.weights & after.moved:
            yield f"{when} no weight moves"
        scale, at_once = seen.scaled[at].scale, self._rig.rule.interval == 1
        due = (scale * 2, 0) if at_once else (scale, 1)
        yield from self._scale_is(after.scaled[at], *due, when)

    def _overflown(self) -> Iterator[str]:
        """Of an overflow of each part alone."""
        far, good = FAR[self._rig.dtype], self._rig.rule.interval // 2
        for at, part in enumerate(self._rig.parts):
            seen = self._rig.take({at: far}, good)
            yield from self._skipped(at, seen, f"after the scale {_power(far)}")
            for other in self._rig.parts:
                apart = other.scaler is not part.scaler
                if apart and not other.places & seen.moved:
                    yield "an overflow of one loss holds back the update by another"

    def _grown(self) -> Iterator[str]:
        """Of the end of an interval."""
        interval, scale = self._rig.rule.interval, 2.0**self._rig.exponent
        last, parts = self._rig.take(good=interval - 1), range(len(self._rig.parts))
        for at in parts:
            when = f"after {interval} good steps"
            yield from self._scale_is(last.scaled[at], scale * 2, 0, when)
        if interval > 1:
            early = self._rig.take(good=interval - 2)
            for at in parts:
                when = f"after {interval - 1} good steps"
                yield from self._scale_is(early.scaled[at], scale, interval - 1, when)
        differ = [
            self._rig.name(place)
            for place in range(len(self._rig.held))
            if place not in self._rig.own
            and not bits.same(last.after[place], self._usual.after[place])
        ]
        if differ:
            yield f"where the scale grows, {differ[0]} moves otherwise"
        most = 2.0**dynamics.HIGHEST
        top = self._rig.take(dict.fromkeys(parts, most), interval - 1)
        for at, part in enumerate(self._rig.parts):
            due = most if part.weights & top.moved else most / 2
            yield from self._scale_is(top.scaled[at], due, 0, "at the largest scale")
        # Float16 may overflow there; by hand the scale's rule takes a good step.
        yield from self._by_hand(most, interval - 1, True, "the largest")
        yield from self._by_hand(2.0**dynamics.LOWEST, 0, False, "the least")

    def _by_hand(
        self, scale: float, good: int, finite: bool, which: str
    ) -> Iterator[str]:
        """Of a scale that neither a good step nor an overflow moves."""
        self._rig.set(dict.fromkeys(range(len(self._rig.parts)), scale), good)
        for part in self._rig.parts:
            part.scaler.update(finite)
        for now in self._rig.scaled():
            yield from self._scale_is(now, scale, 0, f"by hand, at {which} scale")

    def _one_and_a_half(self, seen: Seen, scale: float) -> Iterator[str]:
        """Of a scale that is no power of two."""
        for part in self._rig.parts:
            pairs = self._pairs(part, seen)
            if all(bits.same(ours, other) for ours, other in pairs):
                yield "one and a half times the scale changes no bit of a gradient"
            yield from self._as_usual(part, seen, "one and a half times the scale")
            for i, (ours, _) in zip(part.gradients, pairs, strict=True):
                name = self._rig.step.names[self._rig.stage][i]
                if bits.in_16_bits(ours, share=MOST):
                    yield f"the unscaled gradient of {name} is held in 16 bits"
                coarse = bits.near_16_bits(ours * scale, dtypes=["bfloat16"])
                if self._rig.dtype == "float16" and coarse:
                    yield f"the scaled gradient of {name} is held in bfloat16"
            for place in sorted(part.places & seen.moved):
                if bits.in_16_bits(seen.after[place]):
                    yield f"{self._rig.name(place)} is held in 16 bits"

    def _pairs(self, part: Part, seen: Seen) -> list[tuple[np.ndarray, np.ndarray]]:
        """A part's gradients, with those of the usual step."""
        return [(seen.gradients[i], self._usual.gradients[i]) for i in part.gradients]

    def _as_usual(self, part: Part, seen: Seen, what: str) -> Iterator[str]:
        """Of gradients that are the usual ones, but for what rounding does."""
        pairs = self._pairs(part, seen)
        off = bits.norm([np.subtract(a, b, dtype=np.float64) for a, b in pairs])
        size = bits.norm([b for _, b in pairs])
        most = gradient_rule.FLOOR * settings.UNIT[self._rig.dtype]
        if not off <= most * size:
            yield f"{what} changes gradients by {off:.2g}, which are {size:.2g}"

    def _large(self) -> Iterator[str]:
        """Of the largest scale that no gradient overflows by."""
        seen, exponent = self._usual, self._rig.exponent
        for larger in range(exponent + 1, dynamics.HIGHEST + 1):
            scales = dict.fromkeys(range(len(self._rig.parts)), 2.0**larger)
            next_seen = self._rig.take(scales)
            if not all(part.weights & next_seen.moved for part in self._rig.parts):
                break
            seen, exponent = next_seen, larger
        for part in self._rig.parts:
            yield from self._as_usual(part, seen, f"the scale 2^{exponent}")

    def _each_by_its_own(self) -> Iterator[str]:
        """Of parts whose scales differ."""
        exponent, parts = self._rig.exponent, self._rig.parts
        seen = self._rig.take(
            {at: 2.0 ** (exponent - 2 * at) for at in range(len(parts))}
        )
        for at, part in enumerate(parts[1:], 1):
            what = f"a scale of loss {at + 1} that is another than that of the first"
            yield from self._as_usual(part, seen, what)

    def _two_rows(self) -> Iterator[str]:
        """Of slices of a gradient that are finite and whose sum is not."""
        for at, part in enumerate(self._rig.parts):
            for term in part.tables[:1]:
                factors = self._rig.factors(term, LARGE, 0)
                factors[term, 1] = LARGE  # of the same row, as `terms` reads it
                seen = self._rig.take({at: 1.0}, self._rig.rule.interval // 2, factors)
                when = "after two equal rows of a gradient whose sum is inf"
                yield from self._skipped(at, seen, when)

    def _statistics_are_float32(self, seen: Seen) -> Iterator[str]:
        """Of what a step moves without training it: batch norm's means."""
        moved = {
            place: seen.after[place]
            for place in sorted(self._rig.statistics & seen.moved)
            if seen.after[place].dtype == np.float32
        }
        low = [place for place, values in moved.items() if bits.in_16_bits(values)]
        for place in low:
            yield f"{self._rig.name(place)} is held in 16 bits"
        every = [values.ravel() for values in moved.values()]
        if not low and every and bits.in_16_bits(np.concatenate(every)):
            yield "statistics that move with a step are held in 16 bits"
        if not low:
            yield from self._means_are_float32()

    def _means_are_float32(self) -> Iterator[str]:
        """Of what moving means move by: at 0 and at 1 a step shows it, and the rate."""
        places = [
            place
            for place in sorted(self._rig.statistics & self._usual.moved)
            if self._rig.held[place].dtype == np.float32
        ]
        begun = []
        for value in (0.0, 1.0):
            state = list(self._rig.held)
            for place in places:
                state[place] = np.full_like(state[place], value)
            begun.append(self._rig.taken(state, self._rig.batch).after)
        for place in places:
            zero, one = (after[place] for after in begun)
            rate = 1 - float(np.median(one - zero))
            if 0 < rate < 1 and bits.near_16_bits(zero / rate, RATE):
                yield f"what {self._rig.name(place)} moves by is held in 16 bits"

    def _losses_are_float32(self) -> Iterator[str]:
        """Of means, and of one example that is there many times: its own."""
        for values in np.transpose(self._rig.losses):
            if bits.in_16_bits(values, FEW_LOSSES):
                yield "a loss is held in 16 bits"
                return
        self._rig.step.put(self._rig.held)
        alone = [
            self._rig.taken(self._rig.held, self._rig.repeated(number)).losses
            for number in range(min(EXAMPLES, self._rig.examples))
        ]
        for values in np.transpose(alone):
            if bits.near_16_bits(values, few=EXAMPLES):
                yield "the loss of one example is held in 16 bits"

    def late(self, scale: float) -> Iterator[str]:
        """Of many steps in a row, in which scalers alone are not put back.

        So none overflows, and gradients are those of the first step. The last step is
        one of a long run, as counts tell.
        """
        scales = dict.fromkeys(range(len(self._rig.parts)), scale)
        good = max(self._rig.rule.interval - LATE // 2, 0)  # it grows once at least
        self._rig.step.put(self._rig.held)
        for number in range(1, LATE + 2):
            self._rig.put_all_but(self._rig.own)
            if number > LATE:
                for part in self._rig.parts:
                    calls = np.eye(1, part.scaler.tally.shape[0], dtype=np.int64)[0]
                    part.scaler.tally.assign_add(calls * LONG)
            self._rig.set(scales, good)
            told = [*self._of_a_row(scale, good)]
            if told:
                yield from (f"in step {number} of a row {text}" for text in told)
                return
            good = good + 1 if good + 1 < self._rig.rule.interval else 0
        self._rig.put_all_but(self._rig.own)
        for part in self._rig.parts:
            for optimizer in part.optimizers:
                optimizer.iterations.assign_add(LONG)
        self._rig.held = self._rig.step.values()
        late = [*self._each_overflows()]
        yield from (f"after {LATE} steps in a row, {text}" for text in late)

    def _of_a_row(self, scale: float, good: int) -> Iterator[str]:
        """Of the next step of a row."""
        before, counts = self._rig.scaled(), self._rig.counts()
        found = self._rig.step(self._rig.stage, self._rig.batch)[1]
        after, moved = self._rig.scaled(), self._rig.counts()
        for at, part in enumerate(self._rig.parts):
            pairs = zip(counts[at], moved[at], strict=True)
            stood = any(now == was for was, now in pairs)
            if stood or after[at].skipped != before[at].skipped:
                yield "an update is skipped without an overflow"
            ours = [found[i].numpy() for i in part.gradients]
            if bits.apart(ours, [self._usual.gradients[i] for i in part.gradients]):
                yield "gradients are not those of the first"
            grows = self._rig.rule.interval == good + 1
            due = (scale * 2, 0) if grows else (scale, good + 1)
            yield from self._scale_is(after[at], *due, "without an overflow")

    def _each_overflows(self) -> Iterator[str]:
        """Of an overflow of each part, by one gradient, and by a scale too large."""
        for at, part in enumerate(self._rig.parts):
            factors = self._rig.factors(part.terms[-1], math.inf)
            yield from self._left_out(at, factors, self._rig.rule.interval // 2)
        if self._rig.rule.interval:
            yield from self._overflown()

    def _scale_is(
        self, now: Scaled, scale: float, good: int, when: str
    ) -> Iterator[str]:
        if now.scale != scale:
            told = f"{_power(now.scale)}, where {_power(scale)} was due"
            yield f"{when} the scale is {told}"
        elif self._rig.rule.interval and now.good != good:
            yield f"{when} {now.good} good steps are counted, where {good} were due"


def _power(scale: float) -> str:
    exact = scale > 0 and math.log2(scale).is_integer()
    return f"2^{math.log2(scale):g}" if exact else f"{scale:g}"
