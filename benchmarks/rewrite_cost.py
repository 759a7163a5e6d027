"""What rewriting costs: microseconds a node, from 1,000 to 100,000 nodes.

A program anyone can run: `python benchmarks/rewrite_cost.py [--profile]`. It builds
GraphDefs of residual blocks with their gradients, rewrites each several times, and
prints the median.
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
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import amp

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
NODES_A_BLOCK = 28  # with its gradient, roughly; the size reached is printed
POLICY = amp.Policy(dtype="bfloat16", emulate=False)


def graph(nodes: int) -> Any:
    """A GraphDef of about `nodes` nodes: blocks of products and elementwise ops."""
    with tf.Graph().as_default() as made:
        x = tf.compat.v1.placeholder(tf.float32, [256, 1024])
        weights = []
        for _ in range(max(nodes // NODES_A_BLOCK, 1)):
            weight = tf.compat.v1.get_variable(
                f"w{len(weights)}", [1024, 1024], use_resource=True
            )
            weights.append(weight)
            x = x + tf.nn.tanh(tf.matmul(x, weight) * 0.5)
        loss = tf.reduce_mean(tf.square(x))
        for grad in tf.gradients(loss, weights):
            tf.identity(grad)
        return made.as_graph_def()


def seconds(proto: Any, policy: amp.Policy) -> float:
    """Time of one whole rewrite: reading, shapes, deciding, applying, verifying."""
    gc.collect()
    start = time.perf_counter()
    amp.rewrite(proto, policy)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--assignment", choices=("cost", "all"), default="all")
    parser.add_argument("--profile", action="store_true", help="profile the largest")
    args = parser.parse_args()
    policy = amp.Policy(dtype="bfloat16", assignment=args.assignment)
    print(f"TensorFlow {tf.__version__}, Python {platform.python_version()}, "
          f"{os.cpu_count()} CPUs, assignment {args.assignment}")  # fmt: skip
    print(f"{'nodes':>8} {'seconds':>9} {'us/node':>8} {'spread':>15}")
    for size in args.sizes:
        proto = graph(size)
        seconds(graph(1000), policy)
        times = [seconds(proto, policy) for _ in range(args.rounds)]
        count = len(proto.node)
        low, high = min(times) / count * 1e6, max(times) / count * 1e6
        middle = statistics.median(times)
        print(f"{count:8d} {middle:9.3f} {middle / count * 1e6:8.1f} "
              f"{low:7.1f}-{high:.1f}", flush=True)  # fmt: skip
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(amp.rewrite, proto, policy)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
