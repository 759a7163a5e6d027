"""`propagate`: who may be low, and for each that may not the rule that says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rewriting import (
    context_of,
    graph_def,
    low,
    module_of,
    rewritten,
    rules,
    settled,
    traced,
    v1,
)

import amp
from amp.graph_rewrite.candidates.context import type_ports
from amp.graph_rewrite.candidates.eligibility import find_eligible
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.training import markers


def x() -> tf.Tensor:
    return v1.placeholder(tf.float32, [8, 8], name="x")


def decided(build: Callable[[], object], **fields: object) -> dict[str, str]:
    """The rule for each node."""
    return rules(rewritten(graph_def(build), **fields).report)


def chain() -> None:
    before = tf.tanh(x(), name="before")
    turned = tf.transpose(before, name="turned")
    product = tf.matmul(turned, turned, name="product")
    after = tf.nn.relu(product, name="after")
    tf.reduce_max(after, name="listed")
    tf.math.lgamma(after, name="unlisted")
    tf.identity(after, name="end")


def test_products_what_follows_them_and_moves_that_feed_them_may_be_low() -> None:
    found = decided(chain)
    assert found["product"] == "compute"
    assert found["after"] == "follow"
    assert found["turned"] == "move"
    assert found["end"] == "move"
    assert found["before"] == "unreached"
    assert found["listed"] == "listed"
    assert found["unlisted"] == "unlisted"


def test_arithmetic_behind_a_float32_node_is_out_of_reach() -> None:
    def build() -> None:
        product = tf.matmul(x(), x(), name="product")
        tf.nn.relu(tf.exp(product), name="behind")

    assert decided(build)["behind"] == "unreached"


def test_without_a_product_nothing_is_low() -> None:
    def build() -> None:
        tf.reshape(tf.nn.relu(x()), [64])

    assert "compute" not in decided(build).values()
    assert not low(rewritten(graph_def(build)).report)


@pytest.mark.parametrize("emulate", [False, True])
def test_nothing_at_or_behind_an_unscale_marker_is_low(emulate: bool) -> None:
    def build() -> None:
        product = tf.matmul(x(), x(), name="product")
        with markers.attribute_scope(ir.UNSCALE):
            tf.multiply(product, 0.5, name="unscale")
        graph = tf.compat.v1.get_default_graph()
        unscaled = graph.get_tensor_by_name("unscale:0")
        tf.matmul(unscaled, unscaled, name="behind")
        tf.nn.relu(product, name="beside")

    found = decided(build, emulate=emulate)
    assert found["unscale"] == "unscale"
    assert found["behind"] == "unscale"
    assert found["product"] == "compute"
    assert found["beside"] == "follow"


def test_what_is_built_to_be_kept_is_kept_and_says_by_whom() -> None:
    def build() -> None:
        with markers.attribute_scope(ir.KEEP):
            tf.matmul(x(), x(), name="kept")
        with markers.optimizer_scope():
            tf.matmul(x(), x(), name="updated")
        with markers.attribute_scope(ir.KEEP, text=ir.CUSTOM):
            tf.matmul(x(), x(), name="custom")

    found = decided(build)
    assert found["kept"] == "keep"
    assert found["updated"] == "optimizer"
    assert found["custom"] == "custom"


def test_the_policy_allows_denies_and_keeps() -> None:
    assert decided(chain, allow=("Max",))["listed"] == "follow"
    assert decided(chain, allow=("Lgamma",), emulate=True)["unlisted"] == "follow"
    assert decided(chain, deny=("Relu",))["after"] == "deny"
    assert decided(chain, keep=("prod*",))["product"] == "keep"
    # Denied arithmetic is a wall like any other.
    assert decided(chain, deny=("MatMul",))["after"] == "unreached"


def test_of_an_unlisted_op_it_is_said_whether_it_has_a_kernel() -> None:
    """To allow one that has none would not help."""

    def build() -> None:
        product = tf.matmul(x(), x(), name="product")
        tf.math.betainc(product, product, product, name="none")
        tf.atan2(product, product, name="some")

    for emulate, device in ((False, "CPU"), (True, "GPU")):
        made = rewritten(graph_def(build), dtype="bfloat16", emulate=emulate)
        found = {one.node: one for one in made.report.decisions}
        cause = f"Betainc, without a kernel in bfloat16 on {device}"
        assert (found["none"].rule, found["none"].cause) == ("unlisted", cause)
        assert (found["some"].rule, found["some"].cause) == ("unlisted", "Atan2")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_allowed_op_keeps_its_hazards(dtype: str) -> None:
    """L2Loss sums to a scalar, whoever allows it: 362 squared is infinite in half."""

    def build() -> None:
        product = tf.matmul(x(), x(), name="product")
        tf.raw_ops.L2Loss(t=product, name="loss")

    assert decided(build)["loss"] == "listed"
    assert decided(build, dtype=dtype, allow=("L2Loss",))["loss"] == "scalar"


def test_what_the_caller_feeds_stays_float32() -> None:
    assert decided(chain, feeds=("after",))["after"] == "fed"


def test_the_kernel_gate_asks_for_this_op_type_and_device() -> None:
    def build() -> None:
        product = tf.matmul(x(), x(), name="product")
        data = tf.reshape(product, [8, 8])
        tf.raw_ops.MatrixBandPart(input=data, num_lower=1, num_upper=1, name="band")
        tf.raw_ops.LRN(input=tf.reshape(product, [1, 2, 4, 8]), name="lrn")

    proto = graph_def(build)
    main = module_of(proto).main
    for name in ("band", "lrn"):
        node = main.nodes[name]
        has = op_schema.has_kernel(node, "CPU", {"T": ir.BFLOAT16})
        found = rules(rewritten(proto).report)[name]
        assert (found == "kernel") is not has
    # XLA and emulation compute whatever the op allows.
    assert "kernel" not in rules(rewritten(proto, emulate=True).report).values()
    context = context_of(module_of(proto), xla=True)
    typed = type_ports(main, context)
    refused = find_eligible(main, context, typed, (), timed={}).refused
    assert "kernel" not in {reason.rule for reason in refused.values()}


def test_the_gate_refuses_a_type_without_a_kernel() -> None:
    def build() -> None:
        product = tf.matmul(x(), x(), name="product")
        ones = tf.ones([1, 8])
        tf.raw_ops.BlockLSTM(
            seq_len_max=tf.constant(1, tf.int64),
            x=tf.reshape(product, [1, 8, 8]),
            cs_prev=tf.ones([8, 1]),
            h_prev=tf.ones([8, 1]),
            w=tf.ones([9, 4]),
            wci=ones[0, :1],
            wcf=ones[0, :1],
            wco=ones[0, :1],
            b=tf.ones([4]),
            name="lstm",
        )

    assert decided(build)["lstm"] == "kernel"  # its T may not be bfloat16
    assert decided(build, emulate=True)["lstm"] == "kernel"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("device", ["/CPU:0", "/job:worker/task:1/device:cpu:0"])
def test_a_node_placed_on_the_cpu_stays_float32_in_a_plan_for_a_gpu(
    device: str, dtype: str
) -> None:
    """The CPU has kernels in both types, which the GPU's prices say nothing of."""

    def build() -> None:
        with tf.device(device):
            here = tf.matmul(x(), x(), name="here")
            tf.nn.relu(here, name="relu")
        tf.matmul(here, here, name="there")

    proto = graph_def(build)
    report = rewritten(proto, A100, dtype=dtype).report
    found = rules(report)
    assert (found["here"], found["relu"]) == ("device", "device")
    assert "there" in low(report)
    (decision,) = [d for d in report.decisions if d.node == "here"]
    assert "device:CPU:0, where the plan is for a GPU" in decision.cause
    assert low(rewritten(proto, dtype=dtype).report) == {"here", "relu", "there"}
    assert "here" in low(rewritten(proto, A100, dtype=dtype, emulate=True).report)


def test_so_does_a_node_placed_on_a_gpu_in_a_plan_for_the_cpu_where_there_is_one() -> (
    None
):
    """Without a GPU TensorFlow runs it on the CPU, and the plan is for that."""

    def build() -> None:
        with tf.device("/GPU:0"):
            here = tf.matmul(x(), x(), name="here")
        tf.matmul(here, here, name="there")

    module = module_of(graph_def(build))
    asked = settled()
    for kinds, want in ((("CPU",), {"here", "there"}), (("CPU", "GPU"), {"there"})):
        machine = dataclasses.replace(asked, kinds=frozenset(kinds))
        report = rewrite(module, machine, fetches=frozenset({"there"})).report
        assert low(report) == want


# Of two kinds that are not inlined: one that grappler may swap, and one XLA compiles.
@pytest.mark.parametrize(
    "kind", [{"experimental_implements": "a product"}, {"jit_compile": True}]
)
@pytest.mark.parametrize("loop", [False, True])
def test_so_does_a_function_that_is_called_there(
    kind: dict[str, Any], loop: bool
) -> None:
    inner = tf.function(lambda x: tf.tanh(tf.matmul(x, x)), **kind)
    given = tf.TensorSpec([8, 8])
    product = inner.get_concrete_function(given)

    def calling(place: str) -> set[str]:
        def outer(x: tf.Tensor) -> tf.Tensor:
            with tf.device(place):
                if not loop:
                    return product(x)
                step = lambda i, y: (i + 1, product(y))  # noqa: E731
                return tf.while_loop(lambda i, y: i < 3, step, (0, x))[1]

        module, _ = traced(outer, given)
        report = rewrite(module, settled(A100, dtype="float16")).report
        return {d.rule for d in report.decisions if d.op in ("MatMul", "Tanh")}

    assert calling("/CPU:0") == {"device"}
    assert calling("/GPU:0") == {"compute", "follow"}


def test_xla_does_not_look_at_the_devices_of_the_nodes_it_compiles() -> None:
    @tf.function(jit_compile=True)
    def product(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return tf.matmul(x, x)

    module, _ = traced(product, tf.TensorSpec([8, 8]))
    report = rewrite(module, settled(A100, dtype="float16")).report
    assert "compute" in {decision.rule for decision in report.decisions}


def test_what_xla_has_in_float32_only_is_float32_where_it_compiles() -> None:
    """As a gradient penalty behind a maximum pooling, whose plans all failed."""
    window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}

    @tf.function(jit_compile=True)
    def penalty(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        y = tf.nn.conv2d(x, w, 1, "SAME")
        made = tf.raw_ops.MaxPool(input=y, **window)
        ends = {"orig_input": y, "orig_output": made, "grad": y}
        second = tf.raw_ops.MaxPoolGradGrad(**ends, **window, name="second")
        return tf.nn.conv2d(second, w, 1, "SAME")

    args = tf.ones([1, 8, 8, 4]), tf.ones([1, 1, 4, 4])
    module, _ = traced(penalty, *args)
    report = rewrite(module, settled()).report
    found = {d.op: d.rule for d in report.decisions}
    assert (found["Conv2D"], found["MaxPoolGradGrad"]) == ("compute", "kernel")
    policy = amp.Policy(dtype="bfloat16", assignment="all", strict=True)
    with amp.mixed_precision_scope(policy):
        penalty(*args)


def test_a_node_that_only_updates_a_variable_stays_float32() -> None:
    def build() -> None:
        average = v1.get_variable("average", [8], use_resource=True)
        product = tf.matmul(x(), x(), name="product")
        mean = tf.reduce_mean(product, 0, name="mean")
        difference = tf.subtract(average.read_value(), mean, name="difference")
        step = tf.multiply(difference, 0.5, name="step")
        tf.raw_ops.AssignSubVariableOp(resource=average.handle, value=step)

    found = decided(build)
    assert found["step"] == "state"
    assert found["difference"] == "state"
    assert found["product"] == "compute"


def test_a_node_that_is_also_read_elsewhere_is_no_mere_update() -> None:
    def build() -> None:
        average = v1.get_variable("average", [8, 8], use_resource=True)
        product = tf.matmul(x(), x(), name="product")
        step = tf.multiply(product, 0.5, name="step")
        tf.raw_ops.AssignSubVariableOp(resource=average.handle, value=step)
        tf.nn.relu(step, name="read")

    assert decided(build)["step"] == "follow"


def test_arithmetic_for_an_integer_stays_float32() -> None:
    def build() -> None:
        product = tf.tanh(tf.matmul(x(), x(), name="product"), name="tanh")
        half = tf.multiply(product, 0.5, name="half")
        tf.cast(tf.floor(half, name="floor"), tf.int32, name="integer")

    found = decided(build)
    for name in ("product", "tanh", "half", "floor"):
        assert found[name] == "decision"


def test_arithmetic_for_a_choice_or_a_target_stays_float32() -> None:
    def build() -> None:
        start = tf.nn.relu(tf.matmul(x(), x(), name="product"), name="start")
        score = tf.multiply(start, 0.5, name="score")
        best = tf.math.top_k(tf.reshape(score, [-1]), 3).indices
        sides = tf.add(start, 1.0, name="sides")
        chosen = tf.gather(tf.reshape(sides, [-1]), best, name="chosen")
        large = tf.greater(tf.multiply(chosen, 2.0, name="twice"), 1.0)
        aim = tf.stop_gradient(tf.subtract(chosen, 1.0, name="aim"))
        tf.where(large, aim, tf.gather(tf.reshape(start, [-1]), best), name="used")

    found = decided(build)
    for name in ("score", "sides", "twice", "aim"):
        assert found[name] == "decision"
    assert found["start"] == "follow"


def test_an_index_that_a_product_computes_is_that_index() -> None:
    """A row of a table that a one-hot vector chooses, as integers."""
    ids = np.arange(3001, 3065)  # not in 16 bits

    @tf.function
    def chosen(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        table = tf.constant(ids[:, None].astype(np.float32))
        rows = tf.squeeze(tf.matmul(x, table), 1)
        return tf.cast(rows + 0.25, tf.int32), tf.matmul(x, x)

    x = np.eye(64, dtype=np.float32)
    policy = amp.Policy(dtype="bfloat16", emulate=True, assignment="all", strict=True)
    found, product = amp.twin(chosen, x, policy=policy)(x)
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_array_equal(product, x)


def test_a_value_that_is_also_used_is_no_mere_decision() -> None:
    def build() -> None:
        product = tf.nn.relu(tf.matmul(x(), x(), name="product"))
        score = tf.multiply(product, 0.5, name="score")
        tf.where(tf.greater(score, 1.0), score, tf.tanh(score), name="used")

    assert decided(build)["score"] == "follow"


def test_other_types_are_no_decision() -> None:
    def build() -> None:
        start = tf.nn.relu(tf.matmul(x(), x(), name="product"))
        held = tf.TensorArray(tf.float32, 1, element_shape=[8, 8])
        held = held.write(0, tf.multiply(start, 0.5, name="listed"))
        tf.tanh(held.read(0))
        tf.cast(tf.multiply(start, 0.25, name="halved"), tf.float16)

    found = decided(build)
    assert found["listed"] == found["halved"] == "follow"


def test_decisions_are_followed_through_loops_without_products() -> None:
    def loop(within: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[], None]:
        def build() -> None:
            start = tf.nn.relu(tf.matmul(x(), x(), name="product"))
            scaled = tf.multiply(start, 0.5, name="scaled")
            _, last = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, value: (i + 1, within(value)),
                (tf.constant(0), scaled),
            )
            tf.greater(tf.add(last, 1.0, name="after"), 2.0)

        return build

    found = decided(loop(lambda value: value * 0.5))
    assert found["scaled"] == found["after"] == "decision"
    assert decided(loop(lambda value: value @ value))["scaled"] == "follow"


def test_a_variable_read_in_place_stays_float32() -> None:
    def build() -> None:
        table = v1.get_variable("table", [100, 8], use_resource=True)
        rows = tf.gather(table, v1.placeholder(tf.int32, [8], name="rows"))
        tf.matmul(rows, x(), name="product")

    found = rewritten(graph_def(build)).report
    assert {d.dtype for d in found.decisions if d.op == "ResourceGather"} == {"float32"}
    assert rules(found)["product"] == "compute"


def reference() -> Any:
    return v1.get_variable("v", [8, 8], use_resource=False)


def test_what_follows_a_read_of_a_reference_that_waits_is_float32_up_to_a_product() -> (
    None
):
    def build() -> None:
        variable = reference()
        with tf.control_dependencies([tf.no_op()]):
            read = tf.identity(variable._ref(), name="read")
        product = tf.matmul(tf.nn.relu(read, name="after"), x(), name="product")
        tf.matmul(product, x(), name="next")

    found = decided(build)
    assert [found[n] for n in ("read", "after", "product")] == ["variable"] * 3
    assert found["next"] == "compute"


def test_what_follows_a_product_that_reads_a_reference_late_is_not_refused() -> None:
    def build() -> None:
        variable = reference()
        read = tf.identity(variable, name="read")
        with tf.control_dependencies([read]):
            written = v1.assign_add(variable, x())
        with tf.control_dependencies([written]):
            late = tf.matmul(read, x(), name="late")
        tf.matmul(tf.nn.relu(late, name="after"), x(), name="next")

    found = decided(build)
    assert found["late"] == "variable"
    assert (found["after"], found["next"]) == ("unreached", "compute")


def test_a_product_behind_the_update_that_its_read_is_behind_is_not_late() -> None:
    def build() -> None:
        read = tf.identity(v1.assign(reference(), x()), name="read")
        tf.matmul(read, x(), name="product")

    found = decided(build)
    assert (found["read"], found["product"]) == ("variable", "compute")


def test_what_is_16_bit_already_is_left_so_and_starts_the_spread() -> None:
    def build() -> None:
        half = tf.cast(x(), tf.bfloat16)
        product = tf.matmul(half, half, name="product")
        tf.nn.relu(tf.cast(product, tf.float32), name="after")

    found = decided(build)
    assert found["product"] == "already"
    assert found["after"] == "follow"
