"""What was made of a step gives way to the step, where that may still be made."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.integration.functions import function_hooks
from amp.integration.observing import step_probes
from amp.integration.runtime import failures

SIZE = 256
FULL = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
REFUSED = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")


@pytest.mark.parametrize(
    ("error", "begun", "given"),
    [(REFUSED, False, True), (REFUSED, True, False), (FULL, True, True)],
)
def test_a_step_is_made_again_if_nothing_ran_or_memory_ran_out(
    error: tf.errors.OpError, begun: bool, given: bool
) -> None:
    assert failures.gives_way(error, lambda: begun) is given


@pytest.fixture
def returns_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step that returns more than the user's fits in memory."""

    def recorded(*_: Any) -> Any:
        raise FULL

    monkeypatch.setattr(function_hooks, "_recorded", recorded)


class Job:
    """A step whose batches come from an iterator inside, and a count of its steps."""

    def __init__(self) -> None:
        rows = tf.data.Dataset.from_tensors(tf.ones([SIZE, SIZE])).repeat()
        spec = tf.TensorSpec([None, SIZE])
        batches = iter(
            tf.data.Dataset.from_generator(lambda: rows, output_signature=spec)
        )
        self.weights = tf.Variable(tf.eye(SIZE))
        self.count = tf.Variable(0)

        @tf.function
        def step() -> tf.Tensor:
            self.count.assign_add(1)
            with tf.GradientTape() as tape:
                hidden = tf.tanh(tf.matmul(next(batches), self.weights))
                loss = tf.reduce_mean(tf.square(tf.matmul(hidden, self.weights)))
            self.weights.assign_sub(0.1 * tape.gradient(loss, self.weights))
            return loss

        self.step = step

    def train(self, steps: int, **policy: Any) -> None:
        with amp.mixed_precision_scope(dtype="bfloat16", trial=False, **policy):
            for _ in range(steps):
                self.step()


@pytest.mark.kernels
@pytest.mark.usefixtures("returns_no_more", "only_amx")
def test_a_first_step_that_tells_sizes_gives_way() -> None:
    job = Job()
    with pytest.warns(RuntimeWarning, match=r"sizes of .* are assumed[\s\S]*memory"):
        job.train(3, check=False)
    assert int(job.count) == 3


@pytest.mark.usefixtures("returns_no_more")
def test_a_step_that_returns_its_gradients_gives_way() -> None:
    job, context = Job(), context_lib.context()
    with pytest.warns(RuntimeWarning, match=r"are not compared[\s\S]*began twice"):
        job.train(3, emulate=True)
    assert int(job.count) == 3
    assert not [n for n in context.list_function_names() if "_check" in n]


class Watch:
    every = 1

    def receive(self, sample: Any) -> None:
        raise AssertionError("nothing was observed")


@pytest.mark.usefixtures("returns_no_more")
def test_a_step_that_is_observed_gives_way() -> None:
    job = Job()
    with amp.mixed_precision_scope(dtype="float16", emulate=True, check=False):
        watch = Watch()  # which the process holds weakly
        step_probes.watch(watch)
        with pytest.warns(RuntimeWarning, match="are not observed"):
            job.step()
        job.step()
    assert int(job.count) == 2
