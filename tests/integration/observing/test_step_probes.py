"""A step that is observed is the step, and says which tensor was the first to fail."""

from __future__ import annotations

import gc
import linecache
import threading

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.observing import step_probes, step_variants
from amp.integration.process import PROCESS
from amp.loss_scaling import current, stalls
from amp.loss_scaling.process import SCALING

POLICY = {"dtype": "float16", "emulate": True, "assignment": "all", "strict": True}


class Watch:
    def __init__(self, every=1):
        self.every, self.samples = every, []

    def receive(self, sample):
        self.samples.append(sample)


class Job:
    """Two products; the gradient of the first weight passes the second."""

    def __init__(self, xla=False, nested=False):
        self.w = tf.Variable(tf.ones([4, 3]), name="w")
        self.v = tf.Variable(tf.ones([3, 2]), name="v")
        self.steps = tf.Variable(0)
        inner = tf.function(self._update, jit_compile=xla)
        self.step = tf.function(inner) if nested else inner

    def _update(self, x, factor):
        with tf.GradientTape() as tape:
            hidden = tf.matmul(x, self.w, name="hidden")
            with tf.name_scope("planted"):
                hidden = hidden * factor
            loss = tf.reduce_mean(tf.matmul(hidden, self.v, name="out") ** 2)
        first, second = tape.gradient(loss, [self.w, self.v])
        self.w.assign_sub(0.01 * first)
        self.v.assign_sub(0.01 * second)
        self.steps.assign_add(1)
        return loss


X = tf.constant(np.linspace(0.1, 1.0, 8).reshape(2, 4), tf.float32)


def place(line):
    file, _, number = line.rpartition(":")
    return file, int(number)


def watched():
    """A job of which steps were observed, by whom, and the twins of its policy."""
    job, monitor = Job(), Watch()
    with amp.mixed_precision_scope(**POLICY):
        step_probes.watch(monitor)
        for _ in range(2):
            job.step(X, tf.constant(0.1))
        (twins,) = PROCESS.twins
    return job, monitor, twins


def ask(job):
    (scaler,) = current().scalers
    SCALING.asked[scaler.number] = asked = stalls.Asked(until=0.0)
    assert step_probes.ask()
    return asked, scaler.number


@pytest.mark.parametrize(("xla", "nested"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_first_tensor_that_is_not_finite_is_found_in_the_step_itself(xla, nested):
    job = Job(bool(xla), bool(nested))
    with amp.mixed_precision_scope(**POLICY):
        job.step(X, tf.constant(1.0))
        asked, number = ask(job)
        job.step(X, tf.constant(np.nan, tf.float32))
    (sample,) = asked.samples
    found = sample.finding(number)
    assert found is not None
    assert (found.variable, found.value, found.forward) == ("v", "NaN", True)
    assert "factor" in found.tensor or found.op == ""
    assert job.steps.numpy() == 2


def test_an_overflow_in_16_bits_names_the_op_and_the_type():
    job = Job()
    with amp.mixed_precision_scope(**POLICY):
        job.step(X, tf.constant(1.0))
        asked, number = ask(job)
        job.step(X, tf.constant(6e4))
    found = asked.samples[0].finding(number)
    assert (found.dtype, found.forward, found.own) == ("float16", True, False)
    assert found.value == "infinity"
    assert found.tensor == "planted/mul"
    assert linecache.getline(*place(found.line)).strip() == "hidden = hidden * factor"
    assert found.readers[0] == "out"
    assert any("gradient_tape/out/" in reader for reader in found.readers)


@pytest.mark.parametrize(("at", "rounded"), [("before", ""), ("behind", "float16")])
def test_what_float32_makes_of_rounded_values_is_not_called_its_own(at, rounded):
    """What comes to 0 only in 16 bits has a reciprocal in float32 that is infinite."""
    w = tf.Variable(tf.ones([4, 3]), name="w")

    @tf.function
    def step(x, factor):
        with tf.GradientTape() as tape:
            given = tf.math.reciprocal(factor) if at == "before" else 1.0
            hidden = tf.matmul(x * given, w)
            small = tf.reduce_sum(tf.nn.relu(hidden), 1) + tf.abs(factor)
            loss = tf.reduce_mean(tf.math.reciprocal(small))
        w.assign_sub(tape.gradient(loss, w))
        return loss

    with amp.mixed_precision_scope(**POLICY, check=False):
        step(X, tf.constant(1.0))
        asked, number = ask(None)
        w.assign(tf.zeros_like(w))
        step(X, tf.constant(0.0))
    found = asked.samples[0].finding(number)
    assert (found.op, found.dtype, found.rounded) == ("Reciprocal", "", rounded)
    assert found.forward


def test_a_finite_step_has_no_finding_and_another_is_asked():
    job = Job()
    with amp.mixed_precision_scope(**POLICY):
        job.step(X, tf.constant(1.0))
        asked, number = ask(job)
        for factor in (1e-3, np.nan, np.nan):
            job.step(X, tf.constant(factor, tf.float32))
    assert [s.finding(number) is None for s in asked.samples] == [True, False, False]


@pytest.mark.parametrize("xla", [False, True])
def test_a_step_that_is_observed_gives_what_any_other_gives(xla):
    watched, plain = Job(xla), Job(xla)
    monitor = Watch()
    with amp.mixed_precision_scope(**POLICY):
        wanted = [float(plain.step(X, tf.constant(0.1))) for _ in range(4)]
        step_probes.watch(monitor)
        found = [float(watched.step(X, tf.constant(0.1))) for _ in range(4)]
        step_probes.unwatch(monitor)
    assert len(monitor.samples) == 4
    assert watched.steps.numpy() == 4
    # The same kernels; graph optimizers are off where a step is observed, and may
    # have joined a factor to a product: one rounding of float16.
    np.testing.assert_allclose(found, wanted, rtol=2**-10)
    counts = monitor.samples[0].counts()
    assert [label.partition(":")[2] for label in counts] == ["w", "v"]
    assert [each.sum() for each in counts.values()] == [12, 6]


def test_one_call_in_so_many_is_observed():
    job, monitor = Job(), Watch(every=3)
    with amp.mixed_precision_scope(**POLICY):
        for _ in range(2):
            job.step(X, tf.constant(0.1))
        step_probes.watch(monitor)
        seen = []
        for _ in range(7):
            job.step(X, tf.constant(0.1))
            seen.append(len(monitor.samples))
    assert seen == [1, 1, 2, 2, 2, 3, 3]


def test_a_thread_does_not_wait_for_another_s_observed_step():
    probes, monitor, found = step_probes.StepProbes(strict=True), Watch(), []
    call = lambda: found.append(probes.call(b"f", b"f", None))  # noqa: E731
    step_probes.watch(monitor)
    with probes._busy:
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(60)  # only a thread that waits takes so long
        made = found.copy()
    assert made == [(False, None)]


def test_nothing_is_registered_unless_somebody_watches():
    job = Job()
    with amp.mixed_precision_scope(**POLICY):
        for _ in range(3):
            job.step(X, tf.constant(0.1))
        (twins,) = PROCESS.twins
    assert not twins._shared.probes._variants
    assert not PROCESS.monitors


def test_a_function_that_goes_takes_its_variants_along():
    job, monitor, twins = watched()
    probes = twins._shared.probes
    (name,) = probes._of
    made = probes.functions(name)
    context = step_variants.context_lib.context()
    assert made
    assert all(map(context.has_function, made))
    monitor.samples.clear()
    del job
    gc.collect()
    assert not any(map(context.has_function, made))
    assert not probes._variants


def test_a_twin_that_goes_takes_its_variant_along():
    """At the next one that is made, as nobody is told of it."""
    _job, _monitor, twins = watched()
    probes, context = twins._shared.probes, step_variants.context_lib.context()
    (name,) = probes._of
    (twin,) = probes._of[name]
    made = probes.functions(name)
    context.remove_function(twin)
    probes._variant(name, name, counts=True)
    assert not any(map(context.has_function, made))
    assert probes._of[name] == {name}


def test_a_variant_that_cannot_be_made_costs_a_warning(monkeypatch):
    job = Job()

    def broken(*_):
        raise ValueError("planted")

    monkeypatch.setattr(step_variants.step_probes, "holder", broken)
    with amp.mixed_precision_scope(**POLICY | {"strict": False}):
        watch = Watch()
        step_probes.watch(watch)
        with pytest.warns(
            RuntimeWarning, match="are not observed: ValueError: planted"
        ):
            job.step(X, tf.constant(0.1))
        job.step(X, tf.constant(0.1))
    assert job.steps.numpy() == 2


def test_a_variant_that_tensorflow_refuses_gives_way_to_the_step(monkeypatch):
    job, monitor = Job(), Watch()
    original = step_variants.step_probes.probed

    def refused(module, at, what, name):
        made = original(module, at, what, name)
        node = made.main.nodes["amp_probe_0"]
        nodes = {**made.main.nodes, node.name: node.changed(updates={"Tout": _INTEGER})}
        return type(made)(made.main.with_nodes(nodes), made.functions)

    _INTEGER = step_variants.ir.Types((step_variants.ir.INT32,))
    monkeypatch.setattr(step_variants.step_probes, "probed", refused)
    with amp.mixed_precision_scope(**POLICY | {"strict": False}):
        step_probes.watch(monitor)
        with pytest.warns(RuntimeWarning, match="are not observed"):
            job.step(X, tf.constant(0.1))
        job.step(X, tf.constant(0.1))
    assert monitor.samples == []
    assert job.steps.numpy() == 2


def test_no_step_that_is_observed_draws_what_another_drew():
    """A variant has kernels of its own, which would begin at the program's seeds."""
    w = tf.Variable(tf.ones([4, 3]), name="w")

    @tf.function
    def step(x):
        drawn = tf.random.uniform([4, 4], seed=3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(tf.matmul(x, drawn), w) ** 2)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return drawn[0, 0]

    monitor = Watch(every=2)
    with amp.mixed_precision_scope(**POLICY):
        step_probes.watch(monitor)
        drawn = [float(step(X)) for _ in range(8)]
    assert monitor.samples
    assert len({*drawn}) == len(drawn)
