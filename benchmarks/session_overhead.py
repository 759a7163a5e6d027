"""What the adapter adds to a session: to a run, to a twin's import, to open sessions.

A program anyone can run: `python -m benchmarks.session_overhead`. No part of the plugin
needs it.
"""

from __future__ import annotations

import functools
import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import amp
from amp.integration.sessions import policy_view
from benchmarks import worker

v1 = tf.compat.v1
POLICY = amp.Policy(dtype="bfloat16", assignment="all")
RUNS, ROUNDS, LAYERS, SESSIONS = 200, 31, 200, 1000


def opened(policy: amp.Policy | None) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A run and a callable of a small graph's session, under a policy or none."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4])
        w = v1.get_variable("w", [4, 4], initializer=v1.ones_initializer())
        product = tf.matmul(x, w)
        session = v1.Session(graph=graph)
        with switched(policy):
            session.run(w.initializer)
            session.run(product, {x: np.ones([2, 4], np.float32)})
        feed = {x: np.ones([2, 4], np.float32)}
        return functools.partial(session.run, product, feed), session.make_callable(w)


def switched(policy: amp.Policy | None) -> Any:
    return amp.mixed_precision_scope(policy) if policy else amp.keep_float32()


def microseconds(call: Callable[[], Any], policy: amp.Policy | None) -> float:
    with switched(policy):
        call()
        start = time.perf_counter()
        for _ in range(RUNS):
            call()
        return (time.perf_counter() - start) / RUNS * 1e6


def runs() -> None:
    """Both in turns; what a run takes varies by more than is added, so the least."""
    plain, twin = opened(None), opened(POLICY)
    for index, name in enumerate(("Session.run", "make_callable's callable")):
        rounds = [
            (microseconds(plain[index], None), microseconds(twin[index], POLICY))
            for _ in range(ROUNDS)
        ]
        before, after = (min(times) for times in zip(*rounds, strict=True))
        print(f"{name}: {before:.0f} us, and {after - before:.1f} us more with a twin")


def deep() -> tuple[Any, Any]:
    """A graph of thousands of nodes: many dense layers and their training by Adam."""
    x = v1.placeholder(tf.float32, [None, 8], name="x")
    for index in range(LAYERS):
        x = tf.nn.relu(tf.matmul(x, v1.get_variable(f"w{index}", [8, 8])))
    train = v1.train.AdamOptimizer().minimize(tf.reduce_mean(x))
    return train, v1.global_variables_initializer()


class Clock:
    """Seconds spent inside functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return fn(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def imports() -> None:
    """Making a whole twin, but for the planning, beside one plain import."""
    names, ratios = vars(policy_view), []  # the names that it imports as well
    plan = names["prepare"]
    for _ in range(5):
        planning, making = Clock(), Clock()
        with tf.Graph().as_default() as graph:
            train, init = deep()
            proto = graph.as_graph_def()
            names["prepare"] = planning.around(plan)
            add, policy_view.PolicyView._add = (
                policy_view.PolicyView._add,
                making.around(policy_view.PolicyView._add),
            )
            gc.collect()
            with amp.mixed_precision_scope(POLICY), v1.Session() as session:
                session.run(init)
                session.run(train, {"x:0": np.ones([2, 8], np.float32)})
            names["prepare"], policy_view.PolicyView._add = plan, add
        gc.collect()
        with tf.Graph().as_default():
            start = time.perf_counter()
            tf.graph_util.import_graph_def(proto, name="")
            once = time.perf_counter() - start
        ratios.append((making.seconds - planning.seconds) / once)
        last = (
            f"{len(proto.node)} nodes: import {once:.2f} s, plan {planning.seconds:.2f}"
        )
    print(
        f"{last} s; twin's import {statistics.median(ratios):.2f} times the plain one"
    )


def sessions() -> None:
    with tf.Graph().as_default(), amp.mixed_precision_scope(POLICY):
        w = v1.get_variable("w", [4, 4])
        product = tf.matmul(tf.ones([2, 4]), w)
        init = v1.global_variables_initializer()
        sizes = []
        for count in range(SESSIONS + 1):
            if count in (SESSIONS // 10, SESSIONS):
                gc.collect()
                sizes.append(worker.resident() / 2**20)
            with v1.Session() as session:
                session.run(init)
                session.run(product)
    grown = sizes[1] - sizes[0]
    print(
        f"{SESSIONS} sessions opened and closed: {grown:+.1f} MB after the first tenth"
    )


def main() -> None:
    runs()
    imports()
    sessions()


if __name__ == "__main__":
    main()
