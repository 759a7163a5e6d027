"""Negative controls: faults that the rule has to find, planted from outside.

A control changes the policy of a dynamic loss scale, or puts something else in the
place of one function while a step is traced; the package's own files stay as they are.
It is run like any setting and judged by the same rule, under which it must come out
different. No training loop and no verdict here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

import amp
from amp.loss_scaling import gradients, update
from amp.loss_scaling.scale import LONGEST


@dataclasses.dataclass(frozen=True, slots=True)
class Control:
    """One fault.

    Attributes:
      name: on the command line and in results.
      title: what is wrong, in words.
      planted: the scope in which steps are traced and taken.
      policy: what becomes of the policy with a dynamic loss scale.
    """

    name: str
    title: str
    planted: Callable[[], contextlib.AbstractContextManager[Any]] = (
        contextlib.nullcontext
    )
    policy: Callable[[amp.Policy], amp.Policy] = lambda policy: policy


@contextlib.contextmanager
def _instead(owner: Any, name: str, other: Any) -> Iterator[None]:
    """Has `owner` another attribute for a while, its own or over one it inherits."""
    own = vars(owner).get(name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _not_applied() -> contextlib.AbstractContextManager[None]:
    """The scale moves as it should, and nothing is multiplied or divided by it."""
    return _instead(gradients.Scaling, "scale", lambda self: tf.constant(1.0))


def _not_removed() -> contextlib.AbstractContextManager[None]:
    """Gradients stay multiplied by the scale; after an overflow they are 0."""

    def inverse(self: Any, scale: tf.Tensor, finite: tf.Tensor, dtype: Any) -> Any:
        return tf.where(finite, tf.ones([], dtype), tf.zeros([], dtype))

    return _instead(gradients.Scaling, "inverse", inverse)


def _not_skipped() -> contextlib.AbstractContextManager[None]:
    """After an overflow the optimizer updates all the same, with gradients of 0."""

    def run(concerns: Any, apply: Callable[[], Any], *others: Any) -> tf.Tensor:
        apply()
        return tf.constant(True)

    return _instead(update, "unless_overflow", run)


def _one_gradient_zeroed() -> contextlib.AbstractContextManager[None]:
    """Of each gradient call, the gradient of one weight in the middle is 0."""
    original = gradients.scaled

    @functools.wraps(original)
    def scaled(*args: Any, **kwargs: Any) -> list[Any]:
        found = list(original(*args, **kwargs))
        weights = [i for i, g in enumerate(found) if isinstance(g, tf.Tensor)]
        large = [i for i in weights if (found[i].shape.rank or 0) > 1] or weights
        place = large[len(large) // 2]
        found[place] = found[place] * 0.0
        return found

    return _instead(gradients, "scaled", scaled)


def _updates_in_16_bits() -> contextlib.AbstractContextManager[None]:
    """Weights are rounded to float16 after each update: there is no float32 copy."""
    owner = keras.optimizers.Optimizer
    original = owner.apply_gradients

    def apply_gradients(self: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(pairs)
        done = original(self, pairs, *args, **kwargs)
        for _, variable in pairs:
            half = tf.cast(variable.value, tf.float16)
            variable.assign(tf.cast(half, tf.float32))
        return done

    return _instead(owner, "apply_gradients", apply_gradients)


def _rule(**fields: Any) -> Callable[[amp.Policy], amp.Policy]:
    """A change of the dynamic loss scale of a policy."""

    def change(policy: amp.Policy) -> amp.Policy:
        rule = dataclasses.replace(policy.loss_scale, **fields)
        return dataclasses.replace(policy, loss_scale=rule)

    return change


CONTROLS = {
    control.name: control
    for control in (
        Control("not_scaled", "the scale moves and is never applied", _not_applied),
        Control("not_removed", "gradients stay scaled", _not_removed),
        Control(
            "never_grows",
            "the scale never grows",
            policy=_rule(growth_interval=LONGEST),
        ),
        Control("not_skipped", "an overflow does not skip the update", _not_skipped),
        # The nearest factor below 1: in float32 the product is the scale itself.
        Control(
            "never_backs_off",
            "the scale never backs off",
            policy=_rule(backoff=1.0 - 2.0**-53),
        ),
        Control("zeroed", "the gradient of one weight is 0", _one_gradient_zeroed),
        Control(
            "updates_in_16_bits", "weights are updated in 16 bits", _updates_in_16_bits
        ),
    )
}
