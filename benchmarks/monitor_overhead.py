"""What watching the loss scale adds to a training step, in turns with the step alone.

A program anyone can run: `python -m benchmarks.monitor_overhead [--every 100]
[--width 512]`. No part of the plugin needs it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import amp
from amp.callbacks.monitor import Monitor
from amp.callbacks.pace import EVERY
from benchmarks import machine

POLICY = amp.Policy(dtype="bfloat16", loss_scale="dynamic", trial=False, check=False)
ROUNDS, BATCH, LAYERS = 41, 256, 8
STEPS = 20  # of a turn, one of which is observed: a turn of 100 has the noise of 100


def made(width: int) -> Callable[[], None]:
    """A training step of dense layers with a scaled loss.

    Args:
      width: of the layers.
    """
    weights = [
        tf.Variable(tf.random.normal([width, width]) / width**0.5)
        for _ in range(LAYERS)
    ]
    x = tf.random.normal([BATCH, width])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            hidden = x
            for weight in weights:
                hidden = tf.nn.relu(tf.matmul(hidden, weight))
            loss = tf.reduce_mean(tf.square(hidden))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-3 * gradient)

    return step


def seconds(step: Callable[[], None], steps: int, monitor: Monitor | None) -> float:
    """The time of so many steps, the last of which a monitor observes and reads."""
    if monitor is not None:
        monitor.start()
    start = time.perf_counter()
    for number in range(1, steps + 1):
        step()
        if monitor is not None:
            monitor.step(number)
    took = time.perf_counter() - start
    if monitor is not None:
        monitor.stop()
    return took


def turns(step: Callable[[], None], monitor: Monitor) -> tuple[float, list[float]]:
    """Times turns with the monitor and without one, in alternating order.

    Returns:
      The median seconds of a step without it, and for each round the seconds that one
      observed and read step takes more, sorted.
    """
    alone, added = [], []
    for number in range(ROUNDS):
        order = (None, monitor) if number % 2 else (monitor, None)
        times = {watched: seconds(step, STEPS, watched) for watched in order}
        alone.append(times[None] / STEPS)
        added.append(times[monitor] - times[None])
    return statistics.median(alone), sorted(added)


def main() -> None:
    """Prints what a monitor adds to a step where one in `every` is observed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()
    logging.getLogger("amp").setLevel(logging.ERROR)  # lines are counted, not shown
    print(json.dumps(machine.machine()))
    with tempfile.TemporaryDirectory() as logs, amp.mixed_precision_scope(POLICY):
        step, monitor = made(args.width), Monitor(logs, STEPS)
        seconds(step, 2 * STEPS, monitor)  # what is made once is not timed
        alone, added = turns(step, monitor)
    quarter = ROUNDS // 4
    low, middle, high = (
        f"{each * 1e3:.2f} ms ({each / args.every / alone:.2%})"
        for each in (added[quarter], statistics.median(added), added[~quarter])
    )
    print(f"a step of {alone * 1e3:.2f} ms, median of {ROUNDS} rounds")
    print(f"an observed one takes more, and of each of {args.every}: {middle}")
    print(f"the middle half of the rounds: {low} to {high}")


if __name__ == "__main__":
    main()
