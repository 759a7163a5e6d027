"""One process of v1 jobs: `parameter_server.py ROLE TASK PORTS DIR`.

Run by test_sync_replicas.py. A worker runs every job of `JOBS`, and prints what it
found as one line of JSON. The jobs themselves know nothing of the plugin.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

import amp

v1 = tf.compat.v1
STEPS = 5
BAD = 2  # the local step at which a worker's loss may overflow
# Job: which workers have the plugin, which one overflows, resource variables or not.
JOBS = {
    "sync": ((0, 1), 1, False),
    "sync, the chief overflows": ((0, 1), 0, True),
    "sync, one without the plugin": ((1,), 1, False),
    "sync, float32": ((), None, False),
    "async": ((0, 1), 1, False),
    "async, resources": ((0, 1), 1, True),
}
SCALE = "amp_loss_scale_0/scale/Read/ReadVariableOp"


def main(role, task, ports, folder):
    v1.disable_v2_behavior()
    addresses = [f"127.0.0.1:{port}" for port in ports.split(",")]
    cluster = tf.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    server = tf.distribute.Server(cluster, job_name=role, task_index=task)
    if role == "ps":
        server.join()
    found = {}
    for number, (name, (scaled, bad, resource)) in enumerate(JOBS.items()):
        if task in scaled:
            rule = amp.loss_scaling.DynamicLossScale(initial=8.0)
            amp.enable(dtype="float16", emulate=True, loss_scale=rule, strict=True)
        factors = [np.inf if (task, i) == (bad, BAD) else 1.0 for i in range(STEPS)]
        with tf.Graph().as_default() as graph, graph.container(f"job{number}"):
            v1.get_variable_scope().set_use_resource(resource)
            job = Job(cluster, task, synchronous=name[:4] == "sync")
            found[name] = job.run(server, factors, f"{folder}/{name}")
        amp.disable()
    print(json.dumps(found), flush=True)


@dataclasses.dataclass
class Job:
    """A weight of two elements, trained by momentum on the parameter server."""

    cluster: Any
    task: int
    synchronous: bool

    def __post_init__(self):
        worker = f"/job:worker/task:{self.task}"
        place = v1.train.replica_device_setter(
            worker_device=worker, cluster=self.cluster
        )
        with v1.device(place):
            self.w = v1.get_variable("w", initializer=[1.0, 1.0])
            self.turns = v1.get_variable("turns", initializer=[0, 0], trainable=False)
            self.turn = v1.scatter_add(self.turns, [self.task], [1])
            self.factor = v1.placeholder(tf.float32, [])
            self.step = v1.train.get_or_create_global_step()
            self.build(tf.reduce_sum(self.w) * self.factor)
            everything = v1.global_variables()
            self.missing = v1.report_uninitialized_variables(everything)
        self.slots = [v for v in everything if "Momentum" in v.name]

    def build(self, loss):
        optimizer = v1.train.MomentumOptimizer(2.0**-6, 0.5)
        self.hooks = []
        if self.synchronous:
            optimizer = v1.train.SyncReplicasOptimizer(optimizer, 2, 2)
        self.update = optimizer.minimize(loss, global_step=self.step)
        if self.synchronous:
            hook = optimizer.make_session_run_hook(self.task == 0, num_tokens=0)
            self.hooks = [hook]

    def run(self, server, factors, folder):
        if self.task:  # a monitored session would look every 30 seconds
            with v1.Session(server.target) as session:
                wait(lambda: session.run(self.missing).size == 0)
        with v1.train.MonitoredTrainingSession(
            server.target,
            is_chief=self.task == 0,
            hooks=self.hooks,
            checkpoint_dir=folder if self.task == 0 else None,
            save_summaries_steps=None,
            log_step_count_steps=None,
            stop_grace_period_secs=5,
        ) as session:
            plain = Plain(session)
            for i, value in enumerate(factors):
                wait(lambda i=i: self.mine(plain.run(self.turns), i))
                session.run(self.update, {self.factor: value})
                plain.run(self.turn)
            wait(lambda: sum(plain.run(self.turns)) >= 2 * len(factors))
            names = {op.name for op in self.w.graph.get_operations()}
            scale = [f"{SCALE}:0"] if SCALE in names else []
            found = plain.run([self.w, self.step, *self.slots, *scale])
            # Nobody leaves, and closes the queue, before all have looked.
            plain.run(self.turn)
            wait(lambda: sum(plain.run(self.turns)) >= 2 * len(factors) + 2)
        return [np.asarray(value).tolist() for value in found]

    def mine(self, turns, i):
        """Whether it is this worker's turn, so that what jobs do can be foretold."""
        return min(turns) >= i if self.synchronous else sum(turns) == 2 * i + self.task


@dataclasses.dataclass
class Plain:
    """A monitored session, past its hooks."""

    session: Any

    def run(self, fetches):
        return self.session.run_step_fn(
            lambda step_context: step_context.session.run(fetches)
        )


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait(ready):
    while not ready():
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
