"""`arithmetic`: every product counts what its definition says; others move bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from rewriting import graph_def, module_of, v1
from tensorflow.python.framework import op_def_registry, ops

from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.ops.op_table import ROWS, Role, facts

M, K, N = 3, 5, 7


@pytest.mark.parametrize("a", [(M, K), (K, M)])
@pytest.mark.parametrize("b", [(K, N), (N, K)])
def test_a_product_counts_mkn_whichever_operand_is_transposed(
    a: tuple[int, int], b: tuple[int, int]
) -> None:
    assert arithmetic.flops(facts("MatMul"), [a, b], [(M, N)]) == pytest.approx(
        2 * M * K * N
    )


@pytest.mark.parametrize(
    ("a", "b", "out", "products"),
    [
        ((4, M, K), (4, K, N), (4, M, N), 4),
        ((4, 6, M, K), (4, 6, N, K), (4, 6, M, N), 24),
        ((4, 1, M, K), (6, K, N), (4, 6, M, N), 24),  # both batches are broadcast
        ((M, K), (6, K, N), (6, M, N), 6),
    ],
)
def test_a_batch_product_counts_one_product_a_matrix_of_the_result(
    a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...], products: int
) -> None:
    counted = arithmetic.flops(facts("BatchMatMul"), [a, b], [out])
    assert counted == pytest.approx(2 * M * K * N * products)


@pytest.mark.parametrize(
    ("equation", "a", "b", "out", "count"),
    [
        ("abc,cde->abde", (2, 3, 4), (4, 5, 6), (2, 3, 5, 6), 2 * 3 * 4 * 5 * 6),
        ("aecd, abcd -> acbe", (2, 3, 4, 5), (2, 6, 4, 5), (2, 4, 6, 3), 720),
        ("ij,jk->ik", (3, 4), (4, 5), (3, 5), 60),
        ("i,i->", (7,), (7,), (), 7),
    ],
)
def test_an_einsum_counts_every_setting_of_its_labels(
    equation: str,
    a: tuple[int, ...],
    b: tuple[int, ...],
    out: tuple[int, ...],
    count: int,
) -> None:
    assert arithmetic.flops(facts("Einsum"), [a, b], [out], equation) == 2 * count


def test_an_einsum_with_an_ellipsis_is_estimated_as_one_product() -> None:
    counted = arithmetic.flops(
        facts("Einsum"), [(2, M, K), (K, N)], [(2, M, N)], "...ij,jk->...ik"
    )
    assert counted == pytest.approx(2 * 2 * M * K * N)


@pytest.mark.parametrize(
    ("equation", "many"),
    [
        ("abc,cde->abde", False),  # rows of all batches as one
        ("ij, jk -> ik", False),
        ("ij,ik->", False),
        ("ij->ji", False),
        ("aecd, abcd -> acbe", True),
        ("...ij,...jk->...ik", True),
        ("...ij,jk->...ik", False),
    ],
)
def test_an_einsum_is_many_products_if_all_terms_have_a_label(
    equation: str, many: bool
) -> None:
    assert arithmetic.batched(equation) == many


# A batch of 2 images of 8x8x3, 5 filters of 3x3: each of the 2*6*6*5 results (valid)
# takes 3*3*3 products, forward and in both gradients.
IMAGE, FILTER, RESULT = (2, 8, 8, 3), (3, 3, 3, 5), (2, 6, 6, 5)
CONV = 2 * (2 * 6 * 6 * 5) * (3 * 3 * 3)


@pytest.mark.parametrize(
    ("op", "ins", "out"),
    [
        ("Conv2D", [IMAGE, FILTER], RESULT),
        ("Conv2DBackpropInput", [(4,), FILTER, RESULT], IMAGE),
        ("Conv2DBackpropFilter", [IMAGE, (4,), RESULT], FILTER),
    ],
)
def test_a_convolution_and_its_gradients_count_the_same(
    op: str, ins: list[tuple[int, ...]], out: tuple[int, ...]
) -> None:
    assert arithmetic.flops(facts(op), ins, [out]) == CONV


# Stride 2, multiplier 2: each of the 2*3*3*6 results takes 3*3 products.
DEPTHWISE = 2 * (2 * 3 * 3 * 6) * (3 * 3)
D_FILTER, D_RESULT = (3, 3, 3, 2), (2, 3, 3, 6)


@pytest.mark.parametrize(
    ("ins", "out"),
    [
        ([IMAGE, D_FILTER], D_RESULT),
        ([(4,), D_FILTER, D_RESULT], IMAGE),
        ([IMAGE, (4,), D_RESULT], D_FILTER),
    ],
)
def test_a_depthwise_convolution_counts_its_window_per_result(
    ins: list[tuple[int, ...]], out: tuple[int, ...]
) -> None:
    assert arithmetic.flops(facts("DepthwiseConv2dNative"), ins, [out]) == DEPTHWISE


def test_work_that_moves_bytes_computes_nothing() -> None:
    assert arithmetic.flops(facts("Add"), [(10,)], [(10,)]) == 0
    assert arithmetic.flops(facts("GatherV2"), [(10,), (3,)], [(3,)]) == 0


def test_bytes_moved_are_those_read_and_written() -> None:
    assert arithmetic.moved("elementwise", [(4, 8), (8,)], [(4, 8)]) == 32 + 8 + 32
    assert arithmetic.moved("gather", [(1000, 8)], [(4, 8)]) == 2 * 32  # not the table
    assert arithmetic.moved("free", [(1000,)], [(1000,)]) == 0


# What each kernel that multiplies does, by the definitions of the ops: (how the node is
# built, multiply-adds). Batch 2, images of 8x8 with 3 channels, 5 filters of 3x3 and no
# padding, so 6x6 results; volumes of 4x8x8; recurrent nets of 7 steps, 3 inputs and 5
# units.
B, T, D, H = 2, 7, 3, 5
raw = tf.raw_ops
VOLUME, FILTER3, RESULT3 = (2, 4, 8, 8, 3), (3, 3, 3, 3, 5), (2, 2, 6, 6, 5)
CONV2, CONV3 = (2 * 6 * 6 * 5) * (3 * 3 * 3), (2 * 2 * 6 * 6 * 5) * (3 * 3 * 3 * 3)
DEPTH = (2 * 6 * 6 * 3 * 2) * (3 * 3)
PARAMS = 4 * H * (D + H) + 8 * H  # of a cuDNN LSTM, two biases a gate


def x(*shape: int) -> tf.Tensor:
    return v1.placeholder(tf.float32, shape)


def valid(rank: int = 4) -> dict[str, object]:
    return {"strides": [1] * rank, "padding": "VALID"}


# TensorFlow's profiler counts gradients as if nothing were cut off at the edges.
SAME: dict[str, object] = {"strides": [1] * 4, "padding": "SAME"}
EDGES = (2, 8, 8, 5)


def gates(*shape: int, names: str = "i cs f o ci co") -> dict[str, tf.Tensor]:
    return {name: x(*shape) for name in names.split()}


def lstm(*steps: int) -> dict[str, object]:
    state = {"cs_prev": x(B, H), "h_prev": x(B, H), "w": x(D + H, 4 * H)}
    peepholes = {name: x(H) for name in ("wci", "wcf", "wco")}
    return {"x": x(*steps, B, D), **state, **peepholes, "b": x(4 * H)}


def block_lstm() -> dict[str, object]:
    return {"seq_len_max": tf.constant(T, tf.int64), **lstm(T)}


def block_gradient() -> dict[str, object]:
    return {
        **block_lstm(),
        **gates(T, B, H, names="i cs f o ci co h cs_grad h_grad"),
        "use_peephole": False,
    }


def gru() -> dict[str, object]:
    weights = {"w_ru": x(D + H, 2 * H), "w_c": x(D + H, H)}
    return {"x": x(B, D), "h_prev": x(B, H), **weights, "b_ru": x(2 * H), "b_c": x(H)}


def cudnn(states: str = "") -> dict[str, object]:
    given = {"input": x(T, B, D), "input_h": x(1, B, H), "input_c": x(1, B, H)}
    given["params"] = x(PARAMS)
    for name in states.split():
        given[name] = x(T, B, H) if name.startswith("output") else x(0)
    return given


BACK = (
    "output output_h output_c output_backprop output_h_backprop output_c_backprop "
    "reserve_space"
)


def lengths() -> dict[str, object]:
    return {"sequence_lengths": tf.constant([T] * B)}


def reserved() -> dict[str, object]:
    return {"host_reserved": tf.constant([], tf.int8)}


KERNELS: dict[str, tuple[Callable[[], object], int]] = {
    "MatMul": (lambda: raw.MatMul(a=x(M, K), b=x(K, N)), M * K * N),
    "BatchMatMul": (lambda: raw.BatchMatMul(x=x(4, M, K), y=x(4, K, N)), 4 * M * K * N),
    "BatchMatMulV2": (
        lambda: raw.BatchMatMulV2(x=x(4, M, K), y=x(K, N)),
        4 * M * K * N,
    ),
    "BatchMatMulV3": (
        lambda: raw.BatchMatMulV3(x=x(4, M, K), y=x(K, N), Tout=tf.float32),
        4 * M * K * N,
    ),
    "Einsum": (
        lambda: raw.Einsum(
            inputs=[x(4, M, K), x(4, K, N)], equation="...ij,...jk->...ik"
        ),
        4 * M * K * N,
    ),
    "Conv2D": (
        lambda: raw.Conv2D(input=x(*IMAGE), filter=x(*FILTER), **valid()),
        CONV2,
    ),
    "Conv3D": (
        lambda: raw.Conv3D(input=x(*VOLUME), filter=x(*FILTER3), **valid(5)),
        CONV3,
    ),
    "Conv": (lambda: raw.Conv(input=x(*IMAGE), filter=x(*FILTER), **valid()), CONV2),
    "FusedPadConv2D": (
        lambda: raw.FusedPadConv2D(
            input=x(2, 6, 6, 3),
            paddings=tf.constant([[0, 0], [1, 1], [1, 1], [0, 0]]),
            filter=x(*FILTER),
            mode="REFLECT",
            **valid(),
        ),
        CONV2,
    ),
    "FusedResizeAndPadConv2D": (
        lambda: raw.FusedResizeAndPadConv2D(
            input=x(2, 3, 3, 3),
            size=tf.constant([6, 6]),
            paddings=tf.constant([[0, 0], [1, 1], [1, 1], [0, 0]]),
            filter=x(*FILTER),
            mode="REFLECT",
            **valid(),
        ),
        CONV2,
    ),
    "Conv2DBackpropInput": (
        lambda: raw.Conv2DBackpropInput(
            input_sizes=tf.constant(IMAGE),
            filter=x(*FILTER),
            out_backprop=x(*EDGES),
            **SAME,
        ),
        (2 * 8 * 8 * 5) * 27,
    ),
    "Conv2DBackpropFilter": (
        lambda: raw.Conv2DBackpropFilter(
            input=x(*IMAGE),
            filter_sizes=tf.constant(FILTER),
            out_backprop=x(*EDGES),
            **SAME,
        ),
        (2 * 8 * 8 * 5) * 27,
    ),
    "Conv3DBackpropInputV2": (
        lambda: raw.Conv3DBackpropInputV2(
            input_sizes=tf.constant(VOLUME),
            filter=x(*FILTER3),
            out_backprop=x(*RESULT3),
            **valid(5),
        ),
        CONV3,
    ),
    "Conv3DBackpropFilterV2": (
        lambda: raw.Conv3DBackpropFilterV2(
            input=x(*VOLUME),
            filter_sizes=tf.constant(FILTER3),
            out_backprop=x(*RESULT3),
            **valid(5),
        ),
        CONV3,
    ),
    "DepthwiseConv2dNative": (
        lambda: raw.DepthwiseConv2dNative(
            input=x(*IMAGE), filter=x(*D_FILTER), **valid()
        ),
        DEPTH,
    ),
    "DepthwiseConv2dNativeBackpropInput": (
        lambda: raw.DepthwiseConv2dNativeBackpropInput(
            input_sizes=tf.constant(IMAGE),
            filter=x(*D_FILTER),
            out_backprop=x(2, 6, 6, 6),
            **valid(),
        ),
        DEPTH,
    ),
    "DepthwiseConv2dNativeBackpropFilter": (
        lambda: raw.DepthwiseConv2dNativeBackpropFilter(
            input=x(*IMAGE),
            filter_sizes=tf.constant(D_FILTER),
            out_backprop=x(2, 6, 6, 6),
            **valid(),
        ),
        DEPTH,
    ),
    "BlockLSTM": (lambda: raw.BlockLSTM(**block_lstm()), T * B * (D + H) * 4 * H),
    "BlockLSTMV2": (lambda: raw.BlockLSTMV2(**block_lstm()), T * B * (D + H) * 4 * H),
    # Gradients of the data and of the weights. That of one cell leaves both to MatMul.
    "BlockLSTMGrad": (
        lambda: raw.BlockLSTMGrad(**block_gradient()),
        2 * T * B * (D + H) * 4 * H,
    ),
    "BlockLSTMGradV2": (
        lambda: raw.BlockLSTMGradV2(**block_gradient()),
        2 * T * B * (D + H) * 4 * H,
    ),
    "LSTMBlockCell": (lambda: raw.LSTMBlockCell(**lstm()), B * (D + H) * 4 * H),
    "LSTMBlockCellGrad": (
        lambda: raw.LSTMBlockCellGrad(
            **lstm(),
            **gates(B, H, names="i cs f o ci co cs_grad h_grad"),
            use_peephole=False,
        ),
        0,
    ),
    "GRUBlockCell": (lambda: raw.GRUBlockCell(**gru()), B * (D + H) * 3 * H),
    "GRUBlockCellGrad": (
        lambda: raw.GRUBlockCellGrad(**gru(), **gates(B, H, names="r u c d_h")),
        B * (D + H) * 3 * H,
    ),
    "CudnnRNN": (lambda: raw.CudnnRNN(**cudnn()), T * B * PARAMS),
    "CudnnRNNV2": (lambda: raw.CudnnRNNV2(**cudnn()), T * B * PARAMS),
    "CudnnRNNV3": (lambda: raw.CudnnRNNV3(**cudnn(), **lengths()), T * B * PARAMS),
    "CudnnRNNBackprop": (
        lambda: raw.CudnnRNNBackprop(**cudnn(BACK)),
        2 * T * B * PARAMS,
    ),
    "CudnnRNNBackpropV2": (
        lambda: raw.CudnnRNNBackpropV2(**cudnn(BACK), **reserved()),
        2 * T * B * PARAMS,
    ),
    "CudnnRNNBackpropV3": (
        lambda: raw.CudnnRNNBackpropV3(**cudnn(BACK), **lengths(), **reserved()),
        2 * T * B * PARAMS,
    ),
}


def test_every_row_that_multiplies_is_counted_below() -> None:
    multiplying = {row.op for row in ROWS.values() if row.role is Role.COMPUTE}
    products = {"conv", "rnn", "matmul", "batch_matmul", "einsum", "depthwise"}
    multiplying |= {row.op for row in ROWS.values() if row.work in products}
    known = {op for op in multiplying if op_def_registry.get(op) is not None}
    assert known - UNBUILDABLE == set(KERNELS)
    assert multiplying - set(KERNELS) == UNBUILDABLE


def counted(op: str, build: Callable[[], object]) -> float:
    module = module_of(graph_def(build))
    (node,) = (node for node in module.main.nodes.values() if node.op == op)
    ins = [module.main.shape(edge) for edge in node.inputs]
    outs = [module.main.shape((node.name, 0))]
    return arithmetic.flops(facts(op), ins, outs, node.text("equation"))


@pytest.mark.parametrize("op", KERNELS)
def test_a_kernel_counts_two_operations_a_multiply_add(op: str) -> None:
    build, multiplied = KERNELS[op]
    assert counted(op, build) == pytest.approx(2 * multiplied)


@pytest.mark.parametrize("op", KERNELS)
def test_a_kernel_counts_what_tensorflows_profiler_counts(op: str) -> None:
    build, _ = KERNELS[op]
    with tf.Graph().as_default() as graph:
        build()
    (node,) = (n for n in graph.as_graph_def().node if n.op == op)
    known = ops.get_stats_for_node_def(graph, node, "flops").value
    if op in COUNTED_THERE:
        assert counted(op, build) == pytest.approx(known)
    else:
        assert known is None


COUNTED_THERE = {
    *("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"),
    *("Conv2D", "Conv3D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    "DepthwiseConv2dNative",
}


# One has no OpDef here; the others may only be in graphs of 2016.
UNBUILDABLE = {
    *("FusedConv2DBiasActivation", "Conv3DBackpropInput", "Conv3DBackpropFilter"),
}


def test_a_kernel_that_cannot_be_built_counts_its_convolution() -> None:
    fused, ins = facts("FusedConv2DBiasActivation"), [IMAGE, FILTER, (5,), (0,)]
    assert arithmetic.flops(fused, ins, [RESULT]) == 2 * CONV2
    back = [VOLUME, FILTER3, RESULT3]
    given, filters = facts("Conv3DBackpropInput"), facts("Conv3DBackpropFilter")
    assert arithmetic.flops(given, back, [VOLUME]) == 2 * CONV3
    assert arithmetic.flops(filters, back, [FILTER3]) == 2 * CONV3
