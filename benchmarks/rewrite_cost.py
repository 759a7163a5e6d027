"""What rewriting costs: microseconds a node, from 1,000 to 100,000 nodes.

A program anyone can run: `python -m benchmarks.rewrite_cost [--profile]`. It builds
residual blocks with their gradients (with `--step` a training step of residual layers
with batch normalisation; with `--chain` one long chain of elementwise operations after
a product, with its gradient; with `--maps` one `tf.map_fn` after the other; each with
`--unknown` traced for any batch size, which has to be found for the call) and
rewrites them several times, in the two ways there are, and prints medians of processor
time. The cost is linear where the time a node is the same for all sizes. `--phases`
shows where the time of the largest goes:

* function: what a job pays for the plan of a traced `tf.function`; reading it from the
  runtime, its fingerprint, deciding by the times that are stored, applying, verifying,
  making clusters, writing (what an earlier run has proven is not proven again);
* GraphDef: `amp.rewrite`, where TensorFlow's own import, which infers the shapes, comes
  on top (the column import).
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import platform
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite import rewrite
from amp.graph_rewrite.assign.nominee import CUT
from amp.graph_rewrite.graph import op_schema, serde
from amp.graph_rewrite.steps import uncollected
from amp.integration import api
from amp.integration.contests import plan_store
from amp.integration.measuring import job_timer
from amp.integration.measuring.job_timer import Noted
from amp.integration.runtime import definitions, shape_inference
from benchmarks.first_step import watch_steps
from benchmarks.phases import Phases

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
# With gradients, roughly; the size reached is printed.
NODES_A_BLOCK = 13
NODES_A_LAYER = 97
NODES_A_LINK = 11
NODES_A_MAP = 34


def blocks(nodes: int) -> Callable[..., list[tf.Tensor]]:
    """A computation of about `nodes` nodes: products, elementwise ops, gradients."""

    def build(x: tf.Tensor, *weights: tf.Tensor) -> list[tf.Tensor]:
        for index in range(max(nodes // NODES_A_BLOCK, 1)):
            product = tf.matmul(x, weights[index % len(weights)])
            x = x + tf.nn.tanh(product * 0.5)
        loss = tf.reduce_mean(tf.square(x))
        return [tf.identity(grad) for grad in tf.gradients(loss, weights)]

    return build


def step(nodes: int) -> Callable[..., list[tf.Tensor]]:
    """A training step: products, biases, batch normalisation; gradients and updates."""
    count = max(nodes // NODES_A_LAYER, 1)
    kernels = [tf.Variable(tf.zeros([1024, 1024])) for _ in range(16)]
    vectors = [tf.Variable(tf.ones([1024])) for _ in range(3 * count)]

    def build(x: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for index in range(count):
                bias, scale, shift = vectors[3 * index : 3 * index + 3]
                y = tf.nn.bias_add(tf.matmul(x, kernels[index % 16]), bias)
                mean, variance = tf.nn.moments(y, [0])
                normal = tf.nn.batch_normalization(
                    y, mean, variance, shift, scale, 1e-3
                )
                x = x + tf.nn.relu(normal)
            loss = tf.reduce_mean(tf.square(x))
        variables = [*kernels[:count], *vectors]
        for variable, gradient in zip(
            variables, tape.gradient(loss, variables), strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        return loss

    return build


def chain(nodes: int) -> Callable[..., list[tf.Tensor]]:
    """A product, then one elementwise operation after the other, and the gradient."""

    def build(x: tf.Tensor, *weights: tf.Tensor) -> list[tf.Tensor]:
        y = tf.matmul(x, weights[0])
        for _ in range(max(nodes // NODES_A_LINK, 1)):
            y = tf.tanh(y) * 1.5
        return tf.gradients(tf.reduce_mean(y), [x])

    return build


def maps(nodes: int) -> Callable[..., list[tf.Tensor]]:
    """One `tf.map_fn` after the other: a loop with two functions each."""

    def build(x: tf.Tensor, *weights: tf.Tensor) -> list[tf.Tensor]:
        for index in range(max(nodes // NODES_A_MAP, 1)):
            weight = weights[index % len(weights)]
            x = tf.map_fn(lambda row, w=weight: tf.tanh(tf.linalg.matvec(w, row)), x)
        return [x]

    return build


def specs(rows: int | None = 256) -> list[tf.TensorSpec]:
    """The arguments: a batch of so many rows, of any number for None, and weights."""
    return [tf.TensorSpec([rows, 1024]), *[tf.TensorSpec([1024, 1024])] * 16]


def seconds(call: Callable[[], Any]) -> float:
    gc.collect()
    start = time.thread_time()
    call()
    return time.thread_time() - start


def report(label: str, nodes: int, times: list[float], extra: str = "") -> None:
    each = [seconds / nodes * 1e6 for seconds in times]
    middle = statistics.median(each)
    spread = f"{min(each):.0f}-{max(each):.0f}"
    print(f"{label:9s} {nodes:8d} {middle:8.1f} {spread:>9s} {extra:>8s}", flush=True)


def show(phases: Phases, nodes: int) -> None:
    """Prints the microseconds a node of each phase, the longest first."""
    for name, taken in sorted(phases.seconds.items(), key=lambda item: -item[1]):
        print(f"  {name:28s} {taken / nodes * 1e6:6.1f}")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--assignment", choices=("cost", "all"), default="cost")
    graphs = parser.add_mutually_exclusive_group()
    others = ((step, "a training step"), (chain, "a long chain"))
    for other, text in (*others, (maps, "many map_fn")):
        flag = f"--{other.__name__}"
        graphs.add_argument(
            flag, dest="graph", action="store_const", const=other, help=text
        )
    parser.set_defaults(graph=blocks)
    parser.add_argument(
        "--unknown", action="store_true", help="trace with an unknown batch size"
    )
    parser.add_argument("--profile", action="store_true", help="profile the largest")
    parser.add_argument("--phases", action="store_true", help="its time by phase")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    policy = amp.Policy(dtype="bfloat16", assignment=args.assignment, min_gain=0.0)
    settled = api.settle(policy).settled
    print(f"TensorFlow {tf.__version__}, Python {platform.python_version()}, "
          f"{os.cpu_count()} CPUs, assignment {args.assignment}")  # fmt: skip
    print(f"{'way':9s} {'nodes':>8s} {'us/node':>8s} {'spread':>9s} {'import':>8s}")
    context = context_lib.context()
    phases = Phases(time.thread_time)
    if args.phases:
        watch_steps(phases)
        phases.watch("read", definitions, "read")
        phases.watch("fingerprint", plan_store, "fingerprint")
        phases.watch("write", serde, "write_function")
    for size in args.sizes:
        given = specs(None if args.unknown else 256)
        concrete = tf.function(args.graph(size)).get_concrete_function(*given)
        called = [*specs(), *concrete.inputs[len(given) :]]
        proto = concrete.graph.as_graph_def()
        bodies = (len(function.node_def) for function in proto.library.function)
        count = len(proto.node) + sum(bodies)

        @uncollected()
        def function(concrete: Any = concrete, called: Any = called) -> None:
            module = definitions.read(context, concrete.name.decode())
            plan_store.fingerprint(module, settled)
            sizes = shape_inference.at_call(called)
            begun = rewrite.begin(module, settled, sizes=sizes)
            prepared = begun.prepared(Noted(settled, job_timer.stored))
            result = prepared.made(CUT, later=True).graph
            serde.write_function(result.main, op_schema.lookup_of(result))

        def graph_def(proto: Any = proto) -> None:
            amp.rewrite(proto, policy)

        def imported(proto: Any = proto) -> None:
            with tf.Graph().as_default():
                tf.graph_util.import_graph_def(proto, name="")

        function()
        phases.seconds.clear()
        report("function", count, [seconds(function) for _ in range(args.rounds)])
        if args.phases and size == args.sizes[-1]:
            show(phases, count * args.rounds)
        only = statistics.median(seconds(imported) for _ in range(args.rounds))
        times = [seconds(graph_def) for _ in range(args.rounds)]
        report("GraphDef", count, times, f"{only / count * 1e6:.1f}")
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(function)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
