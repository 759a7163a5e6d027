"""What a job's first step takes, by phase: in float32, and under the plugin.

A program anyone can run: `python -m benchmarks.first_step --model resnet50`. A training
step of a Keras application is traced and called for the first time, in processes of
their own that follow one another in every round: in float32 (first, or last, by turns);
under the plugin with an empty cache (cold); and with the cache that a job of `--steps`
steps has left (warm). It prints the milliseconds and the share of each phase, medians
over rounds, with the ratios of the whole to float32's, and then one line of JSON, with
the machine in it.

A phase's time is without that of the phases in it. Tracing is what the step takes
before TensorFlow is asked to run a function; "TensorFlow's call" has in it what makes
the function ready (placing, Grappler, kernels, clusters that XLA compiles).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import processes
from benchmarks.phases import Phases

MODES = ("float32", "cold", "warm")
# By name: the Keras application, the side of its images, and the batch.
MODELS = {
    "resnet50": ("ResNet50", 128, 16),
    "densenet121": ("DenseNet121", 64, 8),
    "mobilenet": ("MobileNetV2", 64, 8),
}
CLASSES = 100
PATIENCE_SECONDS = 3600.0  # for a process
OTHER = "other of the plugin"
TRACING, CALL = "tracing", "TensorFlow's call"
# When Python collects is chance: one full round more is a tenth of a small first step.
COLLECTING = "garbage collection"


def watch_tensorflow(phases: Phases) -> None:
    """To be called before the plugin's hooks are in place, which wrap what is there."""
    from tensorflow.python.eager import context, execute

    phases.watch(CALL, context.Context, "call_function")
    phases.watch(CALL, execute, "execute")
    phases.watch("register", context.Context, "add_function_def")
    phases.watch_collector(COLLECTING)


def watch_steps(phases: Phases) -> None:
    """Times the steps of a rewrite by their names."""
    from amp.graph_rewrite import rewrite

    names = vars(rewrite)  # which it imports, and does not export
    run = names["run"]

    def timed_run(steps: Any, given: Any) -> Any:
        return run(
            [
                dataclasses.replace(step, run=phases.timed(step.name, step.run))
                for step in steps
            ],
            given,
        )

    names["run"] = timed_run


def watch_plugin(phases: Phases) -> None:
    """Times the steps of a rewrite by their names, and what is around them."""
    from amp.graph_rewrite.graph import serde
    from amp.integration.contests import plan_store, stored_checks
    from amp.integration.functions import first_step, twins
    from amp.integration.measuring import operation_timer
    from amp.integration.observing import accuracy_check
    from amp.integration.runtime import definitions

    watch_steps(phases)
    phases.watch(OTHER, twins.Twins, "call")
    phases.watch("read", definitions, "read")
    phases.watch("write", serde, "write_function")
    phases.watch("look up what is known", plan_store, "fingerprint")
    phases.watch("look up what is known", plan_store, "load")
    phases.watch("look up what is known", stored_checks, "recall")
    phases.watch("find what the first step tells", first_step.FirstSteps, "_read")
    phases.watch("measure", operation_timer, "measure")
    phases.watch("begin the check", accuracy_check.AccuracyCheck, "__init__")
    phases.watch("compare gradients", accuracy_check.AccuracyCheck, "compare")


def training_step(model_name: str) -> Callable[[], float]:
    """A step of plain gradient descent on one batch; returns the loss."""
    import keras
    import numpy as np
    import tensorflow as tf

    builder, side, batch = MODELS[model_name]
    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, builder)(
        weights=None,
        input_shape=(side, side, 3),
        classes=CLASSES,
        classifier_activation=None,
    )
    random = np.random.default_rng(0)
    x = tf.constant(random.random([batch, side, side, 3], np.float32))
    y = tf.constant(random.integers(0, CLASSES, batch))
    optimizer = keras.optimizers.SGD(1e-3)
    variables = model.trainable_variables
    optimizer.build(variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return lambda: float(step(x, y))


def work(args: argparse.Namespace) -> dict[str, Any]:
    """Makes the first step, and for the cold mode all others, in this process."""
    phases = Phases()
    watch_tensorflow(phases)
    import amp

    mixed = args.worker != "float32"
    if mixed:
        watch_plugin(phases)
    step = training_step(args.model)
    policy = amp.Policy(dtype="bfloat16")
    scope = amp.mixed_precision_scope(policy) if mixed else contextlib.nullcontext()
    phases.seconds.clear()
    with scope:
        start = time.perf_counter()
        step()
        whole = time.perf_counter() - start
        first = dict(phases.seconds)
        times = [_seconds(step) for _ in range(args.steps if mixed else 3)]
    report = max(amp.reports(), key=lambda one: one.nodes_total, default=None)
    return {
        "seconds": whole,
        "phases": {TRACING: whole - sum(first.values()), **first},
        "second": times[0] if times else None,
        "median": statistics.median(times[1:]) if len(times) > 1 else None,
        "nodes": 0 if report is None else report.nodes_total,
        "trial": "" if report is None else report.trial,
        "measured_share": 0.0 if report is None else report.measured_share,
    }


def _seconds(step: Callable[[], float]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def process(args: argparse.Namespace, mode: str, cache: str) -> dict[str, Any]:
    """Runs one mode in a process of its own; returns what it found.

    Of the user's `AMP_*` variables float32 sees none: AMP_ENABLE=1 would make it mixed.
    """
    steps = args.steps if mode == "cold" else 2
    options = ["--worker", mode, "--model", args.model, "--steps", str(steps)]
    if mode == "float32":
        return asked("first_step", options, {})
    variables = {**processes.plugin_variables("auto"), "AMP_CACHE_DIR": cache}
    return asked("first_step", options, variables)


def asked(name: str, options: list[str], variables: dict[str, str]) -> dict[str, Any]:
    """What a program of this directory prints.

    Raises:
      SystemExit: it failed.
    """
    found = processes.program(name, options, variables, PATIENCE_SECONDS)
    if "error" in found:
        sys.exit(f"{' '.join([name, *options])}: {found['error']}")
    return found


def order(number: int) -> tuple[str, ...]:
    """The modes of a round: float32 is first in one and last in the next.

    What changes on the machine meanwhile helps neither. Warm follows cold.
    """
    return MODES if number % 2 == 0 else (*MODES[1:], MODES[0])


def rounds(args: argparse.Namespace) -> Iterator[dict[str, dict[str, Any]]]:
    """What each mode took, round by round; the warm one has the cold one's cache."""
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as cache:
            found = {mode: process(args, mode, cache) for mode in order(number)}
        took = "  ".join(f"{mode} {found[mode]['seconds']:.2f} s" for mode in MODES)
        print(took, file=sys.stderr, flush=True)
        yield found


def table(every: Sequence[dict[str, dict[str, Any]]]) -> str:
    """Medians over rounds: a row for each phase, the longest under the plugin first."""
    middle = {
        mode: {name: _median(every, mode, name) for name in _names(every)}
        for mode in MODES
    }
    whole = {mode: sum(phases.values()) for mode, phases in middle.items()}
    order = sorted(_names(every), key=lambda name: -middle["cold"][name])
    rows = [f"{'phase, ms (share)':28s}" + "".join(f"{mode:>16s}" for mode in MODES)]
    for name in [*order, ""]:
        cells = [whole[m] if not name else middle[m][name] for m in MODES]
        texts = [
            f"{seconds * 1e3:9.1f} ({seconds / whole[mode]:4.0%})"
            for seconds, mode in zip(cells, MODES, strict=True)
        ]
        rows.append(f"{name or 'all':28s}" + "".join(f"{text:>16s}" for text in texts))
    return "\n".join(rows)


def _names(every: Sequence[dict[str, dict[str, Any]]]) -> list[str]:
    names = (name for one in every for mode in MODES for name in one[mode]["phases"])
    return list(dict.fromkeys(names))


def _median(every: Sequence[dict[str, dict[str, Any]]], mode: str, name: str) -> float:
    return statistics.median(one[mode]["phases"].get(name, 0.0) for one in every)


def _second(every: Sequence[dict[str, dict[str, Any]]], mode: str) -> float:
    return statistics.median(one[mode]["second"] for one in every)


def ratios(every: Sequence[dict[str, dict[str, Any]]], mode: str) -> list[float]:
    """By round, the first step under the plugin over float32's."""
    return [one[mode]["seconds"] / one["float32"]["seconds"] for one in every]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the rounds and prints, or is one of their processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="of the cold job")
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        print(json.dumps(work(args)), flush=True)
        return
    machine = asked("machine", [], {})
    every = list(rounds(args))
    print(table(every))
    found = {mode: [round(each, 3) for each in ratios(every, mode)] for mode in MODES}
    for mode in MODES[1:]:
        low, high = min(found[mode]), max(found[mode])
        middle = statistics.median(found[mode])
        print(f"{mode}: {middle:.2f} of float32 ({low:.2f} to {high:.2f})")
    seconds = ", ".join(f"{mode} {_second(every, mode):.2f} s" for mode in MODES)
    print(f"the second step, which makes the twin: {seconds}")
    nodes = max(one["cold"]["nodes"] for one in every)
    print(f"nodes: {nodes}; the warm job's race: {every[-1]['warm']['trial']}")
    told = {"model": args.model, "nodes": nodes, "machine": machine, "rounds": every}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
