"""Times functions of one operation, less the time of a call that does nothing.

Used by `calibration` and `operation_timer`, which choose what to time and for how long;
nothing is stored here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.eager import execute

from amp.errors import PolicyError
from amp.integration import as_written
from amp.integration.measuring import hardware

LEAST_ROUNDS, MOST_ROUNDS = 3, 11
# The shortest time reported: clocks and calls vary by more.
LEAST_SECONDS = 1e-7
# A type is given up if one call takes this long, and so many times float32's time.
SLOW_SECONDS, SLOW_RATIO = 0.3, 20.0
# What TensorFlow says when an operation cannot be built, or has no kernel.
FAILURES = (tf.errors.OpError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True, slots=True)
class Runner:
    """A function that TensorFlow has compiled, with the operands to call it on.

    Attributes:
      run: calls it and waits for the device; it has been called before.
      repeat: how many operations one call runs.
      operation: one of them in the function's graph.
      first: seconds of its first call.
    """

    run: Callable[[], None]
    repeat: int
    operation: Any
    first: float

    def seconds(self) -> float:
        """Seconds of one call."""
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start


def require_time(seconds: float, where: str) -> None:
    """Checks the seconds that a user gives a measurement.

    Args:
      seconds: what was given.
      where: the argument or flag that it was given in, for the error.

    Raises:
      PolicyError: it is not above 0.
    """
    if not seconds > 0:
        raise PolicyError(
            f"{seconds:g} seconds are no time to measure in",
            where=where,
            allowed="a number above 0",
            remedy="leave it out for the default",
        )


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Leaves any graph for what is inside, which runs on `hardware.place`."""
    with tf.init_scope(), tf.device(None), tf.device(hardware.place() or None):
        yield


def ready(
    body: Callable[..., Any],
    operands: Sequence[Any],
    what: tuple[str, int],
    executor: str,
) -> Runner:
    """Compiles a function and calls it once.

    Args:
      body: builds the function's graph from its operands, and returns its result.
      operands: eager tensors.
      what: the op to be timed, and how many of it one call runs.
      executor: "kernels", or "xla" for a function that XLA compiles.

    Raises:
      OpError, TypeError, ValueError: TensorFlow cannot build or run it.
    """
    op, repeat = what
    function = tf.function(body, jit_compile=executor == "xla", autograph=False)
    concrete = function.get_concrete_function(*operands)
    operation = next(o for o in concrete.graph.get_operations() if o.type == op)
    context, count = context_lib.context(), len(concrete.outputs)
    name, options, inputs = concrete.name, as_written.options(), list(operands)

    def run() -> None:
        concrete  # noqa: B018  (the function lives as long as this)
        execute.execute(name, count, inputs, options, context)
        _synchronise()

    _synchronise()  # the operands may still be being made
    start = time.perf_counter()
    run()
    return Runner(run, repeat, operation, time.perf_counter() - start)


def _synchronise() -> None:
    context_lib.async_wait()
    # A call on a CPU returns when all is done.
    if _kind() != "CPU":
        tf.test.experimental.sync_devices()


@functools.cache
def _kind() -> str:
    with hardware.on(""):
        return hardware.shipped().kind


def rounds(
    runners: Mapping[str, Runner],
    idle: Runner,
    end: float,
    enough: Callable[[Mapping[str, Sequence[float]]], bool] = lambda times: False,
) -> dict[str, float]:
    """Median seconds of each, less those of a call that does nothing (those are at "").

    They run in turn, so that what else the machine does meets all alike.

    Args:
      runners: by any name but "".
      idle: the call that does nothing.
      end: when (`time.perf_counter`) to stop, after `LEAST_ROUNDS`.
      enough: whether the times so far need no further round.
    """
    times: dict[str, list[float]] = {name: [] for name in ("", *runners)}
    for count in range(MOST_ROUNDS):
        past = time.perf_counter() > end
        if count >= LEAST_ROUNDS and (past or enough(times)):
            break
        for name, taken in times.items():
            taken.append(runners.get(name, idle).seconds())
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    nothing = medians.pop("")
    return {"": nothing} | {d: taken - nothing for d, taken in medians.items()}


def operand(shape: tuple[int, ...], dtype: str) -> Any:
    """A tensor of values from 0.5 to 1: some CPUs take longer over denormal numbers.

    The device makes it: one of several gigabytes would take the host seconds.
    """
    values, size = tf.constant(_values()), math.prod(shape)
    often = tf.tile(values, [math.ceil(size / len(_values()))])
    return tf.cast(tf.reshape(often[:size], shape), dtype)


@functools.cache
def _values() -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 1.0, 2**16 + 1).astype(np.float32)


def idle(executor: str) -> Runner:
    """A call that does nothing."""
    one = operand((1,), "float32")
    return ready(lambda x: x + x, [one], ("AddV2", 1), executor)
