"""Every fusible op compiles, and agrees with its kernel wherever that matters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from amp.graph_rewrite.ops.op_table import ROWS, Role, Unmoved, facts

FUSIBLE = sorted(row.op for row in ROWS.values() if row.fusible)

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -3e38, 3e38], np.float32
)
# TensorFlow's kernels and XLA's code are both within some units in the last place.
UNITS = 64 * 2.0**-23
# What these read as `y` is the result of tanh or of a sigmoid.
OF_RESULT = ("SigmoidGrad", "TanhGrad")
# They give 0 where the unit is off, the CPU kernel 0 times the gradient.
SELECTS = ("Relu6Grad", "ReluGrad")


def operands(op: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special values, several times over: loops and their tails."""
    pairs = np.array(list(itertools.product(SPECIAL, SPECIAL)), np.float32)
    if op in OF_RESULT:
        pairs = pairs[~(np.abs(pairs[:, 0]) > 1)]
    if op in SELECTS:
        pairs = pairs[np.isfinite(pairs[:, 1])]
    pairs = np.tile(pairs, (11, 1))
    return pairs[:, 0], pairs[:, 1]


def given(op: str, x: tf.Tensor, y: tf.Tensor) -> dict[str, object]:
    """Arguments for an op, by what its OpDef says of each."""
    count = x.shape[0]
    special = {
        "Reshape": {"tensor": x, "shape": [count, 1]},
        "ExpandDims": {"input": x, "axis": 0},
        "BroadcastTo": {"input": x, "shape": [2, count]},
        "BiasAdd": {"value": tf.reshape(x, [1, -1]), "bias": y},
        "Cast": {"x": x, "DstT": tf.float16},
        "Select": {"condition": tf.less(x, y), "x": x, "y": y},
    }
    if op in special:
        return special[op]
    names = [(arg.name, arg.number_attr, arg.type) for arg in
             op_def_registry.get(op).input_arg]  # fmt: skip
    values = iter((y, x) if op.endswith("Grad") and "y" not in names[0] else (x, y))
    found: dict[str, object] = {}
    for name, listed, fixed in names:
        if fixed:  # a condition
            found[name] = tf.less(x, y)
        else:
            found[name] = [x, y] if listed else next(values)
    return found


def kind(values: np.ndarray) -> np.ndarray:
    """0 finite, 1 and -1 infinite, 2 NaN."""
    infinite = np.where(np.isinf(values), np.sign(values), 0)
    return np.where(np.isnan(values), 2, infinite)


@pytest.mark.parametrize("op", FUSIBLE)
def test_compiled_code_agrees_with_the_kernel(op):
    """NaN where the kernel gives NaN, the same infinities, and values to some units."""

    def run(x, y):
        return getattr(tf.raw_ops, op)(**given(op, x, y))

    x, y = map(tf.constant, operands(op))
    kernel = tf.function(run, autograph=False)(x, y)
    compiled = tf.function(run, autograph=False, jit_compile=True)(x, y)
    assert compiled.shape == kernel.shape
    if kernel.dtype == tf.bool:
        np.testing.assert_array_equal(compiled, kernel)
        return
    old, new = (np.asarray(tf.cast(t, tf.float32)) for t in (kernel, compiled))
    np.testing.assert_array_equal(kind(new), kind(old))
    finite = kind(old) == 0
    tiny = np.finfo(np.float32).tiny
    np.testing.assert_allclose(new[finite], old[finite], rtol=UNITS, atol=tiny)


@pytest.mark.parametrize("op", ["Maximum", "Minimum"])
def test_what_hides_a_nan_is_not_fusible(op):
    """Should XLA's code change, they may come in."""
    run = getattr(tf.raw_ops, op)
    x, y = operands(op)
    compiled = tf.function(lambda x, y: run(x=x, y=y), jit_compile=True)(x, y)
    assert not np.isnan(compiled)[np.isnan(x) | np.isnan(y)].all()
    assert op not in FUSIBLE


@pytest.mark.parametrize("op", FUSIBLE)
def test_what_is_fusible_is_elementwise_and_has_one_output(op):
    definition, row = op_def_registry.get(op), facts(op)
    assert not definition.is_stateful
    assert len(definition.output_arg) == 1
    works = {"elementwise", "composite", "transcendental", "free", "copy", "cast"}
    assert row.work in works
    assert row.role is not Role.COMPUTE
    assert not row.in_frames
    assert all(index < len(definition.input_arg) for index in row.constant_operands)


def test_only_what_may_be_in_a_cluster_needs_constants():
    rows = {row.op for row in ROWS.values() if row.constant_operands}
    unmoved = {r.op for r in ROWS.values() if r.unmoved is not Unmoved.NEVER}
    assert rows - unmoved
    assert rows <= set(FUSIBLE) | unmoved
