"""Twins of the train steps of models/ agree with their originals within derived bounds.

A gradient is a chain of `depth` operations that round (the most 16-bit nodes in a row).
Each rounds to within u of its value, relative: 2**-8 in bfloat16, 2**-11 in float16.
The errors of many elements are independent, so the relative error of a whole tensor, in
the 2-norm, grows as the root of the number of roundings in a row, as long as no
operation enlarges relative errors. Subtractions do: a gradient is a sum of terms of
both signs over a batch, and logits less their maximum are smaller than the logits. Both
enlarge by the ratio of the terms' size to the sum's, at most AMPLIFIED for these models
at initialisation:

    |twin - original| <= AMPLIFIED * sqrt(depth) * u * |original|

in the 2-norm of all gradients together, so that the cosine between the two is at least
sqrt(1 - bound**2). A ReLU whose operand is within rounding of 0, a fraction of about u
of them, may flip, which changes u of the norm's square, sqrt(u) of the norm: that is
added for the gradients of models with ReLU.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import thorough
from rewriting import PAYING, low, settled, traced
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite import rewrite
from amp.graph_rewrite.graph import ir, op_schema, serde
from models import lstm_lm, mlp, resnet, transformer

pytestmark = pytest.mark.kernels

AMPLIFIED = 3.0
MODELS = [mlp, resnet, lstm_lm, transformer]
FORMS = [
    pytest.param("bfloat16", False, id="bfloat16-native"),
    pytest.param("float16", True, id="float16-emulated"),
]
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
RELU = {mlp, resnet}
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)


def step_of(model: types.ModuleType) -> tuple[Any, tuple[tf.Tensor, tf.Tensor]]:
    """A function that gives loss and all gradients of a model, and its batch."""
    keras.utils.set_random_seed(0)
    made = model.build()
    loss_of = model.LOSS()
    x, y = map(tf.constant, model.example_batch(8, seed=1))

    @tf.function(jit_compile=False)
    def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = loss_of(y, made(x, training=True))
        grads = tape.gradient(loss, made.trainable_variables)
        flat = [tf.reshape(tf.convert_to_tensor(grad), [-1]) for grad in grads]
        return loss, tf.concat(flat, 0)

    return step, (x, y)


def depth_of(module: ir.Module, low: set[str]) -> int:
    """The most 16-bit nodes in a row, function by function, loops unrolled once."""
    longest = 0
    for graph in module.graphs():
        rows: dict[str, int] = {}
        for name in graph.order:
            node = graph.nodes[name]
            before = max((rows.get(edge[0], 0) for edge in node.inputs), default=0)
            rows[name] = before + (name in low)
        longest = max(longest, *rows.values())
    return longest


@each_model
@pytest.mark.parametrize(("dtype", "emulate"), FORMS)
def test_loss_and_gradients_of_a_train_step_agree(
    model: types.ModuleType, dtype: str, emulate: bool
) -> None:
    step, batch = step_of(model)
    want_loss, want = step(*batch)
    policy = amp.Policy(dtype=dtype, assignment="all", emulate=emulate, strict=True)
    policy = dataclasses.replace(policy, loss_scale="none")
    with amp.mixed_precision_scope(policy):
        got_loss, got = step(*batch)
    (report,) = [report for report in amp.reports() if report.nodes_low]
    low = {d.node.rpartition("::")[2] for d in report.decisions if d.dtype == dtype}
    module, _ = traced(step, *batch)
    steps = 12 if model is lstm_lm else 1  # its loops run over the sequence
    depth = depth_of(module, low) * steps
    bound = AMPLIFIED * np.sqrt(depth) * UNITS[dtype]
    # The loss is one smooth function of the logits and no kink breaks it.
    assert abs(float(got_loss - want_loss)) <= bound * float(want_loss)
    if model in RELU:
        bound += np.sqrt(UNITS[dtype])
    want, got = want.numpy().astype(np.float64), got.numpy().astype(np.float64)
    off = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 0 < off <= bound < 1
    cosine = want @ got / np.linalg.norm(want) / np.linalg.norm(got)
    assert cosine >= np.sqrt(1 - bound**2)


@each_model
@pytest.mark.parametrize(("dtype", "emulate"), FORMS)
@pytest.mark.parametrize("assignment", thorough.but(("cost",), ("all", "cost")))
def test_a_second_rewrite_of_a_train_step_changes_nothing(
    model: types.ModuleType, dtype: str, emulate: bool, assignment: str
) -> None:
    step, batch = step_of(model)
    module, concrete = traced(step, *batch)
    how = settled(PAYING, dtype=dtype, emulate=emulate, assignment=assignment)
    first = rewrite.rewrite(module, how)
    assert low(first.report)
    once = first.graph
    twice = rewrite.rewrite(once, how).graph
    lookup = op_schema.lookup_of(once)
    assert serde.write_function(twice.main, lookup) == serde.write_function(
        once.main, lookup
    )
    assert twice.functions.keys() == once.functions.keys()
    assert context_lib.context().has_function(concrete.name)
