"""`cost`: a roofline by arithmetic; the embedding of the design comes out right."""

from __future__ import annotations

import pytest
import tensorflow as tf
from rewriting import graph_def, low, rewritten, v1

from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.shipped_devices import A100, CPU_AMX
from amp.graph_rewrite.graph import shapes
from amp.graph_rewrite.ops import arithmetic

M, K, N = 3, 5, 7


@pytest.mark.parametrize("a", [(M, K), (K, M)])
@pytest.mark.parametrize("b", [(K, N), (N, K)])
def test_a_product_counts_mkn_whichever_operand_is_transposed(
    a: tuple[int, int], b: tuple[int, int]
) -> None:
    assert arithmetic.flops("matmul", [a, b], [(M, N)]) == pytest.approx(2 * M * K * N)


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
    counted = arithmetic.flops("batch_matmul", [a, b], [out])
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
    assert arithmetic.flops("einsum", [a, b], [out], equation) == 2 * count


def test_an_einsum_with_an_ellipsis_is_estimated_as_one_product() -> None:
    counted = arithmetic.flops(
        "einsum", [(2, M, K), (K, N)], [(2, M, N)], "...ij,jk->...ik"
    )
    assert counted == pytest.approx(2 * 2 * M * K * N)


# A batch of 2 images of 8x8x3, 5 filters of 3x3: each of the 2*6*6*5 results (valid)
# takes 3*3*3 products, forward and in both gradients.
IMAGE, FILTER, RESULT = (2, 8, 8, 3), (3, 3, 3, 5), (2, 6, 6, 5)
CONV = 2 * (2 * 6 * 6 * 5) * (3 * 3 * 3)


@pytest.mark.parametrize(
    ("work", "ins", "out"),
    [
        ("conv", [IMAGE, FILTER], RESULT),
        ("conv_grad_input", [(4,), FILTER, RESULT], IMAGE),
        ("conv_grad_filter", [IMAGE, (4,), RESULT], FILTER),
    ],
)
def test_a_convolution_and_its_gradients_count_the_same(
    work: str, ins: list[tuple[int, ...]], out: tuple[int, ...]
) -> None:
    assert arithmetic.flops(work, ins, [out]) == CONV


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
    assert arithmetic.flops("depthwise", ins, [out]) == DEPTHWISE


def test_work_that_moves_bytes_computes_nothing() -> None:
    assert arithmetic.flops("elementwise", [(10,)], [(10,)]) == 0
    assert arithmetic.flops("gather", [(10,), (3,)], [(3,)]) == 0


def test_what_is_unknown_has_its_stated_default() -> None:
    assert shapes.elements(None) == shapes.UNKNOWN_ELEMENTS
    assert shapes.elements((-1, 10)) == shapes.UNKNOWN_DIMENSION * 10
    assert shapes.elements(()) == 1


def test_bytes_moved_are_those_read_and_written() -> None:
    assert arithmetic.moved("elementwise", [(4, 8), (8,)], [(4, 8)]) == 32 + 8 + 32
    assert arithmetic.moved("gather", [(1000, 8)], [(4, 8)]) == 2 * 32  # not the table
    assert arithmetic.moved("free", [(1000,)], [(1000,)]) == 0


def test_a_node_takes_the_longer_of_moving_and_computing() -> None:
    clock = CostModel(A100, "float16")
    count = 10**8
    high, low = clock.node("elementwise", count, 0.0)
    assert high == A100.launch + 4 * count / A100.bandwidth
    assert low == A100.launch + 2 * count / A100.bandwidth
    work = 1e12
    high, low = clock.node("matmul", 10, work)
    assert high == A100.launch + work / A100.flops
    assert low == A100.launch + work / A100.flops / A100.speed["float16"]["product"]
    assert clock.node("free", 0, 0.0) == (0.0, 0.0)


def test_a_measured_slowdown_wins_over_halved_bytes() -> None:
    clock = CostModel(CPU_AMX, "bfloat16")
    high, low = clock.node("transcendental", 10**7, 0.0)
    slow = CPU_AMX.slowdown["bfloat16"]["transcendental"]
    assert (low - CPU_AMX.launch) == pytest.approx(slow * (high - CPU_AMX.launch))
    assert low > high


def test_a_rate_of_one_kind_of_work_wins_over_that_of_products() -> None:
    clock = CostModel(CPU_AMX, "bfloat16")
    _, conv = clock.node("conv", 1, 1e12)
    _, product = clock.node("matmul", 1, 1e12)
    rates = CPU_AMX.speed["bfloat16"]
    ratio = (product - CPU_AMX.launch) / (conv - CPU_AMX.launch)
    assert ratio == pytest.approx(rates["conv"] / rates["product"])


def test_a_cast_reads_one_type_and_writes_the_other() -> None:
    seconds = CostModel(A100, "bfloat16").cast((1000, 1000))
    assert seconds == A100.launch + 6 * 10**6 / A100.bandwidth


def embedding(rows: int, depth: int, table: int) -> tf.compat.v1.GraphDef:
    def build() -> None:
        weights = v1.get_variable("table", [table, depth], use_resource=True)
        read = weights.read_value()
        indices = v1.placeholder(tf.int32, [rows], name="indices")
        found = tf.raw_ops.GatherV2(params=read, indices=indices, axis=0, name="gather")
        kernel = tf.ones([depth, 4 * depth])
        tf.matmul(found, kernel, name="product")

    return graph_def(build)


@pytest.mark.parametrize("device", [A100, CPU_AMX], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("rows", "table", "turns"),
    # By the design's count: low costs V*D*6 bytes for the cast of the table and saves
    # N*D*6 for that of the result and N*D*4 in the gather: low if 10 N > 6 V.
    [(4_096, 400_000, False), (40_000, 1_000, True), (8_000, 10_000, True),
     (8_000, 20_000, False)],
)  # fmt: skip
def test_a_gather_turns_16_bit_when_its_table_is_small_against_its_result(
    device: Device, rows: int, table: int, turns: bool
) -> None:
    fields = {"dtype": "bfloat16", "assignment": "cost"}
    result = rewritten(embedding(rows, 1024, table), device, **fields)
    taken = low(result.report)
    assert "product" in taken
    assert ("gather" in taken) is turns
    # The result of a float32 gather is cast, not the table.
    cast = next(n for n in result.graph.node if n.op == "Cast")
    assert (cast.input[0] == "gather") is not turns
