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
    the same in float32, and  past the hooks for gradients and optimizers all moves to
    in a mixed scope of       the same place
    float32 alone
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

A tensor *is float32* if neither float16 nor bfloat16 holds all of its values. (After a
scale that is a power of two a gradient need not be, nor a momentum that is the last
one.) No
results are judged here, and no run is changed: a drill has a step of its own, whose
losses have a term more, so that one value alone can be made infinite (`terms`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

import amp
from convergence import (
    dynamics,
    float32_drills,
    gradient_drills,
    growth_drills,
    overflow_drills,
    row_drills,
    scaler_drills,
    unhooked,
)
from convergence.rig import Rig, made
from convergence.steps import Scope, Step
from convergence.task import Task


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
        usual = made(task, policy, planted)
        other = hooks = None
        if rule.interval:
            found.extend(scaler_drills.of_defaults())
            found.extend(scaler_drills.of_restarts())
            hooks = unhooked.kept(task, policy, planted), unhooked.step(task)
        else:
            scale = amp.loss_scaling.ConstantLossScale(1.5 * 2.0**rule.first)
            other = made(task, dataclasses.replace(policy, loss_scale=scale), planted)
        for stage in task.stages:
            where = f"stage {stage}: " if len(task.stages) > 1 else ""
            rig = Rig(usual, task, stage, rule, seed)
            rescaled = Rig(other, task, stage, rule, seed) if other else rig
            first = hooks if stage == task.stages[0] else None
            found.extend(where + text for text in _of_stage(rig, rescaled, first))
        found.extend(scaler_drills.of_copies(usual.scalers, moves=bool(rule.interval)))
    except tf.errors.OpError as e:
        found.append(f"a step raises {type(e).__name__}: {e.message.splitlines()[0]}")
    return found


def _of_stage(
    rig: Rig, rescaled: Rig, hooks: tuple[Step, Step] | None
) -> Iterator[str]:
    """What is wrong in one stage, in words.

    Args:
      rig: takes its steps.
      rescaled: takes those with one and a half times a constant scale.
      hooks: as of `float32_drills.unhooked`.
    """
    if any(part.scaler is None for part in (*rig.parts, *rescaled.parts)):
        yield "a gradient has no loss scale"
        return
    if not rig.prepare():
        yield "with no scale does a step move the weights of each loss"
        return
    if rig.rule.interval:
        yield from growth_drills.grown(rig)
        yield from gradient_drills.large(rig)
        yield from gradient_drills.each_by_its_own(rig)
    yield from gradient_drills.in_float32(rig)
    if hooks is not None:
        yield from float32_drills.unhooked(rig, *hooks)
    yield from overflow_drills.not_finite(rig)
    if rig.rule.interval:
        yield from overflow_drills.overflown(rig)
        yield from overflow_drills.two_rows(rig)
    rescaled.follow(rig)
    scale = 1.5 * 2.0**rig.exponent
    taken = rescaled.take(dict.fromkeys(range(len(rig.parts)), scale))
    yield from gradient_drills.one_and_a_half(rig, taken, scale)
    yield from float32_drills.statistics(rig, taken)
    yield from float32_drills.losses(rig)
    rescaled.usual = taken
    yield from row_drills.late(rescaled, scale)
