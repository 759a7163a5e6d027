"""What was made of a step gives way to the step, where that may still be made."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
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


@pytest.mark.parametrize(
    ("says", "memory"),
    [
        ("OOM when allocating tensor with shape[2048,4096] and type half", True),
        ("Out of memory while trying to allocate 4294967296 bytes.", True),
        ("Failed to allocate memory for the scratch space", True),
        ("events.out.v2; No space left on device", False),
        ("Disk quota exceeded", False),
        ("Too many open files", False),
        ("Received message larger than max (5242880 vs. 4194304)", False),
    ],
)
def test_a_full_disk_is_no_lack_of_memory(says: str, memory: bool) -> None:
    error = tf.errors.ResourceExhaustedError(None, None, says)
    assert failures.out_of_memory(error) is memory
    assert not failures.out_of_memory(tf.errors.AbortedError(None, None, says))


@pytest.mark.parametrize("session", [False, True])
def test_a_step_whose_disk_is_full_is_made_once(session: bool) -> None:
    """Its update is done by then; without the plugin it is not made again either."""
    steps = itertools.count()

    def written() -> np.float32:
        if next(steps) == 3:
            raise tf.errors.ResourceExhaustedError(
                None, None, "No space left on device"
            )
        return np.float32(1.0)

    def step(weights: Any, count: Any) -> tf.Tensor:
        hidden = tf.matmul(tf.matmul(tf.ones([8, 8]), weights), weights)
        with tf.control_dependencies([hidden, count.assign_add(1)]):
            return tf.numpy_function(written, [], tf.float32)

    policy = {"dtype": "bfloat16", "emulate": True, "assignment": "all"}
    if session:
        v1 = tf.compat.v1
        with tf.Graph().as_default(), amp.mixed_precision_scope(**policy):
            made = v1.get_variable("count", initializer=0, use_resource=True)
            wrote = step(tf.constant(np.eye(8, dtype="f")), made)
            with v1.Session() as run:
                run.run(v1.global_variables_initializer())
                for _ in range(3):
                    run.run(wrote)
                with pytest.raises(tf.errors.OpError, match="No space left"):
                    run.run(wrote)
                assert run.run(made) == 4
        return
    count, eye = tf.Variable(0), tf.eye(8)
    call = tf.function(lambda: step(eye, count))
    with amp.mixed_precision_scope(**policy):
        for _ in range(3):
            call()
        with pytest.raises(tf.errors.OpError, match="No space left"):
            call()
    assert int(count) == 4


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
    with pytest.warns(RuntimeWarning, match=r"is not compared[\s\S]*began twice"):
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
