"""`amp.compare` on planted faults: the cause is named; and it leaves no trace."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.errors import GraphError
from amp.graph_rewrite.candidates.context import FORMATS
from amp.graph_rewrite.ops import op_table
from amp.integration.comparing import fitted_scale
from amp.integration.measuring import hardware
from amp.loss_scaling import DynamicLossScale, stalls

HALF = amp.Policy(dtype="float16", emulate=True, assignment="all")
BRAIN = amp.Policy(dtype="bfloat16", emulate=True, assignment="all")
RANDOM = np.random.default_rng(0)


def normal(*shape, scale=1.0):
    return tf.constant(RANDOM.normal(0.0, scale, shape), tf.float32)


def parted(found):
    return found.tensors[found.parting.tensor]


def tensor_of(found, name):
    return next(tensor for tensor in found.tensors if tensor.name == name)


WEIGHTS = tf.Variable(normal(64, 64, scale=0.1))


def test_what_rounding_explains_parts_nowhere():
    def forward(x):
        return tf.matmul(tf.nn.relu(tf.matmul(x, WEIGHTS)), WEIGHTS)

    found = amp.compare(forward, normal(32, 64), policy=HALF)
    assert found.parting is None
    assert found.within()
    assert 0 < found.error < 8 * FORMATS["float16"].unit
    assert "none parts from float32" in str(found)


def test_an_epsilon_that_float16_rounds_to_0_is_named_with_its_line():
    dead = tf.constant([1.0] * 32 + [0.0] * 32)

    def forward(x, epsilon):
        hidden = tf.matmul(x, WEIGHTS) * dead
        return tf.matmul(hidden * tf.math.rsqrt(hidden * hidden + epsilon), WEIGHTS)

    found = amp.compare(forward, normal(8, 64), tf.constant(1e-8), policy=HALF)
    assert parted(found).name == "epsilon"
    assert parted(found).underflowed == 1.0
    assert found.parting.cause == "range"
    assert "hidden * hidden + epsilon" in found.parting.line
    assert found.parting.line.startswith("test_compare.py:")
    assert tensor_of(found, "Rsqrt").overflowed == 0.5
    assert not found.within(0.5)


def test_a_mask_beyond_float16_is_named_and_a_node_suggested():
    def attend(query, key, mask):
        weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + mask)
        return tf.matmul(weights, key)

    mask = np.zeros((2, 16, 16), np.float32)
    mask[0], mask[1, :, 8:] = -1e9, -1e9
    given = normal(2, 16, 64), normal(2, 16, 64), tf.constant(mask)
    found = amp.compare(attend, *given, policy=HALF, suggest=0.01)
    assert parted(found).name == "mask"
    assert found.parting.cause == "range"
    assert "1e+09" in found.parting.text
    assert found.suggestion.reached
    assert found.suggestion.nodes <= 2
    kept = dataclasses.replace(HALF, keep=found.suggestion.keep)
    assert amp.compare(attend, *given, policy=kept).within(0.01)


def test_what_is_not_finite_in_float32_either_is_the_models():
    def forward(x):
        return tf.matmul(tf.math.log(tf.matmul(x, WEIGHTS) - 1e3), WEIGHTS)

    found = amp.compare(forward, normal(4, 64), policy=HALF)
    first = next(tensor for tensor in found.tensors if tensor.not_finite)
    assert first.op == "Log"
    assert found.parting is None
    assert "not finite in float32 either" in " ".join(str(found).split())


def step_of(loss_of, optimizer, weights=WEIGHTS):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(tf.matmul(x, weights))
        gradients = tape.gradient(loss, [weights])
        optimizer.apply_gradients(zip(gradients, [weights], strict=True))
        return loss

    return step


def test_a_summed_loss_needs_a_scale_under_1_and_that_is_said():
    weights = tf.Variable(normal(64, 64, scale=0.1))
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build([weights])
    step = step_of(lambda y: 3e3 * tf.reduce_sum(y**2), optimizer, weights)
    policy = amp.Policy(dtype="float16", emulate=True, assignment="all")
    given = normal(32, 64)
    found = amp.compare(step, given, policy=policy)
    assert found.loss_scale < 1
    assert "a sum over a batch" in " ".join(str(found).split())
    looked = amp.compare(step, given, policy=policy, dry_run=True)
    assert looked.largest_scale < 1
    assert found.loss_scale <= 2 * looked.largest_scale
    assert "under 1" in " ".join(str(looked).split())


def test_a_sensitive_recurrence_is_told_from_a_conversion_fault():
    turn = tf.Variable(1.5 * np.linalg.qr(RANDOM.normal(size=(64, 64)))[0], tf.float32)
    turn = tf.Variable(tf.cast(turn, tf.float32))

    def recurrence(x):
        for _ in range(16):
            x = tf.sin(3.0 * tf.matmul(x, turn))
        return x

    found = amp.compare(recurrence, normal(8, 64), policy=BRAIN, suggest=0.2)
    assert found.parting.cause == "sensitive"
    assert "times as much" in found.parting.text
    assert found.error > 0.5
    assert found.suggestion.reached
    assert not found.kernels


def test_a_loop_is_looked_into_and_the_trip_is_named():
    turn = tf.constant(np.linalg.qr(RANDOM.normal(size=(64, 64)))[0], tf.float32)

    def body(index, x):
        product = tf.matmul(x, turn, name="product")
        return index + 1, tf.sin(3.0 * product, name="steep")

    def recurrence(x):
        return tf.while_loop(lambda index, x: index < 16, body, (0, x))[1]

    found = amp.compare(recurrence, normal(8, 64), policy=BRAIN)
    assert "product" in {tensor.name.rpartition("/")[2] for tensor in found.tensors}
    assert parted(found).op == "Sin"
    assert "in trip" in found.parting.text
    assert "3.0 * product" in found.parting.line
    assert not any("seen only" in note for note in found.notes)


def test_what_the_gradient_of_a_loop_takes_from_lists_comes_with_errors():
    weights = tf.Variable(normal(64, 64, scale=0.1))

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            _, y = tf.while_loop(
                lambda index, y: index < 6,
                lambda index, y: (index + 1, x + tf.tanh(tf.matmul(y, weights))),
                (0, x),
            )
            loss = tf.reduce_mean(y**2)
        return tape.gradient(loss, [weights])

    found = amp.compare(gradients, normal(32, 64), policy=BRAIN)
    assert any("TensorList" in tensor.op for tensor in found.tensors)
    assert found.parting is None


def test_the_branch_that_runs_is_looked_into():
    def forward(x, large):
        def taken():
            return tf.matmul(1e4 * tf.matmul(x, WEIGHTS), WEIGHTS, name="taken")

        return tf.cond(large, taken, lambda: x)

    inside = {}
    for large in (True, False):
        found = amp.compare(forward, normal(8, 64), tf.constant(large), policy=HALF)
        names = {tensor.name.rpartition("/")[2] for tensor in found.tensors}
        inside[large] = "taken" in names
    assert inside == {True: True, False: False}


@pytest.mark.kernels
@pytest.mark.skipif(
    "bfloat16" not in hardware.device().native, reason="no kernel of its own to check"
)
def test_a_kernel_that_is_wrong_by_itself_is_a_conversion_fault(monkeypatch):
    # TensorFlow's own: it adds up in bfloat16, so that sums stop growing at 256.
    row = dataclasses.replace(op_table.facts("Cumsum"), accumulates_low=())
    rows = MappingProxyType({**op_table.ROWS, "Cumsum": row})
    monkeypatch.setattr(op_table, "ROWS", rows)
    monkeypatch.setattr("amp.graph_rewrite.candidates.context.TABLE", rows)

    def forward(x):
        return tf.matmul(tf.cumsum(tf.abs(tf.matmul(x, WEIGHTS))), WEIGHTS)

    policy = amp.Policy(dtype="bfloat16", assignment="all")
    found = amp.compare(forward, normal(2048, 64), policy=policy)
    assert found.parting.cause == "kernel"
    assert parted(found).op == "Cumsum"
    assert [kernel.name for kernel in found.kernels] == ["Cumsum"]
    assert found.kernels_checked > 1
    assert "CONVERSION FAULT" in str(found)
    assert not found.within()


def test_a_training_step_is_not_taken():
    weights = tf.Variable(normal(64, 64, scale=0.1))
    optimizer = tf.keras.optimizers.Adam(0.1)
    optimizer.build([weights])
    step = step_of(lambda y: tf.reduce_mean(y**2), optimizer, weights)
    before = [v.numpy() for v in (weights, *optimizer.variables)]
    given = normal(32, 64)
    found = amp.compare(step, given, policy=HALF, suggest=1e-4)
    amp.compare(step, given, dry_run=True)
    after = [v.numpy() for v in (weights, *optimizer.variables)]
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
    assert {tensor.role for tensor in found.tensors} == {"", "result", "gradient"}
    assert all(s.skipped_steps.numpy() == 0 for s in amp.loss_scaling.current().scalers)


def test_no_function_of_a_comparison_stays_registered():
    def forward(x):
        return tf.matmul(x, WEIGHTS)

    function = tf.function(forward).get_concrete_function(normal(4, 64))
    amp.compare(function, normal(4, 64), policy=HALF)
    names = map(str, context_lib.context().list_function_names())
    assert not [name for name in names if "_compared_" in name]


def test_random_numbers_are_the_same_on_both_sides():
    generator = tf.random.Generator.from_seed(1)

    def forward(x):
        x = tf.nn.dropout(tf.matmul(x, WEIGHTS), 0.5)
        noise = tf.random.normal([64]) + generator.normal([64])
        return tf.matmul(x, WEIGHTS) + noise

    state = generator.state.numpy()
    found = amp.compare(forward, normal(32, 64), policy=HALF)
    assert found.within()
    assert any("drawn once" in note for note in found.notes)
    assert np.array_equal(generator.state.numpy(), state)


def test_random_numbers_in_a_loop_are_the_same_on_both_sides():
    def forward(x):
        def body(index, x):
            return index + 1, tf.nn.dropout(tf.matmul(x, WEIGHTS), 0.5)

        return tf.while_loop(lambda index, x: index < 3, body, (0, x))[1]

    found = amp.compare(forward, normal(32, 64), policy=HALF)
    assert found.error < 0.01


def test_one_batch_of_an_iterator_is_taken_for_both_sides():
    data = tf.data.Dataset.from_tensor_slices(normal(8, 4, 64))
    batches = iter(data)

    @tf.function
    def forward():
        return tf.matmul(next(batches), WEIGHTS)

    assert amp.compare(forward, policy=HALF).within()
    assert len([*batches]) == 7


def test_what_is_printed_is_printed_once(capfd):
    @tf.function
    def forward(x):
        x = tf.random.uniform([]) + tf.matmul(x, WEIGHTS)
        tf.print("here", output_stream="file:///dev/stdout")
        return x

    amp.compare(forward, normal(4, 64), policy=HALF)
    assert capfd.readouterr().out.count("here") == 1


def test_gradients_that_cancel_to_nothing_are_noise():
    weights, bias = tf.Variable(normal(64, 64, scale=0.1)), tf.Variable(tf.zeros([64]))

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            hidden = tf.nn.bias_add(tf.matmul(x, weights), bias)
            hidden -= tf.reduce_mean(hidden, 0)  # so that the bias has no effect
            loss = tf.reduce_mean(tf.tanh(hidden) ** 2)
        return tape.gradient(loss, [weights, bias])

    found = amp.compare(gradients, normal(64, 64), policy=HALF)
    noise = [tensor for tensor in found.tensors if tensor.noise]
    assert noise
    assert all(not tensor.parted for tensor in noise)
    assert found.error < 0.05
    assert "noise" in str(found)


def test_a_plan_that_converts_nothing_is_compared_as_if_everything_were_converted():
    def forward(x):
        return tf.matmul(x, WEIGHTS)

    found = amp.compare(
        forward, normal(2, 64), policy=amp.Policy(dtype="bfloat16", min_gain=0.99)
    )
    assert any(tensor.dtype == "bfloat16" for tensor in found.tensors)
    assert any("AMP_ASSIGNMENT=all" in note for note in found.notes)


def test_scales_that_are_tried_out_are_not_warned_of(monkeypatch, caplog):
    weights = tf.Variable(normal(64, 64))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = 1e16 * tf.reduce_sum(tf.matmul(x, weights))
        return tape.gradient(loss, [weights])

    held, floors = fitted_scale.hold, []

    def hold(state, scale):
        used = held(state, scale)
        stalls.look()  # as the thread does now and then
        floors.append(scale <= DynamicLossScale().minimum)
        return used

    monkeypatch.setattr(fitted_scale, "hold", hold)
    amp.compare(step, normal(64, 64), policy=HALF, dry_run=True)
    assert any(floors)
    stalls.look()
    assert caplog.messages == []


def test_inside_of_another_function_it_refuses():
    with tf.Graph().as_default(), pytest.raises(GraphError, match=r"no call of a"):
        amp.compare(lambda x: tf.matmul(x, x), tf.zeros([4, 4]), policy=HALF)
