"""A float32 step without a loss scale is the step of a program that asked for none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled
from tensorflow.python.eager import context as context_lib
from tensorflow.python.eager import execute

import amp
from amp.graph_rewrite.apply import without_scale
from amp.graph_rewrite.assign.nominee import REWRITTEN
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.rewrite import Prepared, prepare
from amp.integration.runtime import definitions, twin_making
from amp.loss_scaling import provenance

UNSCALED = dataclasses.replace(REWRITTEN, unscaled=True)
X = np.linspace(-1.0, 1.0, 8 * 16, dtype="f4").reshape(8, 16)
# Traced with a scale, and run as traced.
SCALED = {"dtype": "float16", "trial": False, "min_gain": 0.9, "tune_budget": 0}


class Dense:
    """Two layers and Adam, made the same each time."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(1)
        shapes = ([16, 16], [16, 4])
        self.weights = [tf.Variable(tf.random.normal(s) / 4) for s in shapes]
        self.optimizer = keras.optimizers.Adam(0.01)
        self.optimizer.build(self.weights)

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        first, second = self.weights
        return tf.reduce_mean(tf.matmul(tf.tanh(tf.matmul(x, first)), second) ** 2)

    def step(self, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(x)
        gradients = tape.gradient(loss, self.weights)
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))
        return loss


class Embedded(Dense):
    """Rows of a table, whose gradient is IndexedSlices."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [tf.Variable(tf.reshape(tf.range(40.0) / 40.0, [10, 4]))]
        self.optimizer = keras.optimizers.Adam(0.01)
        self.optimizer.build(self.weights)

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(self.weights[0], [1, 3, 3, 7])
        return tf.reduce_mean(tf.matmul(x[:4, :4], rows) ** 2)


class Penalised(Dense):
    """A gradient inside the loss."""

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            inner = super().loss(x)
        return inner + tf.reduce_sum(tape.gradient(inner, x) ** 2)


MODELS = (Dense, Embedded, Penalised)


class Step:
    """A model's step as it is traced with a loss scale, and what becomes of it."""

    def __init__(self, model: Any, step: Callable[..., Any] | None = None) -> None:
        function = tf.function(step or model.step)
        with amp.mixed_precision_scope(**SCALED):
            self.concrete = function.get_concrete_function(tf.constant(X))
        name = self.concrete.name
        self.module = definitions.read(context_lib.context(), name)
        fields = {"dtype": "float16", "assignment": "cost"}
        self.prepared: Prepared = prepare(self.module, settled(CPU_AMX, **fields))

    def twin(self, nominee: Any = UNSCALED) -> bytes:
        made, self.rewrite = twin_making.registered(
            context_lib.context(), self.prepared, nominee
        )
        return made.name

    def call(self, name: bytes, x: Any = X) -> None:
        given = [tf.constant(x), *self.concrete.captured_inputs]
        count = len(self.concrete.outputs)
        execute.execute(name, count, given, None, context_lib.context())

    def ops(self) -> set[str]:
        """Those of the rewritten step that its results and effects need."""
        main = self.rewrite.graph.main
        ends = [*(edge.edge[0] for edge in main.results), *main.control_results]
        return {main.nodes[name].op for name in main.needed_for(ends)}


def numbers(model: Any) -> list[np.ndarray]:
    return [v.numpy() for v in (*model.weights, *model.optimizer.variables)]


def scaler_of(model: Any) -> Mapping[str, float]:
    for scaler in amp.loss_scaling.scalers():
        if scaler.serves() and scaler.positions(model.weights):
            return scaler.state_dict()
    raise AssertionError("no scaler")


@pytest.mark.parametrize("model", MODELS)
def test_it_is_the_step_of_a_program_that_asked_for_nothing(model: type) -> None:
    plain, own = model(), model()
    step, reference = Step(own), tf.function(plain.step)
    twin = step.twin()
    assert twin != step.concrete.name
    for _ in range(3):
        reference(tf.constant(X))
        step.call(twin)
    for got, want in zip(numbers(own), numbers(plain), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("model", MODELS)
def test_nothing_of_the_scaling_is_left_to_run(model: type) -> None:
    step = Step(model())
    assert {"If", "MulNoNan"} <= {n.op for n in step.module.main.nodes.values()}
    step.twin()
    assert not {"If", "IsFinite", "MulNoNan"} & step.ops()


def test_the_scaler_counts_as_in_scaled_float32() -> None:
    own = Dense()
    step = Step(own)
    twin, before = step.twin(), scaler_of(own)
    for name in (twin, step.concrete.name):
        step.call(name)
    assert scaler_of(own)["good_steps"] == before["good_steps"] + 2


def test_an_overflow_is_that_of_float32() -> None:
    """Nothing skips an update there either."""
    plain, own = Dense(), Dense()
    step, reference = Step(own), tf.function(plain.step)
    huge = np.full_like(X, np.inf)
    reference(tf.constant(huge))
    step.call(step.twin(), huge)
    assert not np.isfinite(own.weights[0].numpy()).all()
    for got, want in zip(numbers(own), numbers(plain), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_plan_that_is_to_be_scaled_is() -> None:
    step = Step(Dense())
    assert step.twin(REWRITTEN) == step.concrete.name  # there is nothing to rewrite


def test_a_program_that_scales_by_hand_keeps_its_checks() -> None:
    """It may ask what came of them."""
    own = Dense()

    def by_hand(x: tf.Tensor) -> tf.Tensor:
        scaler = amp.loss_scaling.scaler_for(own.weights)
        with tf.GradientTape() as tape:
            loss = amp.loss_scaling.scale_loss(own.loss(x), scaler)
        grads, finite = amp.loss_scaling.unscale(
            tape.gradient(loss, own.weights), scaler
        )
        scaler.update(finite)
        own.optimizer.apply_gradients(zip(grads, own.weights, strict=True))
        return tf.cast(finite, tf.float32)

    step = Step(own, by_hand)
    graphs = _graphs(step)
    nodes = [node for graph in graphs.values() for node in graph.nodes.values()]
    assert any(node.flag(ir.UNSCALE) for node in nodes)
    assert without_scale.scaling(graphs) == {}


class Second(Dense):
    """A gradient of a gradient by the weights."""

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            inner = super().loss(x)
        norms = [tf.reduce_sum(g**2) for g in tape.gradient(inner, self.weights)]
        return inner + tf.add_n(norms)


class SecondInside(Dense):
    """The same, of a function of its own."""

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        @tf.function(autograph=False)
        def norm() -> tf.Tensor:
            with tf.GradientTape() as tape:
                inner = super(SecondInside, self).loss(x)
            return tf.reduce_sum(tape.gradient(inner, self.weights[0]) ** 2)

        return super().loss(x) + norm()


class Clipped(Dense):
    """A threshold of a custom gradient, multiplied by the scale as the docs say."""

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def clip(h: tf.Tensor) -> tuple[tf.Tensor, Any]:
            def grad(dy: tf.Tensor) -> tf.Tensor:
                most = 1e-4 * amp.loss_scaling.current().scale
                return tf.clip_by_value(dy, -most, most)

            return tf.identity(h), grad

        return clip(super().loss(x))


class Told(Dense):
    """A step that returns its scale."""

    def step(self, x: tf.Tensor) -> tf.Tensor:
        super().step(x)
        return amp.loss_scaling.current().scale * 1.0


@pytest.mark.parametrize("model", [Second, SecondInside, Clipped, Told])
def test_a_scale_that_is_read_for_more_stays(model: type) -> None:
    """What is scaled, or unscaled, without a mark would be off by the whole scale."""
    assert without_scale.scaling(_graphs(Step(model()))) == {}


@pytest.mark.parametrize("model", [Second, SecondInside])
def test_a_gradient_of_a_gradient_is_float32s(model: type) -> None:
    """But for the order of its sums: some tens of roundings by 2^-24, under 1e-5."""
    plain, own = model(), model()
    step, reference = Step(own), tf.function(plain.step)
    for _ in range(3):
        reference(tf.constant(X))
        step.call(step.twin())
    for got, want in zip(numbers(own), numbers(plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8)


def test_a_branch_that_waits_for_something_else_too_stays() -> None:
    own = Dense()

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = own.loss(x)
        gradients = tape.gradient(loss, own.weights)
        pairs = zip(gradients, own.weights, strict=True)
        if tf.reduce_sum(x) > 0.0:
            own.optimizer.apply_gradients(pairs)
        return loss

    made = Step(own, step)
    before = numbers(own)
    twin = made.twin()
    made.call(twin, -np.ones_like(X))
    for got, want in zip(numbers(own), before, strict=True):
        np.testing.assert_array_equal(got, want)
    made.call(twin, np.ones_like(X))
    assert (own.weights[0].numpy() != before[0]).any()


def test_what_the_program_writes_by_a_check_is_written() -> None:
    """A sum over replicas is 0 where the gradients of any were not finite."""
    own, total = Dense(), tf.Variable(0.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = own.loss(x)
        scaled = tape.gradient(loss, own.weights)
        (call,) = provenance.behind(scaled)
        summed = tf.where(call.finite, tf.reduce_sum(scaled[0]), 0.0)
        total.assign_add(summed)
        return loss

    made = Step(own, step)
    made.call(made.twin())
    assert total.numpy() != 0.0


def test_what_comes_of_a_branch_that_stays_is_written_too() -> None:
    """Whether the update ran also hangs on the program, and a count on that."""
    own, count = Dense(), tf.Variable(0.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = own.loss(x)
        gradients = tape.gradient(loss, own.weights)

        def update() -> tf.Tensor:
            own.optimizer.apply_gradients(zip(gradients, own.weights, strict=True))
            return tf.constant(1.0)

        ran = tf.cond(tf.reduce_sum(x) > 0.0, update, lambda: tf.constant(0.0))
        count.assign_add(ran)
        return loss

    made = Step(own, step)
    twin = made.twin()
    for x, wanted in ((-np.ones_like(X), 0.0), (np.ones_like(X), 1.0)):
        made.call(twin, x)
        assert count.numpy() == wanted


class Kept(keras.optimizers.Adam):
    """Keeps a tensor of its update for the program to read."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.norm = tf.norm(gradient)
        super().update_step(gradient, variable, learning_rate)


def test_an_update_whose_tensors_are_read_outside_is_the_other_branch() -> None:
    """It is built first there, as it says what there is to read."""
    own, seen = Dense(), tf.Variable(0.0)
    own.optimizer = Kept(0.01)
    own.optimizer.build(own.weights)

    def step(x: tf.Tensor) -> tf.Tensor:
        loss = own.step(x)
        seen.assign(own.optimizer.norm)
        return loss

    made = Step(own, step)
    twin, before = made.twin(), numbers(own)
    assert not {"If", "IsFinite", "MulNoNan"} & made.ops()
    made.call(twin)
    assert seen.numpy() > 0.0
    assert (own.weights[0].numpy() != before[0]).any()


def test_a_predicate_is_asked_for_no_further_than_booleans_go() -> None:
    """One that thousands of nodes compute, one after the other."""
    own = Dense()

    def step(x: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(x)
        for _ in range(3000):
            total = total + 1.0
        own.step(x)
        return tf.cond(total > 0.0, lambda: total, lambda: -total)

    made = Step(own, step)
    made.twin()
    assert "StatelessIf" in made.ops()
    assert "MulNoNan" not in made.ops()


def test_what_it_saves_is_predicted() -> None:
    step = Step(Dense())
    foreseen, same = step.prepared.foreseen(UNSCALED), step.prepared.foreseen(REWRITTEN)
    assert foreseen.seconds < foreseen.given
    assert same.seconds == same.given == pytest.approx(foreseen.given)


def _graphs(step: Step) -> dict[calls.FunctionUse, ir.Graph]:
    uses = calls.uses_with_weights(step.module)
    return {use: calls.graph_of(step.module, use) for use in uses}
