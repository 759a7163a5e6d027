"""What watching the loss scale adds to a training step, in turns with the step alone.

A program anyone can run: `python benchmarks/monitor_overhead.py [--every 100]`. No part
of the plugin needs it.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import amp
from amp.callbacks.monitor import EVERY, Monitor

POLICY = amp.Policy(dtype="bfloat16", loss_scale="dynamic", trial=False, check=False)
ROUNDS, WIDTH, BATCH, LAYERS = 11, 512, 256, 8


def made() -> Callable[[], None]:
    """A training step of dense layers with a scaled loss."""
    weights = [
        tf.Variable(tf.random.normal([WIDTH, WIDTH]) / WIDTH**0.5)
        for _ in range(LAYERS)
    ]
    x = tf.random.normal([BATCH, WIDTH])

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


def turns(step: Callable[[], None], steps: int, monitor: Monitor) -> tuple[float, str]:
    """The median time without a monitor, and what it adds, in alternating order.

    What it adds to one observed step, over `every`, is less noisy than what it adds to
    so many steps of which one is observed.
    """
    plain, ratios = [], []
    for number in range(ROUNDS):
        order = (None, monitor) if number % 2 else (monitor, None)
        times = {watched: seconds(step, steps, watched) for watched in order}
        plain.append(times[None])
        ratios.append(times[monitor] / times[None] - 1)
    ratios.sort()
    quarter = ROUNDS // 4
    text = (
        f"{statistics.median(ratios):+.2%} (the middle half of {ROUNDS} rounds: "
        f"{ratios[quarter]:+.2%} to {ratios[-1 - quarter]:+.2%})"
    )
    return statistics.median(plain), text


def main() -> None:
    """Prints what a monitor adds to `every` steps, and to the one that it observes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=EVERY)
    every = parser.parse_args().every
    logging.getLogger("amp").setLevel(logging.ERROR)  # lines are counted, not shown
    with tempfile.TemporaryDirectory() as logs, amp.mixed_precision_scope(POLICY):
        step = made()
        for monitor in (Monitor(logs, every), Monitor(logs, 1)):
            seconds(step, monitor.every, monitor)  # what is made once is not timed
            took, added = turns(step, monitor.every, monitor)
            each = took / monitor.every * 1e3
            print(f"a step of {each:.2f} ms, one in {monitor.every} observed: {added}")


if __name__ == "__main__":
    main()
