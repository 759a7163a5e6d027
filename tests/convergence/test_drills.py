"""Drills find faults that training need not show, and nothing where nothing is wrong.

On the family of `tiny_family`, and on one with a second loss and optimizer. Faults are
planted as negative controls are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_family

from amp.graph_rewrite.apply.casts import Casts
from amp.loss_scaling import DynamicLossScale, finite_checks, gradients, update
from convergence import drills, dynamics, settings
from convergence.arms import Arm
from convergence.controls import Control, _instead, _rule
from convergence.task import Part, Task

STEPS = tiny_family.SIZE.steps
INTERVAL = settings.growth_interval(STEPS)


def one_loss() -> Task:
    return tiny_family.make(tiny_family.load(tiny_family.SIZE, None), tiny_family.SIZE)


def two_losses() -> Task:
    """Two networks of the same names, each with a loss and an optimizer of its own."""
    data = tiny_family.load(tiny_family.SIZE, None)
    networks = []
    for _ in range(2):
        hidden = keras.layers.Dense(16, "tanh", name="hidden")
        last = keras.layers.Dense(1, name="last")
        hidden.build((None, 8))
        last.build((None, 16))
        networks.append((hidden, last))

    def part(at: int) -> Part:
        hidden, last = networks[at]

        def loss(batch: Any) -> tf.Tensor:
            return tf.reduce_mean((last(hidden(batch[0])) - batch[1]) ** 2)

        variables = [*hidden.trainable_variables, *last.trainable_variables]
        return Part(loss, ((keras.optimizers.Adam(0.01), variables),))

    parts = [part(0), part(1)]
    held = [v for each in parts for v in each.variables]
    assert len({v.path for v in held}) == len(held) // 2
    batch = data.x[:32], data.y[:32]
    model: Any = types.SimpleNamespace(variables=held)
    return Task(model, lambda stage: parts, lambda *_: batch, lambda: 0.0)


def drilled(
    arm: Arm, task: Callable[[], Task] = one_loss, dtype: str = "float16"
) -> list[str]:
    keras.utils.set_random_seed(1)
    policy = arm.policy(dtype=dtype, emulate=True, steps=STEPS)
    assert policy is not None
    rule = dynamics.Rule(*arm.told(dtype, STEPS)["scaling"])
    return drills.faults(task(), policy, arm.planted, rule, 1)


@pytest.mark.parametrize("dtype", settings.DTYPES)
@pytest.mark.parametrize("name", ["constant", "dynamic"])
@pytest.mark.parametrize("task", [one_loss, two_losses])
@pytest.mark.slow
@pytest.mark.kernels
def test_where_nothing_is_wrong_nothing_is_found(
    task: Callable[[], Task], name: str, dtype: str
) -> None:
    assert drilled(Arm(name, name), task, dtype) == []


@pytest.mark.slow
@pytest.mark.kernels
def test_a_scale_may_grow_in_every_step() -> None:
    arm = Arm("dynamic", "dynamic", Control("", "", policy=_rule(growth_interval=1)))
    policy = arm.policy(dtype="float16", emulate=True, steps=STEPS)
    assert policy is not None
    rule = dynamics.Rule(dynamics.FIRST, 1)
    assert drills.faults(one_loss(), policy, arm.planted, rule, 1) == []


def frozen() -> Any:
    """The scale's variable moves, and gradients are scaled by what it was at first."""
    return _instead(gradients.Scaling, "scale", lambda self: tf.constant(2.0**8))


def read_again() -> Any:
    """Gradients are unscaled by the scale of the next step."""
    original = gradients.Scaling.inverse

    def inverse(self: Any, scale: tf.Tensor, finite: tf.Tensor, dtype: Any) -> Any:
        return original(self, self.scale(), finite, dtype)

    return _instead(gradients.Scaling, "inverse", inverse)


def _changed(change: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """Unscaled gradients are changed."""
    original = gradients.scaled

    def scaled(*args: Any, **kwargs: Any) -> list[Any]:
        return [change(grad) for grad in original(*args, **kwargs)]

    return _instead(gradients, "scaled", scaled)


def rounded() -> Any:
    return _changed(lambda g: tf.cast(tf.cast(g, tf.float16), tf.float32))


def too_large() -> Any:
    """By the root of the scale, which not all of is removed."""
    original = gradients.Scaling.inverse

    def inverse(self: Any, scale: tf.Tensor, finite: tf.Tensor, dtype: Any) -> Any:
        return original(self, scale, finite, dtype) * tf.sqrt(scale)

    return _instead(gradients.Scaling, "inverse", inverse)


@contextlib.contextmanager
def slots_in_16_bits() -> Iterator[None]:
    """What Adam holds is rounded after each update; weights are not."""
    owner = keras.optimizers.Adam
    original = owner.update_step

    def update_step(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        for slot in (*self._momentums, *self._velocities):
            half = tf.cast(slot.value, tf.bfloat16)
            slot.assign(tf.cast(half, tf.float32))

    with _instead(owner, "update_step", update_step):
        yield


def weights_put_back() -> Any:
    """After an overflow the optimizer runs on zeros, and weights alone are restored."""

    def run(concerns: Any, apply: Callable[[], Any], *others: Any) -> tf.Tensor:
        names = [s for c in concerns for s in c.scaler._sources.references]
        weights = [reference() for reference in names]
        before = [tf.identity(weight) for weight in weights]
        flags = [tf.reduce_all(flag) for c in concerns for flag in c.finite or ()]
        apply()
        sound = tf.reduce_all(tf.stack(flags))
        for weight, value in zip(weights, before, strict=True):
            weight.assign(tf.where(sound, weight, value))
        return tf.constant(True)

    return _instead(update, "unless_overflow", run)


def of_all() -> Any:
    """An overflow of any loss skips the updates by all."""
    original = update.concerns
    seen: list[Any] = []

    def concerns(variables: Any, calls: Any) -> Any:
        seen.extend(original(variables, calls))
        return list(seen)

    return _instead(update, "concerns", concerns)


def every_second() -> Any:
    """Of two scalers, one scales by 1."""
    original = gradients.Scaling.scale

    def scale(self: Any) -> tf.Tensor:
        return tf.constant(1.0) if self.scaler.number % 2 else original(self)

    return _instead(gradients.Scaling, "scale", scale)


def flags_of(some: slice) -> Any:
    """Whether gradients are finite is asked of some of them only."""
    original = gradients.all_of

    def all_of(flags: Any) -> Any:
        return original(dict(list(flags.items())[some]))

    return _instead(gradients, "all_of", all_of)


def infinite_is_finite() -> Any:
    return _instead(finite_checks, "_is_finite", lambda values: ~tf.math.is_nan(values))


def goes_on_counting() -> Any:
    """An overflow does not begin the count of good steps anew."""
    original = DynamicLossScale.step

    def step(self: Any, state: Any, finite: Any, where: Any) -> Any:
        found = original(self, state, finite, where)
        kept = where(finite, found.good_steps, state.good_steps)
        return found._replace(good_steps=kept)

    return _instead(DynamicLossScale, "step", step)


def not_zeroed() -> Any:
    """After an overflow the program gets what there was."""

    def inverse(self: Any, scale: tf.Tensor, finite: tf.Tensor, dtype: Any) -> Any:
        return 1.0 / tf.cast(scale, dtype)

    return _instead(gradients.Scaling, "inverse", inverse)


def not_rounded() -> Any:
    """The plan says what is in 16 bits, and emulation rounds none of it."""
    return _instead(Casts, "rounded", lambda self, edge: edge)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault, and a pattern of what a drill says of it."""

    finds: str
    planted: Callable[[], Any] = contextlib.nullcontext
    policy: Callable[[Any], Any] = lambda policy: policy
    task: Callable[[], Task] = one_loss


FAULTS = {
    "frozen": Fault("changes no bit", frozen),
    "read again": Fault("where the scale grows, .* moves otherwise", read_again),
    "rounded": Fault("the unscaled gradient of .* is held in 16 bits", rounded),
    "too large": Fault("changes gradients by", too_large),
    "not rounded": Fault("16 bits change no bit", not_rounded),
    "slots": Fault("(momentum|velocity).* is held in 16 bits", slots_in_16_bits),
    "put back": Fault("after one gradient that is inf moved", weights_put_back),
    "of all": Fault("holds back the update", of_all, task=two_losses),
    "one of two": Fault("changes no bit", every_second, task=two_losses),
    "first flag": Fault("inf moved", lambda: flags_of(slice(1))),
    "last forgotten": Fault("inf moved", lambda: flags_of(slice(-1))),
    "infinite": Fault("inf moved", infinite_is_finite),
    "counting": Fault("good steps are counted, where 0 were due", goes_on_counting),
    "not zeroed": Fault("gradients are not 0", not_zeroed),
    "early": Fault(
        rf"after {INTERVAL - 1} good steps the scale is 2\^",
        policy=_rule(growth_interval=INTERVAL - 1),
    ),
    "growth": Fault(
        rf"after {INTERVAL} good steps the scale is 2\^", policy=_rule(factor=4.0)
    ),
    "backoff": Fault(
        r"after one gradient that is inf the scale is 2\^", policy=_rule(backoff=0.25)
    ),
    "patient": Fault(
        r"after one gradient that is inf the scale is 2\^", policy=_rule(hysteresis=2)
    ),
}


@pytest.mark.parametrize("dtype", settings.DTYPES)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.slow
@pytest.mark.kernels
def test_a_planted_fault_is_found(fault: Fault, dtype: str) -> None:
    control = Control("planted", "", fault.planted, fault.policy)
    found = drilled(Arm("planted", "dynamic", control), fault.task, dtype)
    assert any(re.search(fault.finds, text) for text in found), found


# Those that a step with one and a half times a constant scale is traced to find.
OF_ANY_SCALE = ("frozen", "rounded", "too large", "slots")


@pytest.mark.parametrize("name", OF_ANY_SCALE)
@pytest.mark.slow
@pytest.mark.kernels
def test_a_fault_is_found_with_a_constant_scale_too(name: str) -> None:
    fault = FAULTS[name]
    control = Control("planted", "", fault.planted)
    found = drilled(Arm("planted", "constant", control), fault.task)
    assert any(re.search(fault.finds, text) for text in found), found


def test_few_values_or_other_types_are_not_judged() -> None:
    whole = np.arange(1, drills.FEW + 1, dtype=np.float32)
    assert drills._in_16_bits(whole)
    assert not drills._in_16_bits(whole[1:])
    assert not drills._in_16_bits(np.repeat(whole[1:], 2))
    assert not drills._in_16_bits(whole.astype(np.int32))
    assert not drills._in_16_bits(np.append(whole, np.float32(1 / 3)))
    assert drills._in_16_bits(np.append(whole, np.zeros(9, np.float32)))
    assert drills._in_16_bits(whole * np.float32(2.0**100))  # bfloat16 holds these
