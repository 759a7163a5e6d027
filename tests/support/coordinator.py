"""A coordinator with one parameter server and two workers, each a process of its own.

Run by test_parameter_server_strategy.py: `coordinator.py` prints what each job found as
one line of JSON. The servers know nothing of the plugin. They are forks made
before TensorFlow's runtime starts, so that TensorFlow is imported once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
import warnings

import keras
import numpy as np
import tensorflow as tf
from parameter_server import free_ports

import amp
from amp.graph_rewrite.graph import serde

RULE = amp.loss_scaling.DynamicLossScale(initial=8.0, growth_interval=4)
FIELDS = {"dtype": "float16", "emulate": True, "loss_scale": RULE}
NEAR_ONE = 1.0 + 2.0**-12  # float16 holds 1 instead
GOOD, BAD = 1.0, np.inf
MANY = [GOOD, BAD, GOOD] * 10
RATE = 2.0**-6


class Cluster:
    """Servers by role and number; the first worker has a successor that waits."""

    def __init__(self):
        self.ports = free_ports(3)
        names = [f"127.0.0.1:{port}" for port in self.ports]
        self.spec = {"ps": names[:1], "worker": names[1:]}
        self.wait, self.go = os.pipe()
        self.processes = [self.fork("ps", 0), self.fork("worker", 0)]
        self.processes += [self.fork("worker", 1), self.fork("worker", 0, waits=True)]
        self.reachable()

    def fork(self, role, task, waits=False):
        process = os.fork()
        if process:
            return process
        os.close(self.go)
        if not waits or os.read(self.wait, 1):
            tf.distribute.Server(self.spec, job_name=role, task_index=task).join()
        os._exit(0)

    def reachable(self):
        for port in self.ports:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.01)

    def replace_worker(self):
        os.kill(self.processes[1], signal.SIGKILL)
        os.waitpid(self.processes.pop(1), 0)
        os.write(self.go, b"1")
        self.reachable()

    def end(self):
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def strategy(self):
        spec = tf.train.ClusterSpec(self.spec)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, rpc_layer="grpc"
        )
        return tf.distribute.ParameterServerStrategy(resolver)


class Job:
    """A weight trained by hand, or by Keras with momentum; a product beside it."""

    def __init__(self, coordinator, by_keras, momentum=0.5):
        self.coordinator, strategy = coordinator, coordinator.strategy
        with strategy.scope():
            self.w = keras.Variable([1.0, 1.0]) if by_keras else tf.Variable([1.0, 1.0])
            self.sgd = keras.optimizers.SGD(RATE, momentum)
            self.sgd.build([self.w] if by_keras else [])
        replica = self.by_keras if by_keras else self.by_hand
        self.step = tf.function(lambda factor: strategy.run(replica, (factor,)))

    def gradient(self, factor):
        with tf.GradientTape() as tape:
            product = tf.matmul([[NEAR_ONE]], [[tf.identity(1.0)]])
            source = self.w.value if isinstance(self.w, keras.Variable) else self.w
            loss = tf.reduce_sum(source) * factor
        return tape.gradient(loss, source), product

    def by_hand(self, factor):
        grad, product = self.gradient(factor)
        self.w.assign_sub(RATE * grad)
        return product

    def by_keras(self, factor):
        grad, product = self.gradient(factor)
        self.sgd.apply([grad], [self.w])
        return product

    def run(self, factors, *, in_turn=False):
        results = []
        for factor in factors:
            step = self.coordinator.schedule(self.step, (tf.constant(factor),))
            results.append(step)
            if in_turn:
                self.coordinator.join()
        self.coordinator.join()
        return [float(np.squeeze(result.fetch())) for result in results]

    def found(self, products):
        scaler = amp.loss_scaling.current().states[-1]
        return {
            "w": np.asarray(self.w).tolist(),
            "slots": [np.asarray(v).tolist() for v in self.sgd.variables[2:]],
            "steps": int(self.sgd.iterations),
            "scale": float(scaler.scale),
            "device": scaler.scale.device,
            "skipped": int(scaler.skipped_steps),
            "products": products,
        }


def turns(coordinator, by_keras):
    amp.enable(strict=True, **FIELDS)
    job = Job(coordinator, by_keras)
    return job.found(job.run([GOOD, GOOD, BAD, *[GOOD] * 4], in_turn=True))


def together(coordinator):
    """Without a slot: workers that update one at once lose updates, in float32 too."""
    amp.enable(strict=True, **FIELDS)
    job = Job(coordinator, by_keras=True, momentum=0.0)
    return job.found(job.run(MANY))


def scope(coordinator):
    job = Job(coordinator, by_keras=False)
    with amp.mixed_precision_scope(strict=True, **FIELDS):
        products = job.run([GOOD, BAD])
    return job.found(products + job.run([GOOD]))


def refused(coordinator):
    """No worker has the kernels that the twins ask for."""
    amp.enable(**FIELDS)
    job, original = Job(coordinator, by_keras=True), serde.write_function

    def write(*args):
        function = original(*args)
        for node in function.node_def:
            if node.op == "MatMul":
                node.attr["_kernel"].s = b"nobody's"
        return function

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        serde.write_function = write
        products = job.run([GOOD, BAD, GOOD], in_turn=True)
        serde.write_function = original
    return {**job.found(products), "said": [str(each.message) for each in said]}


def restart(coordinator, cluster):
    amp.enable(strict=True, **FIELDS)
    job = Job(coordinator, by_keras=True)
    products = job.run([GOOD] * 4, in_turn=True)
    cluster.replace_worker()
    return job.found(products + job.run([GOOD, BAD, GOOD, GOOD], in_turn=True))


def main():
    cluster = Cluster()
    try:
        strategy = cluster.strategy()
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        jobs = {
            "hand": lambda: turns(coordinator, by_keras=False),
            "keras": lambda: turns(coordinator, by_keras=True),
            "together": lambda: together(coordinator),
            "scope": lambda: scope(coordinator),
            "refused": lambda: refused(coordinator),
            "restart": lambda: restart(coordinator, cluster),
        }
        found = {}
        for name, job in jobs.items():
            found[name] = job()
            amp.disable()
        print(json.dumps(found), flush=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            cluster.end()
        sys.stdout.flush()
        os._exit(0)  # a coordinator waits for workers that are gone


if __name__ == "__main__":
    main()
