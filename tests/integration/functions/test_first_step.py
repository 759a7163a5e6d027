"""`FirstSteps`: what runs in float32 once before it is planned, and what that tells."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Begun
from amp.integration.contests import plan_store
from amp.integration.contests.plan_store import Record
from amp.integration.observing import checks
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime.function_call import FunctionCall

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("only_amx")]

# Every bfloat16 rounding is off by 2**-8 at most; under 2**3 of them in a row here.
BFLOAT16 = 2.0**-8 * 2**3
SIZE = 256


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that ran once to tell sizes or gradients."""
    names: list[str] = []
    made = FunctionCall.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        record = self.record

        def recorded(which: bytes, more: int) -> Any:
            names.append(which.decode())
            return record(which, more)

        object.__setattr__(self, "record", recorded)

    monkeypatch.setattr(FunctionCall, "__init__", init)
    return names


def batches(*lengths: int) -> tf.data.Dataset:
    rows = [np.full([n, SIZE], i + 1, np.float32) for i, n in enumerate(lengths)]
    spec = tf.TensorSpec([None, SIZE])
    return tf.data.Dataset.from_generator(lambda: rows, output_signature=spec)


def step(weights: tf.Tensor) -> Any:
    def fn(iterator: Any) -> tuple[tf.Tensor, tf.Tensor]:
        x = next(iterator)
        return x[0, 0], tf.matmul(tf.matmul(x, weights), weights)

    return tf.function(fn)


def reports(before: int) -> list[Report]:
    return [report for report in amp.reports()[before:] if report.nodes_low]


def test_the_first_batch_tells_its_size_and_is_taken_once(told: list[str]) -> None:
    weights = tf.eye(SIZE) / 2.0
    fn, before = step(weights), len(amp.reports())
    iterator = iter(batches(512, 7, 512))
    with amp.mixed_precision_scope(dtype="bfloat16", trial=False, check=False):
        results = [fn(iterator) for _ in range(3)]
    assert [int(first) for first, _ in results] == [1, 2, 3]
    for number, length in enumerate((512, 7, 512)):
        assert results[number][1].shape == (length, SIZE)
        np.testing.assert_allclose(results[number][1], (number + 1) / 4, rtol=BFLOAT16)
    assert len(told) == 1
    (report,) = reports(before)
    assert report.made_for == {"IteratorGetNext": [512, SIZE]}
    assert report.sizes_assumed == ()


def test_sizes_that_cannot_be_used_cost_no_step(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is taken, and variables are updated, before they are known."""

    def planted(*_: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(Begun, "resized", planted)
    fn, data = step(tf.eye(SIZE) / 2.0), iter(batches(8, 8, 8))
    with (
        pytest.warns(RuntimeWarning, match="told is not used: ValueError: planted"),
        amp.mixed_precision_scope(dtype="bfloat16", min_gain=0.0, trial=False),
    ):
        first = [float(fn(data)[0]) for _ in range(3)]
    assert first == [1.0, 2.0, 3.0]
    assert len(told) == 1


def test_one_step_tells_sizes_and_what_gradients_are_compared_on(
    told: list[str],
) -> None:
    weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / SIZE**0.5)
    count = tf.Variable(0)

    @tf.function
    def train(iterator: Any) -> tf.Tensor:
        x = next(iterator)
        with tf.GradientTape() as tape:
            y = tf.matmul(tf.tanh(tf.matmul(x, weights)), weights)
            loss = tf.reduce_mean(tf.square(y))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        count.assign_add(1)
        return x[0, 0]

    before, iterator = len(amp.reports()), iter(batches(512, 512, 7, 512))
    with amp.mixed_precision_scope(dtype="bfloat16", trial=False):
        taken = [int(train(iterator)) for _ in range(4)]
    assert taken == [1, 2, 3, 4]
    assert int(count) == 4
    assert len(told) == 1
    (report,) = reports(before)
    assert report.made_for == {"IteratorGetNext": [512, SIZE]}
    assert report.accuracy is not None
    assert report.accuracy.error is not None
    assert 0 < report.accuracy.error < 0.1


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that were planned."""
    names: list[str] = []
    honest = Begun.prepared

    def prepared(begun: Any, timer: Any) -> Any:
        names.append(begun.given.main.name)
        return honest(begun, timer)

    monkeypatch.setattr(Begun, "prepared", prepared)
    return names


def trained(weights: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    """A step of gradient descent; returns the loss."""
    with tf.GradientTape() as tape:
        y = tf.matmul(tf.tanh(tf.matmul(x, weights)), weights)
        loss = tf.reduce_mean(tf.square(y))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


RACES, REPEATS = {"check": False}, {"trial": False}


@pytest.mark.parametrize("fields", [RACES, REPEATS])
def test_a_training_steps_first_call_is_float32_before_anything_is_planned(
    planned: list[str], told: list[str], fields: dict[str, Any]
) -> None:
    x, values = tf.random.normal([SIZE, SIZE]), tf.random.normal([SIZE, SIZE]) / 16.0
    plain, weights = tf.Variable(values), tf.Variable(values)
    want = tf.function(lambda x: trained(plain, x))(x)
    fn = tf.function(lambda x: trained(weights, x))
    with amp.mixed_precision_scope(dtype="bfloat16", **fields):
        first = fn(x)
        assert planned == []
        fn(x)
    assert len(planned) == 1
    np.testing.assert_array_equal(first, want)
    assert told == []


def test_a_step_that_is_called_once_has_a_report_that_says_so(told: list[str]) -> None:
    weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / 16.0)
    fn, before = tf.function(lambda x: trained(weights, x)), len(amp.reports())
    x = tf.random.normal([SIZE, SIZE])
    with amp.mixed_precision_scope(dtype="bfloat16"):
        fn(x)
        (report,) = amp.reports()[before:]
        assert "called once so far" in report.verdict
        assert report.nodes_low == 0
        product = next(d.node for d in report.decisions if d.op == "MatMul")
        assert "a second call" in report.explain(product)
        fn(x)
        (report,) = amp.reports()[before:]
    assert report.nodes_low > 0


def test_steps_that_are_called_once_keep_few_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop over batches of a hundred lengths traces its step for each."""
    monkeypatch.setattr(checks, "BATCHES", 2)
    weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / 16.0)
    fn = tf.function(lambda x: trained(weights, x))
    alive = []
    with amp.mixed_precision_scope(dtype="bfloat16"):
        for length in range(2, 7):
            x = tf.random.normal([length * 64, SIZE])
            alive.append(weakref.ref(x))
            fn(x)
        del x
        gc.collect()
        assert [each() is None for each in alive] == [True] * 3 + [False] * 2
        for _ in range(3):  # the first is recorded anew
            fn(tf.ones([2 * 64, SIZE]))
    (found,) = [one for one in amp.reports() if one.accuracy is not None]
    assert 0 < found.accuracy.error < 0.1


def test_a_step_whose_plan_fails_has_no_report_that_promises_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(begun: Any, timer: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr(Begun, "prepared", fails)
    weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / 16.0)
    fn, before = tf.function(lambda x: trained(weights, x)), len(amp.reports())
    with amp.mixed_precision_scope(dtype="bfloat16"):
        fn(tf.ones([SIZE, SIZE]))
        with pytest.warns(RuntimeWarning, match="planted"):
            fn(tf.ones([SIZE, SIZE]))
    (report,) = amp.reports()[before:]
    assert (
        report.verdict == "left in float32: making its twin failed, as a warning told"
    )


def test_what_takes_several_steps_is_planned_at_its_first_call(
    planned: list[str],
) -> None:
    """Its only call may be the whole training."""
    weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / 16.0)

    @tf.function
    def steps(x: tf.Tensor) -> None:
        for _ in tf.range(3):
            trained(weights, x)

    with amp.mixed_precision_scope(dtype="bfloat16"):
        steps(tf.random.normal([SIZE, SIZE]))
    assert len(planned) == 1


def test_inference_is_planned_at_its_first_call(planned: list[str]) -> None:
    with amp.mixed_precision_scope(dtype="bfloat16"):
        tf.function(lambda x: tf.matmul(x, x))(tf.ones([SIZE, SIZE]))
    assert len(planned) == 1


@pytest.mark.parametrize("fields", [{"assignment": "all"}, {"emulate": True}])
def test_no_step_tells_what_nothing_depends_on(
    told: list[str], fields: dict[str, Any]
) -> None:
    fn = step(tf.eye(SIZE))
    iterator = iter(batches(5, 5))
    policy = {"trial": False, "check": False, **fields}
    with amp.mixed_precision_scope(dtype="bfloat16", **policy):
        fn(iterator)
        fn(iterator)
    assert told == []


def test_arguments_that_tell_all_need_no_step(told: list[str]) -> None:
    weights = tf.eye(SIZE)
    fn = tf.function(
        lambda x: tf.matmul(x, weights), input_signature=[tf.TensorSpec([None, SIZE])]
    )
    with amp.mixed_precision_scope(dtype="bfloat16", trial=False, check=False):
        fn(tf.ones([512, SIZE]))
    assert told == []


def test_what_tells_sizes_is_gone_when_the_twin_is_there() -> None:
    fn, iterator = step(tf.eye(SIZE)), iter(batches(9, 9))
    context = context_lib.context()
    with amp.mixed_precision_scope(dtype="bfloat16", trial=False, check=False):
        fn(iterator)
        telling = [n for n in context.list_function_names() if "_told" in str(n)]
        fn(iterator)
        left = [n for n in context.list_function_names() if "_told" in str(n)]
    assert len(telling) == 1
    assert left == []


def test_a_thread_that_is_late_makes_its_first_step_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another is done with its own, and has the function planned meanwhile."""
    patience = 60.0
    at_it, go_on = threading.Event(), threading.Event()
    made = FunctionCall.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        record = self.record

        def waits(which: bytes, more: int) -> Any:
            if threading.current_thread() is not threading.main_thread():
                at_it.set()
                assert go_on.wait(patience)
            return record(which, more)

        object.__setattr__(self, "record", waits)

    monkeypatch.setattr(FunctionCall, "__init__", init)
    fn, iterator = step(tf.eye(SIZE)), iter(batches(9, 9, 9))
    policy = {"dtype": "bfloat16", "trial": False, "check": False}
    fn.get_concrete_function(iterator)
    late: list[int] = []

    def work() -> None:
        with amp.mixed_precision_scope(strict=True, **policy):
            late.append(int(fn(iterator)[0]))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert at_it.wait(patience)
    with amp.mixed_precision_scope(strict=True, **policy):
        assert [int(fn(iterator)[0]) for _ in range(2)] == [1, 2]
    go_on.set()
    thread.join(patience)
    assert late == [3]
    names = map(str, context_lib.context().list_function_names())
    assert not [name for name in names if "_told" in name]


VOCABULARY, WIDTH, BATCH, LENGTH = 100, 128, 16, 48


class Block(keras.layers.Layer):
    """Attention and two dense layers, each around a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(4, WIDTH // 4)
        self.norm = keras.layers.LayerNormalization()
        self.wide = keras.layers.Dense(4 * WIDTH, "gelu")
        self.narrow = keras.layers.Dense(WIDTH)

    def call(self, x: Any) -> Any:
        x = x + self.attention(x, x)
        return x + self.narrow(self.wide(self.norm(x)))


def fitted(varied: bool) -> Report:
    """The report on the training step of a transformer that `fit` has trained."""
    random = np.random.default_rng(0)
    lengths = (LENGTH, 11, 30) if varied else (LENGTH,) * 3
    tokens = [random.integers(0, VOCABULARY, [BATCH, n], np.int32) for n in lengths]
    spec = tf.TensorSpec([None, None] if varied else [BATCH, LENGTH], tf.int32)
    data = tf.data.Dataset.from_generator(
        lambda: zip(tokens, tokens, strict=True), output_signature=(spec, spec)
    )
    given = keras.Input([None], dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(given)
    model = keras.Model(given, keras.layers.Dense(VOCABULARY)(Block()(Block()(x))))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    before = len(amp.reports())
    policy = {"dtype": "bfloat16", "trial": True, "check": False}
    with amp.mixed_precision_scope(strict=True, **policy):
        model.fit(data.repeat(), steps_per_epoch=3, verbose=0, shuffle=False)
    (report,) = (r for r in reports(before) if "on_iterator" in r.function)
    return report


def products(report: Report) -> int:
    return sum(d.rule == "compute" and d.dtype != "float32" for d in report.decisions)


@pytest.mark.slow
def test_fit_on_batches_of_all_lengths_is_planned_as_on_one_length() -> None:
    varied, static = fitted(varied=True), fitted(varied=False)
    assert varied.made_for["IteratorGetNext"] == [BATCH, LENGTH]
    assert varied.sizes_assumed == ()
    assert products(varied) == products(static) > 0
    assert varied.clusters
    # TensorFlow's gradients of broadcasts are further nodes; products take the time.
    gains = [r.seconds32 / r.seconds16 for r in (varied, static)]
    assert gains[0] == pytest.approx(gains[1], rel=0.1)


def known(made_first: float, compared: str = "") -> Record:
    """What an earlier run found out of the cheapest plan, which won.

    Args:
      made_first: seconds to the end of its first call, for 1 in float32.
      compared: the plan whose gradients were compared.
    """
    accuracy = {"name": compared, "plan": ""} if compared else {}
    ready = {"cut": made_first, FLOAT32: 1.0}
    return Record("cut", accuracy=accuracy, ready=ready)


@pytest.mark.parametrize(
    ("record", "by_winner", "records"),
    [
        (Record(), False, True),
        (Record(FLOAT32, ready={FLOAT32: 1.0}), False, False),
        # Gradients are compared on what a step in float32 was computed from.
        (known(1.0), False, True),
        (known(1.0, "all"), False, True),
        (known(1.0, "cut"), True, False),
        (known(9.0, "cut"), False, False),
    ],
)
def test_what_an_earlier_run_found_out_is_not_found_out_again(
    planned: list[str],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
    record: Record,
    by_winner: bool,
    records: bool,
) -> None:
    monkeypatch.setattr(plan_store, "load", lambda name: record)
    weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / 16.0)
    drawn = tf.random.Generator.from_seed(1)  # nothing is drawn from it twice
    fn = tf.function(lambda x: trained(weights, x * drawn.uniform([SIZE, SIZE])))
    with amp.mixed_precision_scope(dtype="bfloat16"):
        fn(tf.random.normal([SIZE, SIZE]))
    assert bool(planned) == by_winner
    assert any(name.endswith("_told") for name in told) == records
