"""What rewriting costs: microseconds a node, from 1,000 to 100,000 nodes.

A program anyone can run: `python benchmarks/rewrite_cost.py [--profile]`. It builds
residual blocks with their gradients (with `--chain` one long chain of elementwise
operations after a product, with its gradient; with `--maps` one `tf.map_fn` after the
other) and rewrites them several times, in the two ways there are, and prints medians.
The cost is linear where the time a node is the same for all sizes:

* function: what a job pays at the first call of a traced `tf.function`; reading it from
  the runtime, deciding, applying, verifying, writing;
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
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.graph import serde
from amp.graph_rewrite.rewrite import rewrite
from amp.integration import api
from amp.integration.functions import definitions

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
# With gradients, roughly; the size reached is printed.
NODES_A_BLOCK = 13
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


def specs() -> list[tf.TensorSpec]:
    return [tf.TensorSpec([256, 1024]), *[tf.TensorSpec([1024, 1024])] * 16]


def seconds(call: Callable[[], Any]) -> float:
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def report(label: str, nodes: int, times: list[float], extra: str = "") -> None:
    each = [seconds / nodes * 1e6 for seconds in times]
    middle = statistics.median(each)
    spread = f"{min(each):.0f}-{max(each):.0f}"
    print(f"{label:9s} {nodes:8d} {middle:8.1f} {spread:>9s} {extra:>8s}", flush=True)


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--assignment", choices=("cost", "all"), default="all")
    graphs = parser.add_mutually_exclusive_group()
    for other, text in ((chain, "a long chain"), (maps, "many map_fn")):
        flag = f"--{other.__name__}"
        graphs.add_argument(
            flag, dest="graph", action="store_const", const=other, help=text
        )
    parser.set_defaults(graph=blocks)
    parser.add_argument("--profile", action="store_true", help="profile the largest")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    policy = amp.Policy(dtype="bfloat16", assignment=args.assignment, min_gain=0.0)
    settled = api.settle(policy).settled
    print(f"TensorFlow {tf.__version__}, Python {platform.python_version()}, "
          f"{os.cpu_count()} CPUs, assignment {args.assignment}")  # fmt: skip
    print(f"{'way':9s} {'nodes':>8s} {'us/node':>8s} {'spread':>9s} {'import':>8s}")
    context = context_lib.context()
    for size in args.sizes:
        concrete = tf.function(args.graph(size)).get_concrete_function(*specs())
        proto = concrete.graph.as_graph_def()
        bodies = (len(function.node_def) for function in proto.library.function)
        count = len(proto.node) + sum(bodies)

        def function(concrete: Any = concrete) -> None:
            module = definitions.read(context, concrete.name.decode())
            result = rewrite(module, settled).graph
            serde.write_function(result.main)

        def graph_def(proto: Any = proto) -> None:
            amp.rewrite(proto, policy)

        def imported(proto: Any = proto) -> None:
            with tf.Graph().as_default():
                tf.graph_util.import_graph_def(proto, name="")

        report("function", count, [seconds(function) for _ in range(args.rounds)])
        only = statistics.median(seconds(imported) for _ in range(args.rounds))
        times = [seconds(graph_def) for _ in range(args.rounds)]
        report("GraphDef", count, times, f"{only / count * 1e6:.1f}")
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(function)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
