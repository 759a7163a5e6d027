"""`tf.compat.v1.add_check_numerics_ops` works where a loss is scaled, as in float32.

It finds what is not finite in the job, and takes no overflow of the scale for that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import numerics

import amp
from amp.integration.sessions import check_ops
from amp.loss_scaling import ConstantLossScale, DynamicLossScale, group

v1 = tf.compat.v1
FITS = DynamicLossScale(initial=8.0)
# A seed of 2^40 passes float16's 65504 = 2^16 wherever the step is in 16 bits, and
# gradients of 2^40 times anything over 2^-24 do.
OVERFLOWS = DynamicLossScale(initial=2.0**40, maximum=2.0**60)
X = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(8, 8)


def policy(rule: Any) -> amp.Policy:
    return amp.Policy(
        dtype="float16",
        emulate=True,
        assignment="all",
        loss_scale=rule,
        strict=True,
    )


class Job:
    """A graph with an update, and checks of all that was built before."""

    def __init__(self) -> None:
        self.x = v1.placeholder(tf.float32, [None, 8], name="x")
        first = v1.constant_initializer(np.eye(8, dtype=np.float32) * 0.5)
        self.w = v1.get_variable("w", [8, 8], initializer=first)
        hidden = tf.math.log(tf.matmul(self.x, self.w) + 2.0, name="hidden")
        self.loss = tf.reduce_mean(tf.square(hidden))
        self.train = v1.train.AdamOptimizer(0.1).minimize(self.loss)
        self.check = v1.add_check_numerics_ops()


def trained(rule: Any, *, checked: bool, steps: int = 3) -> tuple[Any, list[int]]:
    """The weight after some steps, and how many each scaler skipped."""
    with tf.Graph().as_default() as graph, amp.mixed_precision_scope(policy(rule)):
        job = Job()
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(steps):
                wanted = [job.train, *[job.check] * checked]
                session.run(wanted, {job.x: X})
            skipped = [s.skipped_steps for s in group.of_graph(graph)]
            counted = [int(n) for n in session.run(skipped)]
            return session.run(job.w), counted


@pytest.mark.parametrize("rule", [FITS, ConstantLossScale(128.0), "none"], ids=str)
def test_a_checked_job_trains_as_one_without_checks(rule: Any) -> None:
    plain, _ = trained(rule, checked=False)
    checked, skipped = trained(rule, checked=True)
    np.testing.assert_array_equal(checked, plain)
    assert sum(skipped) == 0


def test_an_overflow_skips_the_update_and_is_no_error() -> None:
    value, skipped = trained(OVERFLOWS, checked=True)
    np.testing.assert_array_equal(value, np.eye(8, dtype=np.float32) * 0.5)
    assert skipped == [3]


@pytest.mark.parametrize("rule", [FITS, "none"], ids=str)
def test_what_the_job_makes_infinite_is_named(rule: Any) -> None:
    with tf.Graph().as_default() as graph, amp.mixed_precision_scope(policy(rule)):
        job = Job()
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            far = np.full([8, 8], -4.0, np.float32)  # -4 / 2 + 2 is 0; its log is -inf
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"hidden:0"):
                session.run([job.train, job.check], {job.x: far})


def test_a_cond_of_the_job_is_refused_as_it_is_in_float32() -> None:
    def build() -> None:
        v1.disable_control_flow_v2()
        try:
            x = v1.placeholder(tf.float32, [])
            tf.cond(x > 0, lambda: x * 2.0, lambda: x)
            Job()
        finally:
            v1.enable_control_flow_v2()

    with tf.Graph().as_default() as graph, amp.mixed_precision_scope(policy(FITS)):
        with pytest.raises(ValueError, match="not compatible"):
            build()
        names = {operation.name for operation in graph.get_operations()}
        assert "gradients/grad_ys_0" in names  # the graph says again what it holds


def test_only_what_the_scale_passes_through_is_left_out() -> None:
    with tf.Graph().as_default() as graph, amp.mixed_precision_scope(policy(FITS)):
        job = Job()
        every = graph.get_operations()
        kept = {operation.name for operation in check_ops.checkable(every)}
    left = {operation.name for operation in every} - kept
    assert {job.loss.op.name, "hidden", "MatMul"} <= kept
    assert {"gradients/grad_ys_0", "gradients/hidden_grad/mul"} <= left
    assert all(name.startswith(("gradients/", "amp_loss_scal")) for name in left)
    unscaled = [op.name for op in every if "_amp_unscale" in op.node_def.attr]
    assert unscaled
    assert kept >= set(unscaled)


def test_every_name_of_it_is_hooked() -> None:
    with amp.mixed_precision_scope(policy(FITS)):
        hooked = numerics.add_check_numerics_ops
        assert hooked._amp_original is not hooked
        assert v1.add_check_numerics_ops is hooked
        assert tf.compat.v1.compat.v1.add_check_numerics_ops is hooked
