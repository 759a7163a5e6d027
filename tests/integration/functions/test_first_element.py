"""`first_element`: a loop is planned for the batch that it takes first."""

from __future__ import annotations

import gc
import threading
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.element_sources import ElementSource
from amp.graph_rewrite.report import Report
from amp.integration import fallback
from amp.integration.functions import first_element
from amp.integration.functions.twins import Twins
from amp.integration.observing.step_probes import StepProbes
from amp.integration.process import PROCESS

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("only_amx")]

SIZE, BATCH = 256, 512
POLICY: dict[str, Any] = {"dtype": "bfloat16", "trial": False, "check": False}


def batches(*lengths: int, begun: list[int] | None = None) -> tf.data.Dataset:
    """Batches that are numbered: all elements of the n-th are n.

    Args:
      lengths: of the batches; unknown when a function is traced.
      begun: gets an entry whenever somebody begins to go through them.
    """

    def rows() -> Iterator[np.ndarray]:
        if begun is not None:
            begun.append(1)
        for number, length in enumerate(lengths):
            yield np.full([length, SIZE], number + 1, np.float32)

    spec = tf.TensorSpec([None, SIZE])
    return tf.data.Dataset.from_generator(rows, output_signature=spec)


def trained(weights: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    """A step of gradient descent; returns the number of the batch."""
    with tf.GradientTape() as tape:
        y = tf.matmul(tf.tanh(tf.matmul(x, weights)), weights)
        loss = tf.reduce_mean(tf.square(y))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return tf.cast(x[0, 0], tf.int32)


def over_dataset(weights: tf.Variable) -> Any:
    def train(data: Any) -> tf.Tensor:
        seen = tf.zeros([0], tf.int32)
        for x in data:
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(seen, tf.TensorShape([None]))]
            )
            seen = tf.concat([seen, [trained(weights, x)]], 0)
        return seen

    return tf.function(train)


def over_iterator(weights: tf.Variable) -> Any:
    def train(iterator: Any, steps: tf.Tensor) -> tf.Tensor:
        seen = tf.zeros([0], tf.int32)
        for _ in tf.range(steps):
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(seen, tf.TensorShape([None]))]
            )
            seen = tf.concat([seen, [trained(weights, next(iterator))]], 0)
        return seen

    return tf.function(train)


def new_weights() -> tf.Variable:
    return tf.Variable(tf.random.stateless_normal([SIZE, SIZE], [1, 2]) / SIZE**0.5)


def last_report(before: int) -> Report:
    (report,) = amp.reports()[before:]
    return report


def test_a_loop_over_a_dataset_runs_in_16_bits_in_its_only_call() -> None:
    begun: list[int] = []
    weights, plain, before = new_weights(), new_weights(), len(amp.reports())
    over_dataset(plain)(batches(BATCH, BATCH, 3))
    with amp.mixed_precision_scope(strict=True, **POLICY):
        seen = over_dataset(weights)(batches(BATCH, BATCH, 3, begun=begun))
    assert list(seen) == [1, 2, 3]
    assert len(begun) == 1
    report = last_report(before)
    assert report.nodes_low > 0
    assert [*report.made_for.values()] == [[BATCH, SIZE]]
    assert report.sizes_assumed == ()
    moved, apart = plain - new_weights(), weights - plain
    # Of each of three steps' six products and tanh, one after another, by 2**-8 each.
    assert 0 < np.linalg.norm(apart) <= 3 * 6 * 2.0**-8 * np.linalg.norm(moved)


def test_a_dataset_is_gone_through_anew_in_every_epoch() -> None:
    begun: list[int] = []
    weights, data = new_weights(), batches(BATCH, 7, begun=begun)
    train = over_dataset(weights)

    @tf.function
    def epochs(data: Any) -> tf.Tensor:
        seen = tf.zeros([2, 0], tf.int32)
        for _ in tf.range(2):
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(seen, tf.TensorShape([2, None]))]
            )
            seen = tf.concat([seen, tf.reshape(train(data), [2, 1])], 1)
        return seen

    before = len(amp.reports())
    with amp.mixed_precision_scope(strict=True, **POLICY):
        assert epochs(data).numpy().tolist() == [[1, 1], [2, 2]]
        assert len(begun) == 2
        assert epochs(data).numpy().tolist() == [[1, 1], [2, 2]]
    assert last_report(before).nodes_low > 0


def test_no_batch_of_an_iterator_is_lost_or_taken_early() -> None:
    train, before = over_iterator(new_weights()), len(amp.reports())
    iterator = iter(batches(BATCH, BATCH, 3, BATCH, BATCH, BATCH))
    with amp.mixed_precision_scope(strict=True, **POLICY):
        assert list(train(iterator, tf.constant(2))) == [1, 2]
        assert int(next(iterator)[0, 0]) == 3
        assert list(train(iterator, tf.constant(2))) == [4, 5]
    report = last_report(before)
    assert report.nodes_low > 0
    assert [*report.made_for.values()] == [[BATCH, SIZE]]


def test_a_batch_that_the_first_call_leaves_is_the_next_calls() -> None:
    train = over_iterator(new_weights())
    iterator = iter(batches(BATCH, BATCH, BATCH))
    with amp.mixed_precision_scope(strict=True, **POLICY):
        assert list(train(iterator, tf.constant(0))) == []
        assert list(train(iterator, tf.constant(0))) == []
        assert list(train(iterator, tf.constant(2))) == [1, 2]
        assert list(train(iterator, tf.constant(1))) == [3]


def test_a_batch_that_the_first_call_leaves_is_whoever_takes_next() -> None:
    train = over_iterator(new_weights())
    iterator = iter(batches(BATCH, BATCH, BATCH, BATCH))

    @tf.function
    def other(iterator: Any) -> tf.Tensor:
        return tf.cast(next(iterator)[0, 0], tf.int32)

    with amp.mixed_precision_scope(strict=True, **POLICY):
        assert list(train(iterator, tf.constant(0))) == []
        assert int(next(iterator)[0, 0]) == 1
        assert int(other(iterator)) == 2
        assert list(train(iterator, tf.constant(1))) == [3]
        assert int(next(iterator)[0, 0]) == 4


def test_no_batch_is_lost_where_another_thread_is_faster() -> None:
    """One thread waits for its first batch while another calls the same function."""
    train = over_iterator(new_weights())
    ready, waits = threading.Event(), threading.Event()

    def rows() -> Iterator[np.ndarray]:
        waits.set()
        ready.wait()
        yield from (np.full([BATCH, SIZE], n, np.float32) for n in (1, 2))

    spec = tf.TensorSpec([None, SIZE])
    slow = iter(tf.data.Dataset.from_generator(rows, output_signature=spec))
    fast, two = iter(batches(7, 7)), tf.constant(2)
    train.get_concrete_function(slow, two)
    seen: list[Any] = []
    with amp.mixed_precision_scope(strict=True, **POLICY) as policy:

        def slowly() -> None:
            with amp.mixed_precision_scope(policy):
                seen.extend(train(slow, two))

        thread = threading.Thread(target=slowly)
        thread.start()
        waits.wait()
        assert list(train(fast, two)) == [1, 2]
        ready.set()
        thread.join()
    assert seen == [1, 2]


def test_a_batch_is_not_lost_where_the_first_call_fails_before_its_loop() -> None:
    weights, stop = new_weights(), tf.Variable(True)

    @tf.function
    def train(iterator: Any, steps: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_equal(stop, False, "own")]):
            waited = tf.identity(steps)
        seen = tf.constant(0)
        for _ in tf.range(waited):
            seen = trained(weights, next(iterator))
        return seen

    iterator = iter(batches(BATCH, BATCH))
    with amp.mixed_precision_scope(strict=True, **POLICY):
        with pytest.raises(tf.errors.InvalidArgumentError, match="own"):
            train(iterator, tf.constant(1))
        assert int(next(iterator)[0, 0]) == 1
        stop.assign(False)
        assert int(train(iterator, tf.constant(1))) == 2


def test_a_function_whose_first_call_failed_settles_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its iterator is gone, so that no call ever takes what was looked at."""
    asked: list[bytes] = []
    call = Twins.call

    def noted(self: Twins, given: Any, context: Any, name: bytes) -> Any:
        asked.append(name)
        return call(self, given, context, name)

    monkeypatch.setattr(Twins, "call", noted)
    weights = new_weights()

    @tf.function
    def train(iterator: Any, stop: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_equal(stop, False, "own")
        seen = tf.constant(0)
        for _ in tf.range(tf.cast(tf.logical_not(stop), tf.int32)):
            seen = trained(weights, next(iterator))
        return seen

    with amp.mixed_precision_scope(strict=True, **POLICY):
        with pytest.raises(tf.errors.InvalidArgumentError, match="own"):
            train(iter(batches(BATCH)), tf.constant(True))
        iterator = iter(batches(*[BATCH] * 4))
        train(iterator, tf.constant(False))
        asked.clear()
        assert [int(train(iterator, tf.constant(False))) for _ in range(3)] == [2, 3, 4]
    assert asked == []


def test_calls_that_leave_a_batch_of_a_captured_iterator_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is due after so many calls is due after no fewer."""
    counted: list[int] = []
    passed = StepProbes._passed

    def noted(self: StepProbes, name: bytes, calls: int) -> None:
        counted.append(calls)
        passed(self, name, calls)

    monkeypatch.setattr(StepProbes, "_passed", noted)
    monitor: Any = types.SimpleNamespace(every=1000)
    monkeypatch.setattr(PROCESS, "monitors", [monitor])
    weights, iterator = new_weights(), iter(batches(BATCH, BATCH))

    @tf.function
    def train(steps: tf.Tensor) -> tf.Tensor:
        seen = tf.constant(0)
        for _ in tf.range(steps):
            seen = trained(weights, next(iterator))
        return seen

    with amp.mixed_precision_scope(strict=True, **POLICY):
        for _ in range(3):
            assert int(train(tf.constant(0))) == 0
        assert sum(counted) == 3
        assert int(train(tf.constant(1))) == 1
        assert int(train(tf.constant(1))) == 2


def test_traces_of_a_function_take_batches_in_turn() -> None:
    weights = new_weights()

    @tf.function
    def train(iterator: Any, steps: tf.Tensor, factor: float) -> tf.Tensor:
        seen = tf.constant(0)
        for _ in tf.range(steps):
            seen = trained(weights, next(iterator) * factor)
        return seen

    iterator = iter(batches(*[BATCH] * 4))
    with amp.mixed_precision_scope(strict=True, **POLICY):
        train(iterator, tf.constant(0), 1.0)
        got = [int(train(iterator, tf.constant(1), k)) for k in (2.0, 1.0, 2.0, 1.0)]
    assert got == [2, 2, 6, 4]


def test_nothing_is_looked_at_where_nothing_is_left() -> None:
    train, iterator = over_iterator(new_weights()), iter(batches(BATCH))
    next(iterator)
    with amp.mixed_precision_scope(strict=True, **POLICY):
        assert list(train(iterator, tf.constant(0))) == []
        with pytest.raises(tf.errors.OutOfRangeError):
            train(iterator, tf.constant(1))


def test_a_function_may_fill_what_its_pipeline_reads() -> None:
    weights, filled = new_weights(), []

    def rows() -> Iterator[np.ndarray]:
        while True:
            yield filled[-1]

    @tf.function
    def train(iterator: Any) -> tf.Tensor:
        steps = tf.py_function(
            lambda: filled.append(np.ones([BATCH, SIZE], np.float32)) or 2, [], tf.int32
        )
        steps.set_shape([])
        seen = tf.constant(0)
        for _ in tf.range(steps):
            seen = trained(weights, next(iterator))
        return seen

    spec = tf.TensorSpec([None, SIZE])
    data = tf.data.Dataset.from_generator(rows, output_signature=spec)
    with amp.mixed_precision_scope(strict=True, **POLICY):
        assert int(train(iter(data))) == 1


def test_an_iterator_of_a_worker_is_left_alone() -> None:
    there = "/job:worker/replica:0/task:0/device:CPU:0"
    source = ElementSource(0, (ir.FLOAT,), ((-1, SIZE),), dataset=False)
    part = fallback.Part("fails", strict=True)
    iterator = types.SimpleNamespace(device=there)
    assert first_element.look([source], [iterator], part) is None


def test_an_error_of_the_pipeline_is_the_users() -> None:
    def checked(x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_equal(x[0, 0], 0.0, "own")]):
            return tf.identity(x)

    with (
        amp.mixed_precision_scope(strict=True, **POLICY),
        pytest.raises(tf.errors.InvalidArgumentError, match="own"),
    ):
        over_dataset(new_weights())(batches(BATCH).map(checked))


def test_where_one_pipeline_fails_no_batch_of_another_is_lost() -> None:
    """The call is not made; what was taken for it comes first at the next."""

    def broken() -> Iterator[np.ndarray]:
        raise ValueError("the user's own")
        yield

    whole, spec = iter(batches(3, 5)), tf.TensorSpec([None, SIZE])
    fails = iter(tf.data.Dataset.from_generator(broken, output_signature=spec))
    kind = (tf.float32.as_datatype_enum,), ((-1, SIZE),)
    sources = [ElementSource(index, *kind, dataset=False) for index in range(2)]
    handles = [each._iterator_resource for each in (whole, fails)]
    with pytest.raises(tf.errors.OpError, match="the user's own"):
        first_element.look(sources, handles, fallback.Part("a fault", strict=True))
    del handles
    gc.collect()
    assert [len(x) for x in whole] == [3, 5]


def test_a_fault_before_anything_is_taken_costs_no_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr(first_element, "_stand", fails)
    train, before = over_iterator(new_weights()), len(amp.reports())
    with (
        amp.mixed_precision_scope(**POLICY),
        pytest.warns(RuntimeWarning, match="sizes of batches .* planted"),
    ):
        seen = train(iter(batches(BATCH, BATCH)), tf.constant(2))
    assert list(seen) == [1, 2]
    assert last_report(before).sizes_assumed == ("while/IteratorGetNext",)


def test_a_dataset_that_is_asked_for_its_length_stays_as_it_is() -> None:
    train = over_dataset(new_weights())

    @tf.function
    def counted(data: Any) -> tuple[tf.Tensor, tf.Tensor]:
        return data.cardinality(), train(data)

    x = tf.concat([tf.fill([4, SIZE], 1.0), tf.fill([2, SIZE], 2.0)], 0)
    data, before = tf.data.Dataset.from_tensor_slices(x).batch(4), len(amp.reports())
    with amp.mixed_precision_scope(strict=True, **POLICY):
        count, seen = counted(data)
    assert int(count) == 2
    assert list(seen) == [1, 2]
    assert last_report(before).sizes_assumed == ("args_1",)


def fitted(static: bool, rows: int = 3 * BATCH) -> Report:
    """The report on a `fit` whose steps are in a loop of TensorFlow's."""
    dense = [keras.layers.Dense(SIZE, "tanh") for _ in range(3)]
    model = keras.Sequential([keras.Input([SIZE]), *dense])
    model.compile("sgd", "mse", jit_compile=False, steps_per_execution=10)
    x = np.random.default_rng(0).normal(size=[rows, SIZE]).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(BATCH, static)
    before = len(amp.reports())
    with amp.mixed_precision_scope(strict=True, **POLICY):
        model.fit(data, verbose=0, shuffle=False)
    (report,) = (r for r in amp.reports()[before:] if "on_iterator" in r.function)
    return report


def test_several_steps_per_execution_are_planned_for_their_batches() -> None:
    """Keras' one call of an epoch, with and without a last batch of another size."""
    varied, static = fitted(static=False), fitted(static=True)
    assert varied.nodes_low == static.nodes_low > 0
    # TensorFlow's gradients of broadcasts are further nodes; products take the time.
    without = [one.seconds16 + one.fused_seconds for one in (varied, static)]
    assert without[0] == pytest.approx(without[1], rel=0.1)
    assert {*map(tuple, varied.made_for.values())} == {(BATCH, SIZE)}
