"""One training step, timed in a process of its own: prints one line of JSON.

`python -m benchmarks.worker --case mlp --mode amp --executor kernels`. The plugin is
switched on by `AMP_ENABLE=1` alone, as a user would; its reports are read, and its
rewriting is timed. No ratio is formed here.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import inspect
import json
import math
import operator
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench_models, summary

# Most calls for which the end of a race is waited.
WARMUP_CALLS, WARMUP_SECONDS, MOST_WARMUP_CALLS = 3, 1.0, 650
LEAST_STEPS = 5
SEED = 0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=bench_models.ALL, required=True)
    parser.add_argument("--mode", choices=summary.MODES, default="float32")
    parser.add_argument("--executor", choices=summary.EXECUTORS, default="kernels")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--batch-factor", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args(argv)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = measure(args)
    found["warnings"] = own_warnings(str(warning.message) for warning in caught)
    print(json.dumps(found), flush=True)


def own_warnings(messages: Iterable[str]) -> list[str]:
    """The plugin's own, first line each: where it gave way, times are float32's."""
    own = [text.partition("\n")[0] for text in messages if text.startswith("amp: ")]
    return list(dict.fromkeys(own))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Builds, runs the first step, warms up, times, and asks the plugin at the end."""
    import keras
    import tensorflow as tf

    rewriting = _watch_rewriting() if args.mode == "amp" else []
    case = bench_models.ALL[args.case]
    module = importlib.import_module(f"models.{case.module}")
    batch, sizes = case.arguments(args.quick)
    keras.utils.set_random_seed(SEED)
    batch *= args.batch_factor
    data = tf.nest.map_structure(tf.constant, example_batch(module, batch, sizes))
    before, start = memory(), time.perf_counter()
    prepare(args.mode, args.dtype)
    model = getattr(module, case.builder)(**sizes)
    optimizer = made_optimizer(case, args.mode, args.dtype)
    step = training_step(model, module.LOSS(), optimizer, args.executor == "xla")

    def run() -> float:
        return float(step(*data))

    first = run()
    seconds_first = time.perf_counter() - start
    seconds_warm = warm_up(run, settling if args.mode == "amp" else lambda: False)
    peak = memory(peak=True)
    steady = reset_peak()
    times, last = timed(run, args.seconds)
    quartiles = statistics.quantiles(times, n=4)
    return {
        "seconds": quartiles[1],
        "quartiles": [quartiles[0], quartiles[2]],
        "steps": len(times),
        "first_step_seconds": seconds_first,
        "warm_up_seconds": seconds_warm,
        "peak_bytes": max(peak, memory(peak=True)) - before,
        "steady_peak_bytes": memory(peak=True) - before if steady else None,
        "loss_first": first if math.isfinite(first) else None,
        "loss_last": last if math.isfinite(last) else None,
        **(plugin(rewriting) if args.mode == "amp" else {}),
    }


def example_batch(module: Any, batch: int, sizes: dict[str, Any]) -> Any:
    """The model's example batch, with those of the sizes that it takes."""
    takes = inspect.signature(module.example_batch).parameters
    chosen = {name: value for name, value in sizes.items() if name in takes}
    return module.example_batch(batch, SEED, **chosen)


def prepare(mode: str, dtype: str) -> None:
    """Switches a neighbour on, as its documentation says."""
    import keras
    import tensorflow as tf

    if mode == "keras":
        keras.mixed_precision.set_global_policy(f"mixed_{dtype}")
    if mode == "grappler":
        options = {
            "bfloat16": "auto_mixed_precision_onednn_bfloat16",
            "float16": "auto_mixed_precision",
        }
        tf.config.optimizer.set_experimental_options({options[dtype]: True})


def made_optimizer(case: bench_models.Case, mode: str, dtype: str) -> Any:
    """The case's optimizer; a neighbour's float16 has Keras' loss scaling around it."""
    import keras

    name, options = bench_models.OPTIMIZERS[case.optimizer]
    optimizer = getattr(keras.optimizers, name)(**options)
    if mode in ("keras", "grappler") and dtype == "float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def training_step(
    model: Any, loss_fn: Any, optimizer: Any, compiled: bool
) -> Callable[[Any, Any], Any]:
    """Returns (x, y) to the loss before the step: tape, model, loss, update."""
    import tensorflow as tf

    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(jit_compile=compiled)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
            scaled = optimizer.scale_loss(loss)  # the loss itself, where none is scaled
        gradients = tape.gradient(scaled, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step


def warm_up(run: Callable[[], float], more: Callable[[], bool]) -> float:
    """Runs some steps, for some time, and on while `more()`; returns the seconds.

    A few more follow: what wins a race is checked next, and may be replaced and race.
    """
    start = time.perf_counter()
    done = settled = 0
    while settled < WARMUP_CALLS or time.perf_counter() - start < WARMUP_SECONDS:
        run()
        done += 1
        settled = 0 if done < MOST_WARMUP_CALLS and more() else settled + 1
    return time.perf_counter() - start


def timed(run: Callable[[], float], seconds: float) -> tuple[list[float], float]:
    """Runs steps until the time is used; the seconds of each, and the last loss."""
    times: list[float] = []
    loss = math.nan
    end = time.perf_counter() + seconds
    while len(times) < LEAST_STEPS or time.perf_counter() < end:
        start = time.perf_counter()
        loss = run()
        times.append(time.perf_counter() - start)
    return times, loss


def memory(*, peak: bool = False) -> int:
    """Bytes in use, or at most so far: of the GPU if there is one, else resident."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        info = tf.config.experimental.get_memory_info("GPU:0")
        return int(info["peak" if peak else "current"])
    return resident(peak=peak)


def resident(*, peak: bool = False) -> int:
    """Bytes of the process in the host's memory, or at most so far."""
    statm = Path("/proc/self/statm")
    if peak or not statm.exists():  # elsewhere the peak stands for what there is
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak() -> bool:
    """Lets the peak begin anew from what is in use; False where that cannot be done.

    What was freed is given back first: glibc keeps it, and it would count as in use.
    """
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        tf.config.experimental.reset_memory_stats("GPU:0")
        return True
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak
    except (AttributeError, OSError):
        return False
    return True


def _watch_rewriting() -> list[float]:
    """The seconds of each rewrite from now on, as a list that grows.

    Without those in which operations were measured to plan from, in the same call.

    Raises:
      SystemExit: the variable had no effect, because the package is not installed.
    """
    if "amp.integration.api" not in sys.modules:
        sys.exit(
            "AMP_ENABLE=1 had no effect: tf-amp is not installed for this Python; "
            "make bench installs it, and so does pip install -e ."
        )
    from amp.integration.functions.twins import Twins
    from amp.integration.process import PROCESS

    seconds: list[float] = []
    add = Twins.add

    def watched(*args: Any, **kwargs: Any) -> Any:
        start, measured = time.perf_counter(), PROCESS.measuring.spent
        try:
            return add(*args, **kwargs)
        finally:
            measured = PROCESS.measuring.spent - measured
            seconds.append(time.perf_counter() - start - measured)

    Twins.add = watched
    return seconds


def step_report() -> Any:
    """The plugin's report of the training step, its longest; None if it made none."""
    import amp

    key = operator.attrgetter("seconds32", "nodes_total")
    return max(amp.reports(), key=key, default=None)


def settling() -> bool:
    """Whether plans still race, or another is looked for as predictions were wrong."""
    twins = importlib.import_module("amp.integration.functions.twins")
    return bool(twins.settling())


def plugin(rewriting: list[float]) -> dict[str, Any]:
    """What the plugin did: its reports, and what it spent on rewriting and measuring.

    Operations are measured once on a device: between steps, and some in a rewrite.
    """
    import amp

    process = importlib.import_module("amp.integration.process")
    measuring: float = process.PROCESS.measuring.spent
    found: dict[str, Any] = {
        "rewrite_seconds": sum(rewriting),
        "measuring_seconds": measuring,
    }
    step = step_report()
    if step is None:
        return {**found, "verdict": amp.resolve().reason}
    return {
        **found,
        "verdict": step.verdict,
        "trial": step.trial,
        "predicted": step.seconds32 / step.seconds16 if step.seconds16 else None,
        "nodes_low": step.nodes_low,
        "nodes_total": step.nodes_total,
        "casts": step.casts,
    }


if __name__ == "__main__":
    main()
