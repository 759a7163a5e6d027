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


def until_settled() -> ir.Module:
    """A loop to a tolerance: nodes that the condition comes from have one reason."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [64, 64], name="x")
        z = tf.while_loop(
            lambda old, new: tf.reduce_max(tf.abs(new - old)) > 1e-5,
            lambda old, new: (new, tf.tanh(tf.matmul(new, x) * 0.5 + x)),
            [x, tf.ones_like(x)],
        )[1]
        tf.identity(tf.matmul(z, x), name="end")
    return module_of(graph.as_graph_def())


def tied() -> ir.Module:
    """Kernels of pooling and of two gradients, which stay float32 together."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [8, 16, 16, 8], name="x")
        w = tf.compat.v1.placeholder(tf.float32, [3, 3, 8, 8], name="w")
        y = x
        for _ in range(3):
            y = tf.nn.max_pool2d(tf.nn.conv2d(y, w, 1, "SAME"), 2, 1, "SAME")
        (first,) = tf.gradients(y, w)
        tf.identity(tf.gradients(tf.reduce_sum(tf.square(first)), w)[0], name="end")
    return module_of(graph.as_graph_def())


def handed_out() -> ir.Module:
    """A batch that is moved, multiplied, and fetched from several places."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [64, 64], name="x")
        moved = tf.transpose(tf.reshape(x, [8, 8, 64]), [1, 0, 2])
        for name in "one", "two", "three", "four":
            tf.identity(moved, name=name)
        tf.identity(tf.matmul(tf.reshape(moved, [64, 64]), x), name="end")
    return module_of(graph.as_graph_def())


FETCHED = frozenset({"one", "two", "three", "four", "end"})


def main() -> None:
    modules = {f"random {seed}": random_graphs.module(seed) for seed in SEEDS}
    modules["functions"] = of_many_functions()
    modules |= {"settles": until_settled(), "ties": tied(), "fetched": handed_out()}
    settled = resolution.resolve(POLICIES[1][1], CPU)
    modules["again"] = rewrite(modules["functions"], settled).graph
    for name, module in modules.items():
        for device, policy in POLICIES:
            fetches = FETCHED & module.main.nodes.keys()
            settled = resolution.resolve(policy, device)
            made = rewrite(module, settled, fetches=fetches)
            graph = serde.write_graph(made.graph)
            # The library in the order in which it is written; attributes in theirs.
            digest = hashlib.sha256(graph.SerializeToString(deterministic=True))
            report = made.report.to_json()
            print(name, policy, digest.hexdigest(), report, sep="\t")


if __name__ == "__main__":
    main()
