"""Drills find faults that training need not show, and nothing where nothing is wrong.

On the family of `tiny_family`, and on one with a second loss and optimizer. Faults are
planted as negative controls are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import thorough
import tiny_family

from amp.graph_rewrite.apply.casts import Casts
from amp.graph_rewrite.cost import resolution
from amp.integration import wrapping
from amp.integration.training import optimizer_hooks
from amp.loss_scaling import (
    DynamicLossScale,
    NoLossScale,
    backup,
    entries,
    finite_checks,
    gradients,
    scaler,
    update,
)
from convergence import drills, dynamics, settings
from convergence.arms import Arm
from convergence.controls import CONTROLS, Control, _instead, _rule
from convergence.task import Part, Task, simple

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


def batch_norm() -> Task:
    """A network whose every step moves statistics too."""
    data = tiny_family.load(tiny_family.SIZE, None)
    x = keras.Input((8,))
    hidden = keras.layers.Dense(16, "tanh", name="hidden")(x)
    normal = keras.layers.BatchNormalization(name="normal")(hidden)
    model = keras.Model(x, keras.layers.Dense(1, name="last")(normal))

    def loss(batch: Any) -> tf.Tensor:
        return tf.reduce_mean((model(batch[0], training=True) - batch[1]) ** 2)

    def batch(seed: int, step: int) -> Any:
        return data.x[step * 16 :][:32], data.y[step * 16 :][:32]

    return simple(model, loss, keras.optimizers.SGD(0.01, 0.9), batch, lambda: 0.0)


def looked_up() -> Task:
    """A network that reads rows of a table, some of them more than once."""
    data = tiny_family.load(tiny_family.SIZE, None)
    rows = np.random.default_rng(0).integers(0, 64, len(data.x))
    x = keras.Input((), dtype="int32")
    row = keras.layers.Embedding(64, 8, name="table")(x)
    hidden = keras.layers.Dense(16, "tanh", name="hidden")(row)
    model = keras.Model(x, keras.layers.Dense(1, name="last")(hidden))

    def loss(batch: Any) -> tf.Tensor:
        return tf.reduce_mean((model(batch[0]) - batch[1]) ** 2)

    def batch(seed: int, step: int) -> Any:
        return rows[step * 16 :][:32], data.y[step * 16 :][:32]

    return simple(model, loss, keras.optimizers.SGD(0.01, 0.9), batch, lambda: 0.0)


def low_losses() -> Task:
    """Losses of examples are held in 16 bits, and their mean is not."""
    task = looked_up()
    parts = task.parts(0)

    def loss(batch: Any) -> tf.Tensor:
        errors = (task.model(batch[0]) - batch[1]) ** 2
        half = tf.cast(tf.cast(errors, tf.float16), tf.float32)
        return tf.reduce_mean(errors + tf.stop_gradient(half - errors))

    low = [dataclasses.replace(parts[0], loss=loss)]
    return dataclasses.replace(task, parts=lambda stage: low)


def noted_statistics() -> Task:
    """`batch_norm`, whose graphs know their moving means."""
    task = batch_norm()
    kept = [v.value for v in task.model.non_trainable_variables if v.dtype == "float32"]

    def noted(part: Part) -> Part:
        def loss(batch: Any) -> tf.Tensor:
            found = part.loss(batch)
            for each in kept:
                tf.compat.v1.add_to_collection("moving", each)
            return found

        return dataclasses.replace(part, loss=loss)

    return dataclasses.replace(
        task, parts=lambda stage: [*map(noted, task.parts(stage))]
    )


def low_loss() -> Task:
    """A loss that is held in 16 bits, by whose gradients nothing shows."""
    task = one_loss()

    def low(part: Part) -> Part:
        def loss(batch: Any) -> tf.Tensor:
            found = part.loss(batch)
            half = tf.cast(tf.cast(found, tf.bfloat16), tf.float32)
            return found + tf.stop_gradient(half - found)

        return dataclasses.replace(part, loss=loss)

    return dataclasses.replace(task, parts=lambda stage: [*map(low, task.parts(stage))])


def drilled(
    arm: Arm, task: Callable[[], Task] = one_loss, dtype: str = "float16"
) -> list[str]:
    keras.utils.set_random_seed(1)
    policy = arm.policy(dtype=dtype, emulate=True, steps=STEPS)
    assert policy is not None
    rule = dynamics.Rule(*arm.told(dtype, STEPS)["scaling"])
    return drills.faults(task(), policy, arm.planted, rule, 1)


@pytest.mark.parametrize("dtype", thorough.but(("float16",), settings.DTYPES))
@pytest.mark.parametrize("name", thorough.but(("dynamic",), ("constant", "dynamic")))
@pytest.mark.parametrize("task", [one_loss, two_losses, batch_norm, looked_up])
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


def rows_rounded() -> Any:
    """One gradient, of rows, is rounded once its scale is removed."""

    def change(grad: Any) -> Any:
        if not isinstance(grad, tf.IndexedSlices):
            return grad
        low = tf.cast(tf.cast(grad.values, tf.bfloat16), tf.float32)
        return tf.IndexedSlices(low, grad.indices, grad.dense_shape)

    return _changed(change)


def larger() -> Any:
    """By a hundredth."""
    return _changed(lambda grad: grad * 1.01)


def _changed_scaled(change: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """Scaled gradients are changed."""
    original = gradients._unscaled

    def unscaled(scaling: Any, grads: Any, *others: Any) -> Any:
        return original(scaling, [change(grad) for grad in grads], *others)

    return _instead(gradients, "_unscaled", unscaled)


def scaled_rounded() -> Any:
    """To bfloat16, in a run in float16."""
    return _changed_scaled(lambda g: tf.cast(tf.cast(g, tf.bfloat16), tf.float32))


def unscaled_by_the_first() -> Any:
    """All gradients of a graph are unscaled by the scale of its first gradient call."""
    original, first = gradients._unscaled, dict[Any, tf.Tensor]()

    def unscaled(scaling: Any, grads: Any, scale: tf.Tensor, *others: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        return original(scaling, grads, first.setdefault(graph, scale), *others)

    return _instead(gradients, "_unscaled", unscaled)


def clipped() -> Any:
    """Finite values are held under a quarter of float16's largest."""

    def clip(grad: tf.Tensor) -> tf.Tensor:
        held = tf.clip_by_value(grad, -(2.0**14), 2.0**14)
        return tf.where(tf.math.is_finite(grad), held, grad)

    return _changed_scaled(clip)


def rows_not_added() -> Any:
    """Whether rows are finite is asked of each alone."""
    return _instead(finite_checks, "_deduplicated", finite_checks.values_of)


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
        calls = [call for c in concerns for call in c.calls or ()]
        flags = [tf.reduce_all(call.finite) for call in calls]
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

    def concerns(*given: Any) -> Any:
        seen.extend(original(*given))
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


def negative_is_finite() -> Any:
    return _instead(finite_checks, "_is_finite", lambda values: values < math.inf)


def one_value_is_asked(at: int) -> Any:
    """Only the first value of a gradient, or the last, is looked at."""
    original = finite_checks._is_finite

    def is_finite(values: tf.Tensor) -> tf.Tensor:
        return original(tf.reshape(values, [-1])[at:][:1])

    return _instead(finite_checks, "_is_finite", is_finite)


def gradient_halves() -> Any:
    """The hook for gradients halves one of them, in float32 too."""
    hook = tf.GradientTape.gradient

    def halved(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = hook(self, *args, **kwargs)
        if isinstance(found, list):
            found[len(found) // 2] *= 0.5
        return found

    return _instead(tf.GradientTape, "gradient", functools.wraps(hook)(halved))


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


def stops_scaling(calls: int) -> Any:
    """After so many gradient calls nothing is scaled any more."""
    original = gradients.Scaling.scale

    def scale(self: Any) -> tf.Tensor:
        found = original(self)
        return tf.where(self.scaler.tally[0] >= calls, tf.ones_like(found), found)

    return _instead(gradients.Scaling, "scale", scale)


def stops_skipping() -> Any:
    """After 20 gradient calls an overflow skips no update."""
    original = update._pending

    def pending(concern: Any) -> tf.Tensor:
        return original(concern) & (concern.scaler.tally[0] < 20)

    return _instead(update, "_pending", pending)


def skips_now_and_then() -> Any:
    """One gradient call in 40 is taken for an overflow."""
    original = scaler.Scaler.step

    def step(self: Any, finite: tf.Tensor, **options: Any) -> Any:
        return original(self, finite & (self.tally[0] % 40 != 39), **options)

    return _instead(scaler.Scaler, "step", step)


def holds_back() -> Any:
    """One update in 40 is left out, of which nobody is told."""
    original = update.unless_overflow

    def run(concerns: Any, apply: Callable[[], Any], *others: Any) -> tf.Tensor:
        due = concerns[0].scaler.tally[0] % 40 != 39
        return original(concerns, lambda: tf.cond(due, apply, lambda: None), *others)

    return _instead(update, "unless_overflow", run)


def _hook_changes(change: Callable[[list[Any]], list[Any]]) -> Any:
    """The hook for optimizers hands on other gradients, in float32 too."""
    original = optimizer_hooks._keras_apply
    owner = keras.optimizers.Optimizer
    plain = wrapping.original("BaseOptimizer.apply")

    def changed(self: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(self, change(list(grads)), *args, **kwargs)

    return _instead(owner, "apply", original(functools.wraps(plain)(changed)))


def hook_rounds() -> Any:
    def low(grad: Any) -> Any:
        return tf.cast(tf.cast(grad, tf.float16), tf.float32)

    return _hook_changes(lambda grads: [*map(low, grads)])


def hook_forgets() -> Any:
    def without(grads: list[Any]) -> list[Any]:
        return [g * float(i != len(grads) // 2) for i, g in enumerate(grads)]

    return _hook_changes(without)


def second_flag() -> Any:
    """An overflow of the second variable is not looked for."""
    original = gradients.all_of

    def all_of(flags: Any) -> Any:
        kept = list(flags.items())
        return original(dict(kept[:1] + kept[2:]))

    return _instead(gradients, "all_of", all_of)


def scale_not_restored() -> Any:
    original = scaler.Scaler.restore

    def restore(self: Any, field: str, value: tf.Tensor) -> Any:
        return tf.no_op() if field == "scale" else original(self, field, value)

    return _instead(scaler.Scaler, "restore", restore)


def _forgotten(what: str) -> Any:
    """What waits for a scaler that is made later is not given to it."""
    return _instead(backup, what, lambda *_: None)


def scales_nothing_by_default() -> Any:
    return _instead(resolution, "DynamicLossScale", NoLossScale)


def scale_not_saved() -> Any:
    saved = {key: value for key, value in entries.SAVED.items() if key != "scale"}
    return _instead(entries, "SAVED", saved)


def default(**fields: Any) -> Any:
    """Another default of the dynamic rule."""
    original = DynamicLossScale.__init__

    def init(self: Any, *args: Any, **given: Any) -> None:
        original(self, *args, **{**fields, **given})

    return _instead(DynamicLossScale, "__init__", init)


@contextlib.contextmanager
def statistics_in_16_bits() -> Iterator[None]:
    """What batch norm keeps is rounded after each call."""
    owner = keras.layers.BatchNormalization
    original = owner.call

    def call(self: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        found = original(self, *args, **kwargs)
        for kept in (self.moving_mean, self.moving_variance):
            kept.assign(tf.cast(tf.cast(kept.value, tf.bfloat16), tf.float32))
        return found

    with _instead(owner, "call", call):
        yield


@contextlib.contextmanager
def means_in_16_bits() -> Iterator[None]:
    """The means that batch norm divides by are rounded, and what it keeps is not."""
    owner = keras.layers.BatchNormalization
    original = owner._moments

    def moments(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        return [tf.cast(tf.cast(each, tf.float16), tf.float32) for each in found]

    with _instead(owner, "_moments", moments):
        yield


def statistics_forgotten() -> Any:
    """A step that is skipped sets moving means to 0."""
    original = update.unless_overflow

    def run(concerns: Any, *others: Any) -> tf.Tensor:
        pending = tf.stack([update._pending(concern) for concern in concerns])
        graph = tf.compat.v1.get_default_graph()
        for kept in graph.get_collection("moving"):
            kept.assign(tf.where(tf.reduce_any(pending), tf.zeros_like(kept), kept))
        return original(concerns, *others)

    return _instead(update, "unless_overflow", run)


def not_rounded() -> Any:
    """The plan says what is in 16 bits, and emulation rounds none of it."""
    return _instead(Casts, "rounded", lambda self, edge: edge)


def _of_policy(**fields: Any) -> Callable[[Any], Any]:
    return lambda policy: dataclasses.replace(policy, **fields)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault, and a pattern of what a drill says of it."""

    finds: str
    planted: Callable[[], Any] = contextlib.nullcontext
    policy: Callable[[Any], Any] = lambda policy: policy
    task: Callable[[], Task] = one_loss
    everywhere: bool = False  # in float32 too, and not in steps alone


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
    "negative": Fault("that is -inf moved", negative_is_finite),
    "first value": Fault("moved", lambda: one_value_is_asked(0)),
    "last value": Fault("moved", lambda: one_value_is_asked(-1)),
    "infinite": Fault("inf moved", infinite_is_finite),
    "counting": Fault("good steps are counted, where 0 were due", goes_on_counting),
    "not zeroed": Fault("gradients are not 0", not_zeroed),
    "stops scaling": Fault(
        "in step .* of a row gradients are not those", lambda: stops_scaling(20)
    ),
    "stops scaling late": Fault(
        "in step .* of a row gradients are not those", lambda: stops_scaling(5000)
    ),
    "stops skipping": Fault("steps in a row, after .* moved", stops_skipping),
    "skips": Fault("of a row without an overflow the scale is", skips_now_and_then),
    "holds back": Fault("of a row an update is skipped", holds_back),
    "hook rounds": Fault("in float32 the hooks", hook_rounds, everywhere=True),
    "hook rounds in scope": Fault("in a mixed scope .* the hooks", hook_rounds),
    "unscaled": Fault(
        "a gradient has no loss scale", policy=_of_policy(loss_scale=NoLossScale())
    ),
    "hook forgets": Fault("in float32 the hooks", hook_forgets, everywhere=True),
    "gradient halves": Fault("in float32 the hooks", gradient_halves, everywhere=True),
    "second flag": Fault("inf moved", second_flag),
    "not restored": Fault(
        "a checkpoint gives scale 512", scale_not_restored, everywhere=True
    ),
    "not saved": Fault(
        "a checkpoint gives scale 512", scale_not_saved, everywhere=True
    ),
    "forgotten by name": Fault(
        "after a restart state_dict gives scale 32768",
        lambda: _forgotten("taken_by_name"),
        everywhere=True,
    ),
    "forgotten of weights": Fault(
        "after a restart a weight file gives scale 32768",
        lambda: _forgotten("taken"),
        everywhere=True,
    ),
    "scales nothing": Fault(
        "by default float16 has the loss scale None",
        scales_nothing_by_default,
        everywhere=True,
    ),
    "seldom": Fault(
        "by default growth_interval is 4000",
        lambda: default(growth_interval=4000),
        everywhere=True,
    ),
    "minimum": Fault("at the least scale the scale is", policy=_rule(minimum=2.0**-9)),
    "maximum": Fault(
        "at the largest scale the scale is", policy=_rule(maximum=2.0**30)
    ),
    "statistics": Fault(
        "moving_mean.* is held in 16 bits", statistics_in_16_bits, task=batch_norm
    ),
    "means": Fault(
        "what .*moving_mean.* moves by is held in 16 bits",
        means_in_16_bits,
        task=batch_norm,
    ),
    "forgets": Fault(
        "after .*moving_mean.* moves otherwise than usual",
        statistics_forgotten,
        task=noted_statistics,
    ),
    "loss": Fault("a loss is held in 16 bits", task=low_loss),
    "losses": Fault("the loss of one example is held in 16 bits", task=low_losses),
    "rows rounded": Fault(
        "the unscaled gradient of table/embeddings is held in 16 bits",
        rows_rounded,
        task=looked_up,
    ),
    "rows not added": Fault(
        "two equal rows of a gradient whose sum is inf moved",
        rows_not_added,
        task=looked_up,
    ),
    "scaled rounded": Fault("the scaled gradient of .* in bfloat16", scaled_rounded),
    "by the first": Fault(
        "a scale of loss 2 .* changes gradients", unscaled_by_the_first, task=two_losses
    ),
    "clipped": Fault("the scale 2.* changes gradients by", clipped),
    "larger": Fault("gradients are 1.01 times those in float32", larger),
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


# Those that are found by what the type holds; all others do not depend on it.
OF_THE_TYPE = ("rounded", "not rounded", "slots", "hook rounds", "statistics", "loss")
OF_THE_TYPE += ("means", "losses", "rows rounded")
CASES = [(name, "float16") for name in FAULTS]
CASES += [(name, "bfloat16") for name in OF_THE_TYPE]
# One of each thing that drills look at.
QUICK = ("read again", "slots", "of all", "loss", "stops skipping", "hook forgets")
QUICK += ("not restored", "means", "losses", "rows not added", "clipped", "larger")
QUICK += ("unscaled", "hook rounds in scope")


@pytest.mark.parametrize(
    ("name", "dtype"), thorough.but([(name, "float16") for name in QUICK], CASES)
)
@pytest.mark.slow
@pytest.mark.kernels
def test_a_planted_fault_is_found(name: str, dtype: str) -> None:
    fault = FAULTS[name]
    everywhere = fault.planted if fault.everywhere else contextlib.nullcontext
    inside = contextlib.nullcontext if fault.everywhere else fault.planted
    control = Control("planted", "", inside, fault.policy)
    with everywhere():
        found = drilled(Arm("planted", "dynamic", control), fault.task, dtype)
    assert any(re.search(fault.finds, text) for text in found), found


# A gradient that is 0 is what a step computes: other clauses find it.
CONTROLLED = [name for name in CONTROLS if name != "zeroed"]


@pytest.mark.parametrize("name", thorough.but(("never_grows",), CONTROLLED))
@pytest.mark.slow
@pytest.mark.kernels
def test_negative_controls_are_found(name: str) -> None:
    assert drilled(Arm(name, "dynamic", CONTROLS[name]))


# Those that a step with one and a half times a constant scale is traced to find.
OF_ANY_SCALE = ("frozen", "rounded", "too large", "slots", "stops scaling")
OF_ANY_SCALE += ("stops scaling late", "stops skipping", "holds back")


@pytest.mark.parametrize("name", thorough.but(OF_ANY_SCALE[:1], OF_ANY_SCALE))
@pytest.mark.slow
@pytest.mark.kernels
def test_a_fault_is_found_with_a_constant_scale_too(name: str) -> None:
    fault = FAULTS[name]
    control = Control("planted", "", fault.planted)
    found = drilled(Arm("planted", "constant", control), fault.task)
    assert any(re.search(fault.finds, text) for text in found), found
