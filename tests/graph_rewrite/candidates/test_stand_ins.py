"""`stand_ins`: in 16 bits a sum is made by a kernel that adds up in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rewriting import CPU, graph_def, module_of, nodes, rewritten, run, settled, v1

from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.measuring import hardware
from tests.graph_rewrite.candidates.test_sums import product

ROWS = 4096  # ones, which BiasAddGrad in bfloat16 adds up to 256


def biased(*shape: int | None, layout: str = "NHWC") -> Any:
    def build() -> None:
        grad = tf.raw_ops.BiasAddGrad(
            out_backprop=product(*shape), data_format=layout, name="sum"
        )
        tf.identity(grad, name="end")

    return build


def axes(proto: Any) -> list[int]:
    made = nodes(proto)
    assert made["sum"].op == "Sum"
    return tf.make_ndarray(made[made["sum"].input[1]].attr["value"].tensor).tolist()


@pytest.mark.kernels
@pytest.mark.parametrize("shape", [(ROWS, 8), (4, 32, 32, 8)])
def test_a_bias_gradient_in_bfloat16_is_as_good_as_one_rounding(
    shape: tuple[int, ...],
) -> None:
    """Every partial sum of ones is exact in float32, and the whole in bfloat16."""
    twin = rewritten(graph_def(biased(*shape)), fetches=["end"]).graph
    assert axes(twin) == list(range(len(shape) - 1))
    quarters = np.full([*shape[:-1], 4], 0.25, np.float32)
    (found,) = run(twin, ["end:0"], {"x": quarters})
    assert found.tolist() == [ROWS] * 8


def convolved(
    padding: Any = "SAME", biases: int = 1, filters: int = 1, parts: int = 1
) -> Any:
    """Gradients, of ones or a part of them, by a convolution's filter and its bias."""

    def build() -> None:
        x = v1.placeholder(tf.float32, [2, 64, 64, 4], name="x")
        kernel = tf.ones([1, 1, 4, 8 * parts]) / 4
        ones = [tf.nn.conv2d(x, kernel, 1, "SAME")]
        if parts > 1:
            ones = tf.split(ones[0], parts, -1)
        said = {"strides": [1, 1, 1, 1], "padding": padding}
        if padding == "EXPLICIT":
            said["explicit_paddings"] = [0] * 8
        for number in range(filters):
            made = tf.raw_ops.Conv2DBackpropFilter(
                input=x * (number + 1.0), filter_sizes=[1, 1, 4, 8],
                out_backprop=ones[0], **said, name=f"filter{number or ''}",
            )  # fmt: skip
            tf.identity(made, name=f"by_filter{number or ''}")
        for number in range(biases):
            name = f"sum{number or ''}"
            given = ones[number % parts]
            made = tf.raw_ops.BiasAddGrad(out_backprop=given, name=name)
            tf.identity(made, name=f"end{number or ''}")

    return build


@pytest.mark.kernels
def test_with_the_gradient_of_its_filter_a_bias_needs_no_stand_in() -> None:
    """One kernel of oneDNN's computes both, and adds up in float32."""
    if "bfloat16" not in hardware.shipped().native:
        pytest.skip("the plan would be another one here")
    ends = ["end", "by_filter"]
    twin = rewritten(graph_def(convolved()), fetches=ends).graph
    made = nodes(twin)
    assert made["sum"].op == "BiasAddGrad"
    assert made["sum"].input == [made["filter"].input[2]]
    found, by_filter = run(
        twin, ["end:0", "by_filter:0"], {"x": np.ones([2, 64, 64, 4])}
    )
    assert found.tolist() == [2 * 64 * 64] * 8
    assert (by_filter == 2 * 64 * 64).all()


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"padding": "EXPLICIT"}, {}),
        ({"biases": 2}, {}),
        ({"biases": 2, "parts": 2}, {}),
        ({"filters": 2}, {}),
        ({}, {"deny": ("Conv2DBackpropFilter",)}),
    ],
)
def test_where_the_pass_may_merge_another_or_none_a_sum_stands_in(
    given: dict[str, Any], fields: dict[str, Any]
) -> None:
    module = module_of(graph_def(convolved(**given)))
    made = rewrite(module, settled(**fields)).graph.main
    assert made.nodes["sum"].op == "Sum"


def test_a_sum_that_stands_in_has_the_shape_of_what_it_stands_for() -> None:
    """It had that of its operand, by which memory was priced otherwise afterwards."""
    module = module_of(graph_def(biased(ROWS, 8)))
    made = rewrite(module, settled()).graph.main
    assert made.nodes["sum"].op == "Sum"
    assert made.shape(("sum", 0)) == (8,)


def test_the_channels_may_come_first() -> None:
    twin = rewritten(graph_def(biased(2, 8, 5, 6, layout="NCHW"))).graph
    assert axes(twin) == [0, 2, 3]


def test_a_batch_of_unknown_size_is_summed_too() -> None:
    assert axes(rewritten(graph_def(biased(None, 8))).graph) == [0]


@pytest.mark.parametrize(
    ("device", "fields"),
    [(A100, {}), (CPU, {"dtype": "float16"}), (CPU, {"emulate": True})],
)
def test_a_kernel_that_adds_up_in_float32_stays(
    device: Device, fields: dict[str, Any]
) -> None:
    twin = rewritten(graph_def(biased(ROWS, 8)), device, **fields)
    assert nodes(twin.graph)["sum"].op == "BiasAddGrad"
    assert {d.node: d.rule for d in twin.report.decisions}["sum"] == "follow"


def test_what_is_summed_without_a_known_rank_stays_float32() -> None:
    def build() -> None:
        rows = v1.placeholder(tf.float32, None, name="x")
        tf.raw_ops.BiasAddGrad(
            out_backprop=tf.matmul(rows, tf.eye(4)) + rows, name="sum"
        )

    found = rewritten(graph_def(build)).report.decisions
    assert {d.node: d.rule for d in found}["sum"] == "count"


@pytest.mark.kernels
def test_a_sum_in_a_loop_of_tensorflow_1_runs() -> None:
    """The constant of its axes is in the frame of the loop."""

    def build() -> None:
        v1.disable_control_flow_v2()
        x = v1.placeholder(tf.float32, [ROWS, 8], name="x")

        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            made = tf.raw_ops.BiasAddGrad(out_backprop=x @ tf.eye(8), name="sum")
            return i + 1, total + made

        _, total = v1.while_loop(lambda i, _: i < 3, body, [0, tf.zeros([8])])
        tf.identity(total, name="end")
        v1.enable_control_flow_v2()

    twin = rewritten(graph_def(build), fetches=["end"]).graph
    made = nodes(twin)
    assert made["while/sum"].op == "Sum"
    (found,) = run(twin, ["end:0"], {"x": np.ones([ROWS, 8], np.float32)})
    assert found.tolist() == [3 * ROWS] * 8
