"""Runs a small training step in float32 and rewritten: is it right, and is it faster?

Takes about five seconds in the process of `probe`. Nothing is stored, and no race, no
measurement of operations and no check of gradients takes place in it.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from amp.errors import AmpError
from amp.graph_rewrite import figures
from amp.graph_rewrite.candidates.context import FORMATS
from amp.integration import api, fallback, reports
from amp.integration.doctor.findings import NOTE, OK, WRONG, Finding
from amp.integration.measuring import hardware
from amp.integration.runtime import failures
from amp.policy import Policy

LAYERS = 3
# Rows of a batch and width of a layer: a step takes some 100 ms on two cores of a CPU,
# and some 10 ms on a GPU, so that starting kernels is no part of what is measured.
SIZES = {"CPU": (512, 1024), "GPU": (2048, 4096)}
SECONDS, LEAST_ROUNDS = 3.5, 3
# Below it, what two takes of one step differ by on a busy machine is no gain.
GAIN = 1.05

Step = Callable[[Any, Any, Any], list[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What the test found.

    Attributes:
      dtype: the 16-bit type.
      emulated: whether float32 kernels were used, so that times say nothing.
      device: its name.
      nodes: how many nodes of the step ran in 16 bits.
      error: of all gradients together, relative to float32's.
      bound: the error above which something is wrong.
      seconds32, seconds16: of a step, medians over the rounds.
      gains: float32's time over the other's, a figure for each round.
    """

    dtype: str
    emulated: bool
    device: str
    nodes: int
    error: float
    bound: float
    seconds32: float = 0.0
    seconds16: float = 0.0
    gains: tuple[float, ...] = ()

    @property
    def gain(self) -> float:
        """The median over the rounds, 0 where nothing was timed."""
        return statistics.median(self.gains) if self.gains else 0.0


def bound(dtype: str) -> float:
    """The error that roundings alone can give the gradients, relative to float32's.

    A gradient has passed at most `2 * LAYERS` products and as many elementwise
    functions. Each product rounds two operands and a result, each function its result,
    and no step in between makes the relative error of a whole tensor larger: factors
    are orthogonal in the mean, and tanh has no slope above 1.
    """
    return 2 * LAYERS * (3 + 1) * FORMATS[dtype].unit


def check() -> Iterator[Finding]:
    """The finding of the test."""
    yield fallback.attempt_or(lambda: finding(run()), _failed)


def _failed(error: Exception) -> Finding:
    text = f"the training step failed: {type(error).__name__}: {error}"
    remedy = "see the other findings; without one, please report this"
    if failures.out_of_memory(error):
        remedy = "free memory of the device, which other jobs may hold"
    return Finding("self_test", WRONG, text, remedy)


def finding(result: Result) -> Finding:
    """What a result means."""
    facts = dataclasses.asdict(result) | {"gain": result.gain}
    right = f"gradients off by {result.error:.2g}, {result.bound:.2g} allowed"
    if not result.error <= result.bound:
        text = f"{result.dtype} computes wrong values: {right}"
        remedy = "AMP_ENABLE=0 until it is mended; please report this"
        return Finding("self_test", WRONG, text, remedy, facts)
    if not result.nodes:
        text = (
            f"nothing of the step ran in {result.dtype}, by the figures of the device"
        )
        return Finding("self_test", NOTE, text, "amp tune measures them", facts)
    if result.emulated:
        text = f"{result.dtype} emulated: {right}; no speed-up to be had on this device"
        return Finding("self_test", OK, text, facts=facts)
    times = f"{figures.time(result.seconds32)} in float32, "
    times += f"{figures.time(result.seconds16)} in {result.dtype}"
    least, _, most = statistics.quantiles(result.gains, n=4, method="inclusive")
    rounds = f"{len(result.gains)} rounds, half of them {least:.2f} to {most:.2f}"
    if result.gain < GAIN:
        how = (
            "no faster" if result.gain > 1 / GAIN else f"{1 / result.gain:.2f}x slower"
        )
        text = f"a small training step is {how} ({times}; {rounds}); {right}"
        remedy = "try again on an idle machine, then amp tune; jobs run what is faster"
        return Finding("self_test", NOTE, text, remedy, facts)
    text = f"a small training step is {result.gain:.2f}x faster ({times}; {rounds}); "
    return Finding("self_test", OK, text + right, facts=facts)


def run(seconds: float = SECONDS) -> Result:
    """Runs the test on the device that TensorFlow computes on.

    Args:
      seconds: to spend on rounds, of which there are `LEAST_ROUNDS` at least.

    Raises:
      Exception: whatever keeps the step from running in mixed precision.
    """
    policy = _policy()
    arguments = _arguments(hardware.device().kind)
    plain, ours = _step(), _in_scope(_step(), policy)
    expected = plain(*arguments)
    found = ours(*arguments)
    result = Result(
        policy.dtype,
        policy.emulate,
        hardware.device().name,
        sum(report.nodes_low for report in reports.reports()),
        _error(expected, found),
        bound(policy.dtype),
    )
    return (
        result if policy.emulate else _timed(result, (plain, ours), arguments, seconds)
    )


def _policy() -> Policy:
    """Mixed precision as it is here, emulated where the device has no such type."""
    asked = fallback.attempt_or(Policy.from_env, _usual)
    fresh = Policy(
        dtype=asked.dtype,
        min_gain=0.0,
        trial=False,
        check=False,
        tune_budget=0.0,
        strict=True,
    )
    settled = hardware.resolve(fresh)
    if settled.policy is None or settled.policy.dtype not in settled.device.native:
        settled = hardware.resolve(Policy.make(fresh, emulate=True))
    assert settled.policy is not None  # emulated, there is always a 16-bit type
    return settled.policy


def _usual(error: Exception) -> Policy:
    """The policy where the variables have faults, which another check tells of."""
    if isinstance(error, AmpError):
        return Policy()
    raise error


def _arguments(kind: str) -> tuple[Any, Any, Any]:
    """Variables, a batch and its target: normal, each layer keeping the variance."""
    rows, width = SIZES[kind]
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape, np.float32)

    weights = [tf.Variable(normal(width, width) / width**0.5) for _ in range(LAYERS)]
    return weights, tf.constant(normal(rows, width)), tf.constant(normal(rows, width))


def _step() -> Step:
    """A training step, which returns the gradients."""

    def step(x: Any, y: Any, rate: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            hidden = x
            for weight in weights:
                hidden = tf.tanh(tf.matmul(hidden, weight))
            loss = tf.reduce_mean(tf.square(hidden - y))
        gradients = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(rate * gradient)
        return list(gradients)

    weights: list[Any] = []
    function = tf.function(step)

    def call(given: Any, x: Any, y: Any) -> list[Any]:
        weights[:] = given
        # Of rate 0, so that every step has the same gradients; TensorFlow cannot know.
        found: list[Any] = function(x, y, tf.constant(0.0))
        return found

    return call


def _in_scope(step: Step, policy: Policy) -> Step:
    def call(*arguments: Any) -> list[Any]:
        with api.mixed_precision_scope(policy):
            return step(*arguments)

    return call


def _error(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """The distance of two lists of gradients, relative to the length of the first."""
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(expected, found, strict=True)]
    off = sum(float(np.sum(np.square(b - a, dtype=np.float64))) for a, b in pairs)
    return float((off / sum(float(np.sum(np.square(a))) for a, _ in pairs)) ** 0.5)


def _timed(
    result: Result, steps: tuple[Step, Step], arguments: Any, seconds: float
) -> Result:
    """The result with the times of both steps, taken in turn."""
    end = time.perf_counter() + seconds
    times: list[list[float]] = []
    while len(times) < LEAST_ROUNDS or time.perf_counter() < end:
        times.append([_seconds(step, arguments) for step in steps])
    single, low = zip(*times, strict=True)
    return dataclasses.replace(
        result,
        seconds32=statistics.median(single),
        seconds16=statistics.median(low),
        gains=tuple(a / b for a, b in times),
    )


def _seconds(step: Step, arguments: Any) -> float:
    tf.test.experimental.sync_devices()
    begun = time.perf_counter()
    step(*arguments)
    tf.test.experimental.sync_devices()
    return time.perf_counter() - begun
