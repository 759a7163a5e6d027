"""Rewrites some graphs and prints what came of them: the same in every process.

Run by a test with several values of PYTHONHASHSEED, on which the order of sets depends.
"""

from __future__ import annotations

import hashlib

import random_graphs
import tensorflow as tf
from rewriting import CPU, module_of

from amp.graph_rewrite.cost import resolution, shipped_devices
from amp.graph_rewrite.graph import ir, serde
from amp.graph_rewrite.rewrite import rewrite
from amp.policy import Policy

SEEDS = (150, 3)
FUNCTIONS = 3
POLICIES = (
    (shipped_devices.CPU_AMX, Policy(dtype="float16", emulate=True)),
    (CPU, Policy(dtype="bfloat16", assignment="all")),
    (CPU, Policy(dtype="float16", min_gain=0.0)),
)


def of_many_functions() -> ir.Module:
    """Branches and loops, whose functions are all rewritten."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [64, 64], name="x")
        for index in range(FUNCTIONS):
            x = tf.while_loop(
                lambda i, y: i < 4,
                lambda i, y: (i + 1, tf.tanh(tf.matmul(y, y))),
                [tf.constant(0), x],
                name=f"loop_{index}",
            )[1]
        tf.identity(x, name="end")
    return module_of(graph.as_graph_def())


def main() -> None:
    modules = {f"random {seed}": random_graphs.module(seed) for seed in SEEDS}
    modules["functions"] = of_many_functions()
    for name, module in modules.items():
        for device, policy in POLICIES:
            made = rewrite(module, resolution.resolve(policy, device))
            graph = serde.write_graph(made.graph)
            # The library in the order in which it is written; attributes in theirs.
            digest = hashlib.sha256(graph.SerializeToString(deterministic=True))
            report = made.report.to_json()
            print(name, policy, digest.hexdigest(), report, sep="\t")


if __name__ == "__main__":
    main()
