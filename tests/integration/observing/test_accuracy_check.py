"""`AccuracyCheck`: the copies compute what the step computes, of any kind of model."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import thorough

import amp
from amp.graph_rewrite.candidates.context import FORMATS
from amp.integration.observing import (
    accuracy,
    accuracy_check,
    checks,
    plan_nodes,
    result_judge,
)
from amp.integration.observing.accuracy_check import AccuracyCheck, Checked
from amp.integration.observing.value_copies import ValueCopies

RANDOM = np.random.default_rng(1)


def dense() -> tuple[Any, np.ndarray, np.ndarray]:
    layers = [keras.layers.Dense(64, "relu"), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(4)])
    return model, RANDOM.normal(size=[64, 64]), RANDOM.normal(size=[64, 4])


def dropped_out() -> tuple[Any, np.ndarray, np.ndarray]:
    layers = [keras.layers.Dense(32, "gelu"), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(4)])
    return model, RANDOM.normal(size=[64, 8]), RANDOM.normal(size=[64, 4])


def embedded() -> tuple[Any, np.ndarray, np.ndarray]:
    layers = [keras.layers.Embedding(32, 16), keras.layers.LSTM(16)]
    model = keras.Sequential([*layers, keras.layers.Dense(4)])
    return model, RANDOM.integers(0, 32, [64, 8]), RANDOM.normal(size=[64, 4])


def convolved() -> tuple[Any, np.ndarray, np.ndarray]:
    layers = [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.MaxPool2D()]
    model = keras.Sequential(
        [*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)]
    )
    return model, RANDOM.normal(size=[32, 8, 8, 3]), RANDOM.normal(size=[32, 4])


MODELS = (dense, dropped_out, embedded, convolved)


@pytest.mark.parametrize("make", thorough.but((dropped_out, embedded), MODELS))
@pytest.mark.parametrize(
    ("dtype", "jit"),
    thorough.but(
        (("float16", False), ("bfloat16", True)),
        [("bfloat16", False), ("float16", False), ("bfloat16", True)],
    ),
)
def test_fit_of_keras_is_checked(
    make: Callable[[], tuple[Any, np.ndarray, np.ndarray]], dtype: str, jit: bool
) -> None:
    keras.utils.set_random_seed(1)
    model, x, y = make()
    model.compile("sgd", "mse", jit_compile=jit)
    # However small the model, all that may be is 16-bit.
    forced = {"assignment": "all", "check": True}
    with amp.mixed_precision_scope(dtype=dtype, emulate=True, **forced):
        model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    (report,) = [r for r in amp.reports() if r.accuracy is not None]
    assert report.accuracy.error is not None, report.accuracy.text
    variables = len(model.trainable_variables)
    assert 0 < len(report.accuracy.worst) <= min(5, variables)
    # Rounding is what the figures are of, so none of them is 0.
    assert 0 < report.accuracy.products < 0.5
    assert 0 < report.accuracy.error < 0.5
    updates = int(model.optimizer.iterations)
    assert updates == 2 * -(-len(x) // 16)


@pytest.mark.parametrize("jit", [False, True])
def test_several_steps_in_one_execution_of_keras_are_checked(jit: bool) -> None:
    """They are in a branch of a loop."""
    keras.utils.set_random_seed(1)
    model, x, y = dense()
    model.compile("sgd", "mse", jit_compile=jit, steps_per_execution=2)
    forced = {"assignment": "all", "check": True}
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True, **forced):
        model.fit(x, y, batch_size=16, epochs=3, verbose=0)
    (report,) = [r for r in amp.reports() if r.accuracy is not None]
    assert report.accuracy.error is not None, report.accuracy.text
    assert 0 < report.accuracy.products < 0.5
    assert int(model.optimizer.iterations) == 3 * -(-len(x) // 16)


def test_the_copies_give_what_the_step_itself_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In float32, by plain gradient descent: the change of a weight is its gradient."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)])
    x, y = RANDOM.normal(size=[16, 8]), RANDOM.normal(size=[16, 2])
    model.compile(keras.optimizers.SGD(2.0**-3), "mse", jit_compile=False)
    model.build([None, 8])
    seen: list[Sequence[np.ndarray]] = []
    honest = ValueCopies._scaled

    def spied(self: ValueCopies, function: bytes) -> Sequence[np.ndarray]:
        seen.append(honest(self, function))
        return seen[-1]

    monkeypatch.setattr(ValueCopies, "_scaled", spied)
    weights = []
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True, deny=["MatMul"]):
        model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    assert not seen  # nothing in 16 bits, nothing to compare
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True):
        for _ in range(2):
            weights.append([np.array(w) for w in model.trainable_variables])
            model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    exact, products, planned = seen[:3]
    # The copies ran at the weights after the step that took the batch.
    weights.append([np.array(w) for w in model.trainable_variables])
    changes = [(a - b) * 2.0**3 for a, b in zip(weights[1], weights[2], strict=True)]
    sizes = sorted(float(np.linalg.norm(grad)) for grad in planned)
    for found, wanted in zip(
        sizes, sorted(float(np.linalg.norm(c)) for c in changes), strict=True
    ):
        # Grappler may order float32 sums otherwise than a copy has them; a value that
        # is rounded to bfloat16 afterwards may then fall to its neighbour, 2**-8 off.
        assert abs(found - wanted) <= 2.0**-8 * wanted
    assert len(exact) == len(products) == len(planned) == 4


def test_one_copy_of_the_gradients_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of float32; of others one variable's gradient after the other is read."""
    width, count, peaks = 1024, 8, []
    honest = AccuracyCheck.compare

    def traced(check: AccuracyCheck) -> Checked:
        tracemalloc.start()
        try:
            return honest(check)
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    monkeypatch.setattr(AccuracyCheck, "compare", traced)
    layers = [keras.layers.Dense(width, use_bias=False) for _ in range(count)]
    model = keras.Sequential(layers)
    x = RANDOM.normal(size=[4, width])
    model.compile("sgd", "mse", jit_compile=False)
    # A dynamic scale: float32 is also computed without it.
    with amp.mixed_precision_scope(dtype="float16", emulate=True):
        model.fit(x, x, batch_size=4, epochs=2, verbose=0)
    (peak,) = peaks
    one = 4 * width**2
    # While a gradient is read, a loop still has the one before it.
    assert count * one < peak < (count + 3) * one


Bend = Callable[[tf.Tensor], tf.Tensor]
BENT: dict[str, Bend] = {
    "clipped": lambda dy: tf.clip_by_norm(dy, 0.01),
    "its sign": lambda dy: 0.01 * tf.sign(dy),
    "cut off": lambda dy: tf.where(tf.abs(dy) > 1.0, dy, 0.0),  # 0 without a scale
    "left out": lambda dy: tf.ones_like(dy) * 0.01,
}
LINEAR: dict[str, Bend] = {
    "reversed": lambda dy: -0.5 * dy,
    "normed": lambda dy: dy + dy * tf.norm(dy) / (tf.norm(dy) + 2.0**-100),
    "dropped out": lambda dy: tf.nn.dropout(dy, 0.5),
}


def unseen(bend: Bend) -> Bend:
    """The same beside what is made of the bits, of which nothing is known."""

    def once(dy: tf.Tensor) -> tf.Tensor:
        return bend(dy) + 0.0 * tf.bitcast(tf.bitcast(dy, tf.int32), tf.float32)

    return once


def stepped(bend: Bend, calls: int) -> list[tf.Tensor]:
    """The gradients of the last of some calls; no weight is changed."""
    keras.utils.set_random_seed(1)
    first = tf.Variable(tf.random.normal([8, 16]), name="first")
    last = tf.Variable(tf.random.normal([16, 1]), name="last")
    x, y = tf.random.normal([32, 8]), tf.random.normal([32, 1])

    @tf.custom_gradient
    def bent(hidden: tf.Tensor) -> tuple[tf.Tensor, Bend]:
        return hidden, bend

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            error = tf.tanh(bent(x @ first)) @ last - y
            loss = tf.reduce_mean(error**2)
        grads = tape.gradient(loss, [first, last])
        first.assign_sub(0.0 * grads[0])
        last.assign_sub(0.0 * grads[1])
        return grads

    return [step(x, y) for _ in range(calls)][-1]


def assert_near(found: list[tf.Tensor], wanted: list[tf.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        # Sums of up to 32 products, each rounded to 2**-11; signs of small ones turn.
        assert np.linalg.norm(one - other) <= 2.0**-5 * np.linalg.norm(other)


@pytest.mark.parametrize("bend", BENT.values(), ids=list(BENT))
def test_a_gradient_that_depends_on_the_scale_is_scaled_no_more(
    bend: Bend, caplog: pytest.LogCaptureFixture
) -> None:
    """From the third step on it is what it is in float32, but for rounding."""
    wanted = stepped(bend, 1)
    with amp.mixed_precision_scope(dtype="float16", emulate=True, check=True):
        found = stepped(unseen(bend), 4)
    said = [text for text in caplog.messages if " rests: " in text]
    assert len(said) == 1
    assert "the gradients of first depend on the loss scale" in said[0]
    assert_near(found, wanted)


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("bend", BENT.values(), ids=list(BENT))
def test_one_that_is_seen_to_depend_on_it_meets_no_scale_from_the_first_step_on(
    bend: Bend, calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = stepped(bend, 1)
    with amp.mixed_precision_scope(dtype="float16", emulate=True, check=True):
        assert_near(stepped(bend, calls), wanted)
    assert not [text for text in caplog.messages if " rests: " in text]


@pytest.mark.parametrize("bend", LINEAR.values(), ids=list(LINEAR))
def test_a_gradient_that_does_not_stays_scaled(
    bend: Bend, caplog: pytest.LogCaptureFixture
) -> None:
    with amp.mixed_precision_scope(dtype="float16", emulate=True, check=True):
        stepped(bend, 4)
    assert not [text for text in caplog.messages if " rests: " in text]
    assert any(r.accuracy and r.accuracy.error is not None for r in amp.reports())


def test_a_threshold_times_the_scale_stays_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = stepped(BENT["clipped"], 1)

    def clipped(dy: tf.Tensor) -> tf.Tensor:
        scaler = amp.loss_scaling.scalers()[-1]
        return tf.clip_by_norm(dy, 0.01 * scaler.scale)

    with amp.mixed_precision_scope(dtype="float16", emulate=True, check=True):
        found = stepped(clipped, 4)
    assert not [text for text in caplog.messages if " rests: " in text]
    assert_near(found, wanted)


@pytest.mark.parametrize("minimum", [1.0, 2.0**-14])
def test_a_scale_that_the_job_cannot_come_to_is_not_checked_with(
    minimum: float,
) -> None:
    """A sum over 16,384 examples needs a scale below 1 in float16."""
    x, w = tf.ones([16384, 2]), tf.Variable(tf.zeros([2, 1]))
    optimizer = keras.optimizers.SGD(0.05 / 16384)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.matmul(x, w) - 16.0))
        optimizer.apply(tape.gradient(loss, [w]), [w])

    rule = amp.loss_scaling.DynamicLossScale(minimum=minimum)
    forced = {"emulate": True, "assignment": "all", "check": True}
    with amp.mixed_precision_scope(dtype="float16", loss_scale=rule, **forced):
        for _ in range(40):
            step()
    (scaler,) = amp.loss_scaling.scalers()
    # The second gradient is 0.8 * 2 * 16 * 16384; 2**-3 of it is the first below 65504.
    # Either the scale comes down to that, or the products are in float32.
    skipped = int(scaler.skipped_steps)
    assert skipped == (0 if minimum == 1.0 else 18)
    # A step leaves 0.8 of what is missing; a gradient's rounding does not add up.
    np.testing.assert_allclose(w.numpy(), 8.0, rtol=0.8 ** (40 - skipped) + 2.0**-10)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_no_product_in_16_bits_bears_stays_float32(dtype: str) -> None:
    """A product that is 1.0002 is 1 in both types, and the logarithm of what is left
    infinite.
    """
    x = np.ones((512, 512), "f4")
    layers = [tf.Variable(x * total / 512) for total in (1.0, 1.0, np.float32(1.0002))]
    optimizer = keras.optimizers.SGD(1e-12)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            h = x
            for weights in layers:
                h = tf.matmul(h, weights)
            loss = tf.reduce_mean(tf.math.log(h - 1.0))
        optimizer.apply_gradients(zip(tape.gradient(loss, layers), layers, strict=True))
        return loss

    with amp.mixed_precision_scope(dtype=dtype, emulate=True, check=True):
        losses = [float(step()) for _ in range(6)]
    assert np.isfinite(losses).all()
    assert int(optimizer.iterations) == 6
    (report,) = [r for r in amp.reports() if r.accuracy is not None]
    assert "with products in 16 bits they are not" in report.accuracy.text
    assert report.nodes_low == 0
    assert report.verdict.startswith("left in float32: gradients are finite in float32")


MATRIX = RANDOM.normal(size=[64, 64]).astype("f") / 8
FORCED = {"dtype": "bfloat16", "emulate": True, "assignment": "all", "check": True}


def network(x: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.tanh(tf.matmul(x, MATRIX)), MATRIX)


def difference(x: tf.Tensor) -> tf.Tensor:
    """A derivative by finite differences, which 16 bits cannot tell."""
    step = 1e-3
    return (network(x + step) - network(x - step)) / (2 * step)


@pytest.mark.parametrize("by_tape", [False, True])
def test_results_that_are_all_rounding_stay_float32(by_tape: bool) -> None:
    """Unless a tape takes a gradient of them: training bears more."""
    function, x = tf.function(difference), tf.random.normal([32, 64], seed=1)
    exact, found = difference(x), []
    with amp.mixed_precision_scope(**FORCED):
        for _ in range(4):
            with tf.GradientTape() if by_tape else contextlib.nullcontext() as tape:
                if tape is not None:
                    tape.watch(x)
                found.append(function(x))
    off = [float(tf.norm(each - exact) / tf.norm(exact)) for each in found]
    if by_tape:
        assert min(off) > 0.5
        return
    assert max(off) < 1e-2  # that is float32's own rounding of it
    (report,) = amp.reports()
    assert report.accuracy.text.startswith("results off by 0 at most; ")
    assert "MatMul" not in {d.op for d in report.decisions if d.dtype == "bfloat16"}


def test_only_what_is_at_fault_stays_float32() -> None:
    @tf.function
    def both(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return network(x), difference(x)

    x = tf.random.normal([32, 64], seed=1)
    with amp.mixed_precision_scope(**FORCED):
        for _ in range(3):
            found, off = both(x)
    exact = difference(x)
    assert float(tf.norm(off - exact) / tf.norm(exact)) < 1e-2
    error = float(tf.norm(found - network(x)) / tf.norm(network(x)))
    assert 2.0**-12 < error < result_judge.most_off(2.0**-8)
    (report,) = amp.reports()
    kept = [d for d in report.decisions if d.rule == "accuracy"]
    assert len(kept) == report.accuracy.kept > 0
    assert all("off by" in d.cause for d in kept)
    assert report.accuracy.error < result_judge.most_off(2.0**-8)


def phased(factor: float, weights: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """A product whose result is the phase of a sine, before two others."""

    def model(x: tf.Tensor) -> tf.Tensor:
        first, second, third = weights
        turned = tf.sin(factor * tf.matmul(x, first, name="moved"))
        return tf.matmul(tf.tanh(tf.matmul(turned, second)), third)

    return model


@pytest.mark.parametrize(("dtype", "factor"), [("bfloat16", 64), ("float16", 512)])
@pytest.mark.parametrize("trains", [True, False])
def test_a_product_whose_rounding_a_steep_function_multiplies_stays_float32(
    dtype: str, factor: float, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other does, as theirs is all of the error that is left."""
    keras.utils.set_random_seed(1)
    weights = [tf.Variable(tf.random.normal([64, 64]) / 8) for _ in range(3)]
    model, x = phased(factor, weights), tf.random.normal([32, 64])
    optimizer = keras.optimizers.SGD(0.0)

    def loss_of(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    def run() -> Any:
        with amp.mixed_precision_scope(**{**FORCED, "dtype": dtype}):
            function = tf.function(loss_of if trains else model)
            for _ in range(3):
                function(x)
        *_, report = amp.reports()
        high = [d.node for d in report.decisions if d.rule == "accuracy"]
        return report.accuracy, high

    outcome, high = run()
    assert high == ["moved"]
    assert outcome.kept == 1
    assert (
        outcome.error < accuracy.ONE * FORMATS[dtype].unit
    )  # of which nothing is asked
    monkeypatch.setattr(plan_nodes, "before_steep", lambda *_: [])
    planted, _ = run()
    if trains:  # products are the yardstick
        assert planted.error > accuracy.ONE * outcome.error
    else:  # so that nothing is left in 16 bits
        assert planted.kept > outcome.kept


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_phase_of_a_sine_may_be_rounded_where_it_is_small(dtype: str) -> None:
    weights = [tf.Variable(tf.random.normal([64, 64], seed=1) / 8) for _ in range(3)]
    function = tf.function(phased(1.0, weights))
    with amp.mixed_precision_scope(**{**FORCED, "dtype": dtype}):
        for _ in range(3):
            function(tf.random.normal([32, 64], seed=2))
    (report,) = amp.reports()
    assert report.accuracy.kept == 0
    assert {d.dtype for d in report.decisions if d.op == "MatMul"} == {dtype}


def test_results_that_rounding_leaves_alone_are_16_bit() -> None:
    function, x = tf.function(network), tf.random.normal([32, 64], seed=1)
    with amp.mixed_precision_scope(**FORCED):
        for _ in range(3):
            function(x)
    (report,) = amp.reports()
    assert report.accuracy.kept == 0
    assert 0 < report.accuracy.error < result_judge.most_off(2.0**-8)
    assert {d.dtype for d in report.decisions if d.op == "MatMul"} == {"bfloat16"}


def test_updates_by_hand_may_be_off_by_as_much_as_gradients() -> None:
    """What is written is no result: it may be a gradient that nobody marked."""
    weight = tf.Variable(tf.zeros([64, 64]))

    @tf.function
    def step(x: tf.Tensor) -> None:
        large = tf.matmul(x, MATRIX)
        weight.assign_add(large - 0.97 * tf.matmul(x, MATRIX.round(3)))

    with amp.mixed_precision_scope(**FORCED):
        for _ in range(3):
            step(tf.random.normal([64, 64], seed=1))
    (report,) = amp.reports()
    assert report.accuracy.kept == 0
    assert result_judge.most_off(2.0**-8) < report.accuracy.error < result_judge.WRITTEN


def test_a_call_that_takes_long_is_not_made_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accuracy_check, "LONGEST", 0.0)
    function, x = tf.function(network), tf.random.normal([32, 64], seed=1)
    with amp.mixed_precision_scope(**FORCED):
        for _ in range(3):
            function(x)
    (report,) = amp.reports()
    assert report.accuracy.text == "not checked: a call takes 0 s in float32"
    assert report.rewritten


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_what_keras_evaluates_and_predicts_is_compared(jit: bool, steps: int) -> None:
    keras.utils.set_random_seed(1)
    model, x, y = dense()
    model.compile("sgd", "mse", jit_compile=jit, steps_per_execution=steps)
    with amp.mixed_precision_scope(**FORCED):
        model.evaluate(x, y, batch_size=16, verbose=0)
        model.predict(x, batch_size=16, verbose=0)
    found = [r.accuracy for r in amp.reports() if r.accuracy is not None]
    assert len(found) == 2
    assert all(0 < each.error < result_judge.most_off(2.0**-8) for each in found)


def test_a_dataset_that_a_call_reads_is_read_once() -> None:
    drawn = []

    def numbers() -> Iterator[np.ndarray]:
        for number in range(1000):
            drawn.append(number)
            yield np.full([4, 64], number, "f")

    data = tf.data.Dataset.from_generator(
        numbers, output_signature=tf.TensorSpec([4, 64])
    ).take(4)

    @tf.function
    def evaluate() -> tf.Tensor:
        total = tf.zeros([4, 64])
        for x in data:
            total += network(x)
        return total

    with amp.mixed_precision_scope(**FORCED):
        for _ in range(4):
            evaluate()
    assert len(drawn) == 4 * 4


def test_inputs_of_functions_that_are_called_once_are_not_kept() -> None:
    """But of the newest: a loop over batches of all lengths has a function for each."""
    function, freed = tf.function(network), []
    with amp.mixed_precision_scope(**FORCED):
        for rows in range(checks.BATCHES + 3):
            x = tf.ones([rows + 2, 64])
            freed.append(weakref.ref(x))
            function(x)
            del x
        gc.collect()
        kept = [number for number, ref in enumerate(freed) if ref() is not None]
        assert kept == [*range(3, checks.BATCHES + 3)]
        for _ in range(2):  # what was dropped is recorded anew
            function(tf.ones([2, 64]))
    assert len([r for r in amp.reports() if r.accuracy is not None]) == 1


@pytest.mark.parametrize("dtype", [tf.float64, tf.complex64])
def test_other_numbers_are_compared_too(dtype: tf.DType) -> None:
    x = tf.random.normal([32, 64], seed=1)
    function = tf.function(lambda x: tf.cast(difference(x), dtype))
    with amp.mixed_precision_scope(**FORCED):
        for _ in range(3):
            found = function(x)
    exact = tf.cast(difference(x), dtype)
    assert float(tf.abs(tf.norm(found - exact) / tf.norm(exact))) < 1e-2
