"""`cost`: a roofline by arithmetic; the embedding of the design comes out right."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf
from rewriting import graph_def, low, rewritten, v1

from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.loops import Moved
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.cost.shipped_devices import A100, CPU_AMX, CPU_PLAIN
from amp.graph_rewrite.graph import shapes
from amp.graph_rewrite.ops.row import KIND_OF


def test_what_is_unknown_has_its_stated_default() -> None:
    assert shapes.elements(None) == shapes.UNKNOWN_ELEMENTS
    assert shapes.elements((-1, 10)) == shapes.UNKNOWN_DIMENSION * 10
    assert shapes.elements(()) == 1


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
    slow = {d: CPU_AMX.slowdown[d]["transcendental"] for d in ("float32", "bfloat16")}
    times = {"float32": high - CPU_AMX.launch, "bfloat16": low - CPU_AMX.launch}
    for dtype, seconds in times.items():
        expected = slow[dtype] * 4 * 10**7 / CPU_AMX.bandwidth
        assert seconds == pytest.approx(expected)
    assert low > high


def test_a_loss_of_classes_is_slower_than_a_softmax_of_as_many() -> None:
    clock = CostModel(CPU_AMX, "bfloat16")
    softmax, loss = (clock.node(work, 10**7, 0.0)[0] for work in ("softmax", "loss"))
    figures = CPU_AMX.slowdown["float32"]
    assert loss / softmax == pytest.approx(figures["loss"] / figures["softmax"], 0.01)
    assert loss > 4 * softmax


def test_a_rate_of_one_kind_of_work_wins_over_that_of_products() -> None:
    clock = CostModel(CPU_AMX, "bfloat16")
    _, conv = clock.node("conv", 1, 1e12)
    _, product = clock.node("matmul", 1, 1e12)
    rates = CPU_AMX.speed["bfloat16"]
    start = CPU_AMX.start["bfloat16"]["conv"]
    ratio = (product - CPU_AMX.launch) / (conv - start)
    assert ratio == pytest.approx(rates["conv"] / rates["product"])


def test_a_cast_reads_one_type_and_writes_the_other() -> None:
    seconds = CostModel(A100, "bfloat16").cast((1000, 1000))
    assert seconds == A100.launch + 6 * 10**6 / A100.bandwidth


def test_a_cast_in_a_loop_only_rounds() -> None:
    device = CPU_AMX.under(True)
    model = CostModel(device, "bfloat16")
    rounding = device.inside["bfloat16"]["elementwise"]
    assert model.cast((1000, 1000), in_loop=True) == rounding * 10**6
    assert CostModel(A100, "bfloat16").cast((1000, 1000), in_loop=True) == 0.0


def test_a_node_in_a_loop_takes_what_it_computes_and_what_is_moved_for_it() -> None:
    device = CPU_AMX.under(True)
    model = CostModel(device, "bfloat16")
    figures = [device.inside[d]["transcendental"] for d in ("float32", "bfloat16")]
    inner = model.in_loop("transcendental", 1000, Moved())
    assert inner == tuple(1000 * figure for figure in figures)
    high, low = model.in_loop("transcendental", 1000, Moved(300, 200, starts=True))
    assert high - inner[0] == pytest.approx(device.launch + 2000 / device.bandwidth)
    assert low - inner[1] == pytest.approx(device.launch + 1400 / device.bandwidth)


def test_a_product_that_is_widened_is_never_faster_in_16_bits() -> None:
    device = CPU_AMX.under(True)
    model = CostModel(device, "bfloat16")
    moved = Moved(own=100, widened=1000)
    high, low = model.alone((1.0, 0.1), moved)
    assert high == 1.0 + 400 / device.bandwidth
    assert low - high == pytest.approx(device.launch + 6000 / device.bandwidth)
    native = CostModel(A100, "bfloat16").alone((1.0, 0.1), moved)
    assert native == (1.0 + 400 / A100.bandwidth, 0.1 + 200 / A100.bandwidth)


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


@pytest.mark.parametrize("work", list(KIND_OF))
def test_work_without_figures_costs_as_the_work_it_is_a_kind_of(work: str) -> None:
    """And not as if 16 bits halved its time."""
    slowdown = {"bfloat16": {"elementwise": 3.0, "matmul": 5.0}}
    inside = {"bfloat16": {"elementwise": 1e-9, "matmul": 2e-9}}
    plain = dataclasses.replace(CPU_PLAIN, slowdown=slowdown, inside=inside)
    clock, like = CostModel(plain, "bfloat16"), KIND_OF[work]
    assert clock.node(work, 10**6, 0.0) == clock.node(like, 10**6, 0.0)
    moved = Moved()
    assert clock.in_loop(work, 10**6, moved) == clock.in_loop(like, 10**6, moved)
    slowdown["bfloat16"][work] = 9.0
    own = CostModel(plain, "bfloat16")
    assert own.node(work, 10**6, 0.0)[1] > clock.node(like, 10**6, 0.0)[1]
