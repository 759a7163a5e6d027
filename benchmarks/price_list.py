"""How right the prices of a model's operations are on this machine, op by op.

A program anyone can run: `python -m benchmarks.price_list --model mobilenet_v2`. It
traces a training step, has each distinct operation that a plan may turn predicted by
the device's figures (shipped, or those of `amp tune`), and measures it alone, in
float32 and in 16 bits. For each op it prints the milliseconds a step, predicted and
measured, and how many times as long as predicted it takes: the costliest first. With
`--each` there is a line for each operation as well. A ratio far from 1 in one of the
two types is a plan gone wrong until the job has measured for itself.
"""

from __future__ import annotations

import argparse
import collections
import importlib
from collections.abc import Iterable, Sequence

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite import rewrite
from amp.graph_rewrite.cost.op_instance import Instance, Times
from amp.integration import api
from amp.integration.measuring import operation_timer
from amp.integration.runtime import definitions, shape_inference
from benchmarks import bench_models, worker

MOST_SECONDS = 9.0  # counted for an operation that has no kernel in 16 bits


def instances(model: str) -> list[Instance]:
    """The operations of a training step that may be measured, each once."""
    case = bench_models.ALL[model]
    module = importlib.import_module(f"models.{case.module}")
    batch, sizes = case.arguments(quick=False)
    made = worker.example_batch(module, batch, sizes)
    data = tf.nest.map_structure(tf.constant, made)
    built = getattr(module, case.builder)(**sizes)
    optimizer = worker.made_optimizer(case, "amp", "bfloat16")
    step = worker.training_step(built, module.LOSS(), optimizer, compiled=False)
    with amp.mixed_precision_scope(dtype="bfloat16"):  # in which shapes are kept
        concrete = step.get_concrete_function(*data)  # type: ignore[attr-defined]
    found: dict[str, Instance] = {}

    def timer(wanted: Sequence[Instance]) -> dict[str, Times]:
        for one in wanted:
            found.setdefault(one.key, one)
        return {}

    read = definitions.read(context_lib.context(), concrete.name)
    called = [*tf.nest.flatten(data), *concrete.captured_inputs]
    settled = api.settle(amp.Policy(dtype="bfloat16", min_gain=0.0)).settled
    sizes_at_call = shape_inference.at_call(called)
    rewrite.begin(read, settled, sizes=sizes_at_call).prepared(timer)
    return sorted(found.values(), key=lambda one: -one.runs * max(one.predicted))


def line(label: str, pairs: Iterable[tuple[Instance, Times]]) -> str:
    """Milliseconds a step of some operations, predicted and measured in each type."""
    cells = []
    for form in (0, 1):
        foreseen = seen = 0.0
        for one, times in pairs:
            foreseen += one.runs * one.predicted[form] * 1e3
            seen += one.runs * min(times[form], MOST_SECONDS) * 1e3
        ratio = seen / foreseen if foreseen else float("nan")
        cells.append(f"{foreseen:10.2f} {seen:9.2f} {ratio:7.2f}")
    return f"{label:38.38s}" + "".join(cells)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=bench_models.ALL, default="mobilenet_v2")
    parser.add_argument("--seconds", type=float, default=60.0, help="to measure in")
    parser.add_argument("--each", action="store_true", help="a line an operation too")
    args = parser.parse_args(argv)
    wanted = instances(args.model)
    times = dict(operation_timer.measure(wanted, args.seconds))
    by_op: dict[str, list[tuple[Instance, Times]]] = collections.defaultdict(list)
    for one in wanted:
        if one.key in times:
            by_op[one.op].append((one, times[one.key]))
    print(f"{args.model} on {amp.device().describe()}")
    print(f"{len(times)} of {len(wanted)} operations measured; ms a step")
    head = f"{'priced':>10s} {'took':>9s} {'times':>7s}" * 2
    print(f"{'float32, then 16 bits':38s}{head}")

    def took(op: str) -> float:
        return sum(one.runs * seen[0] for one, seen in by_op[op])

    for op in sorted(by_op, key=took, reverse=True):
        print(line(op, by_op[op]))
        for pair in by_op[op] if args.each else ():
            print(
                line(f"  {pair[0].runs:.0f} x {pair[0].key.removeprefix(op)}", [pair])
            )


if __name__ == "__main__":
    main()
