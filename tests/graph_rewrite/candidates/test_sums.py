"""`sums`: what a kernel adds up in 16 bits is short, or stays float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from rewriting import CPU, context_of, graph_def, module_of, rewritten, v1

from amp.graph_rewrite.candidates import sums
from amp.graph_rewrite.candidates.context import type_ports
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.decisions import Decision

Build: TypeAlias = Callable[[], object]

WORSE = 2.0  # the factor that decision 18 allows
LOW = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
WITHOUT = dataclasses.replace(CPU, native=())
raw = tf.raw_ops


def product(*shape: int | None) -> tf.Tensor:
    """The result of a product, in a shape."""
    rows = v1.placeholder(tf.float32, [*shape[:-1], 4], name="x")
    return tf.einsum("...i,ij->...j", rows, tf.ones([4, shape[-1]]))


def decided(build: Build, device: Device = CPU, dtype: str = "bfloat16") -> Decision:
    """What is decided of the node `sum`."""
    report = rewritten(graph_def(build), device, dtype=dtype).report
    return next(d for d in report.decisions if d.node == "sum")


def errors(n: int) -> dict[str, tuple[float, float]]:
    """Squared errors of a sum of n terms, for terms of either sign and of one.

    Of float32 and of 16-bit accumulation, in units of that of one rounding.
    """
    partial = range(1, n + 1)
    either, one = sum(partial) / n, sum(k * k for k in partial) / n**2
    # The first partial sum is a term, and the last is the sum: rounded in any case.
    either, one = either - 1 / n - 1, one - 1 / n**2 - 1
    return {"either": (2.0, 2.0 + either), "one": (1 + 1 / n, 1 + 1 / n + one)}


def within(n: int) -> bool:
    return all(low <= WORSE**2 * high for high, low in errors(n).values())


def of_products(made: Callable[[tf.Tensor], tf.Tensor]) -> tuple[bool, bool]:
    """Whether the last product sums nothing, and whether it sums squares."""
    module = module_of(graph_def(lambda: made(v1.placeholder(tf.float32, [None, 8]))))
    typed = type_ports(module.main, context_of(module))
    view = [v for v in typed.values() if v.node.op in ("MatMul", "Einsum")][-1]
    return sums.sums_nothing(module.main, view), sums.sums_squares(module.main, view)


def test_what_a_product_sums() -> None:
    square = of_products(lambda x: tf.einsum("nd,nd->n", x, x))
    of_all = of_products(lambda x: tf.einsum("ij,ij->", x, x))
    assert square == of_all == (False, True)
    assert of_products(lambda x: tf.einsum("i,j->ij", x[0], x[1])) == (True, False)
    assert of_products(lambda x: tf.matmul(x, x, transpose_b=True)) == (False, False)
    assert of_products(lambda x: tf.einsum("nd,nd->n", x, x + 1.0)) == (False, False)


@pytest.mark.parametrize("op", ["LRN", "LRNGrad"])
def test_a_kernel_that_adds_squares_in_float16_has_no_range_for_them(op: str) -> None:
    """Of 300 it makes NaN, however few its terms are."""

    def build() -> None:
        x = product(1, 2, 2, 8)
        gradient = ("input_grads", "input_image", "output_image")
        names = ("input",) if op == "LRN" else gradient
        getattr(raw, op)(**dict.fromkeys(names, x), depth_radius=1, name="sum")

    assert decided(build, dtype="float16").rule == "range"


def test_the_number_of_terms_is_what_twice_the_error_allows() -> None:
    """The exact sums allow one or two more than their approximation."""
    assert within(sums.TERMS)
    assert not within(sums.TERMS + 3)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("signs", ["either", "one"])
def test_adding_so_many_terms_in_16_bits_costs_no_more_and_many_cost_more(
    dtype: str, signs: str
) -> None:
    """Law: as derived, for numbers of which the distribution is known.

    The error is a mean of 20,000 squares; its spread is under 2 %.
    """
    low = LOW[dtype]
    random = np.random.default_rng(0)

    def growth(n: int) -> float:
        terms = random.normal(size=(n, 20_000))
        terms = np.abs(terms) + 1 if signs == "one" else terms
        exact, rounded = terms.sum(0), terms.astype(low)
        total = rounded[0]
        for term in rounded[1:]:
            total = (total.astype("f") + term.astype("f")).astype(low)
        wide = rounded.astype(np.float64).sum(0).astype(low)
        found = [np.mean((s.astype(np.float64) - exact) ** 2) for s in (total, wide)]
        return float(np.sqrt(found[0] / found[1]))

    assert growth(sums.TERMS) <= WORSE
    assert growth(4 * sums.TERMS) > WORSE


def summed(n: int) -> Build:
    return lambda: tf.reduce_sum(product(n, 8), 0, name="sum")


def added(n: int) -> Build:
    def build() -> None:
        total = raw.AddN(inputs=[product(8, 8) for _ in range(n)], name="sum")
        tf.matmul(total, tf.ones([8, 8]))

    return build


def running(n: int) -> Build:
    return lambda: raw.Cumsum(x=product(n, 8), axis=0, name="sum")


def scattered(n: int) -> Build:
    def build() -> None:
        ids = tf.zeros([n, 1], tf.int32)
        raw.ScatterNd(indices=ids, updates=product(n, 8), shape=[64, 8], name="sum")

    return build


def segments(n: int) -> Build:
    def build() -> None:
        ids = tf.range(n)
        data = product(n, 8)
        raw.UnsortedSegmentSum(data=data, segment_ids=ids, num_segments=64, name="sum")

    return build


def biased(n: int) -> Build:
    return lambda: raw.BiasAddGrad(out_backprop=product(n, 8), name="sum")


def windows(n: int, stride: int = 1) -> Build:
    """Of `n` by 1, each a stride on from the other."""

    def build() -> None:
        raw.AvgPoolGrad(
            orig_input_shape=[1, 32, 1, 8],
            grad=product(1, (32 - n) // stride + 1, 1, 8),
            ksize=[1, n, 1, 1],
            strides=[1, stride, 1, 1],
            padding="VALID",
            name="sum",
        )

    return build


def pooled(n: int) -> Build:
    def build() -> None:
        raw.AvgPool(
            value=product(1, 32, 1, 8),
            ksize=[1, n, 1, 1],
            strides=[1, 1, 1, 1],
            padding="VALID",
            name="sum",
        )

    return build


def convolved(n: int) -> Build:
    """A gradient of filters: products over all positions."""

    def build() -> None:
        raw.Conv2DBackpropFilter(
            input=product(1, n, 1, 8),
            filter_sizes=[1, 1, 8, 8],
            out_backprop=product(1, n, 1, 8),
            strides=[1, 1, 1, 1],
            padding="VALID",
            name="sum",
        )

    return build


@pytest.mark.parametrize(
    ("make", "device", "dtype"),
    [
        *((make, CPU, "bfloat16") for make in (added, running, scattered, segments)),
        (windows, CPU, "bfloat16"),
        *((make, CPU, "float16") for make in (summed, running, pooled)),
        *((make, WITHOUT, "bfloat16") for make in (pooled, convolved)),
        *((make, A100, "float16") for make in (summed, added, scattered, segments)),
    ],
)
def test_a_sum_of_more_terms_stays_float32_where_kernels_add_up_in_16_bits(
    make: Callable[[int], Build], device: Device, dtype: str
) -> None:
    assert decided(make(sums.TERMS), device, dtype).dtype == dtype
    longer = decided(make(sums.TERMS + 1), device, dtype)
    assert longer.rule == "count"
    assert longer.cause == (
        f"{sums.TERMS + 1} terms, at most {sums.TERMS}"
        f" in a kernel that accumulates in {dtype}"
    )


def test_every_window_that_begins_within_another_adds_a_term() -> None:
    found = decided(windows(2 * sums.TERMS + 1, stride=2))
    assert found.rule == "count"
    assert found.cause.startswith(f"{sums.TERMS + 1} terms")


@pytest.mark.parametrize(
    ("make", "device"),
    [(summed, CPU), (pooled, CPU), (convolved, CPU), (biased, A100), (biased, CPU)],
)
def test_a_kernel_that_adds_up_in_float32_takes_any_number(
    make: Callable[[int], Build], device: Device
) -> None:
    assert decided(make(30), device).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("make", "device", "low"),
    [(summed, A100, False), (running, CPU, False), (scattered, CPU, True)],
)
def test_what_xla_compiles_adds_up_as_xla_does(
    make: Callable[[int], Build], device: Device, low: bool
) -> None:
    module = module_of(graph_def(make(4096)))
    under = context_of(module, device, xla=True)
    view = type_ports(module.main, under)["sum"]
    assert (sums.too_long(module.main, view, under) is not None) is low


@pytest.mark.parametrize(
    ("dtype", "terms", "rule"),
    [
        ("bfloat16", 256, "follow"),
        ("float16", 65_504, "follow"),
        ("float16", 65_505, "count"),
    ],
)
def test_a_sum_longer_than_float16_reaches_stays_float32(
    dtype: str, terms: int, rule: str
) -> None:
    def make() -> None:
        x = v1.placeholder(tf.float32, [1, 8], name="x")
        w = v1.placeholder(tf.float32, [8, terms], name="w")
        tf.reduce_sum(tf.matmul(x, w, name="product"), 1, name="sum")

    report = rewritten(graph_def(make), dtype=dtype, emulate=True).report
    assert {d.node: d.rule for d in report.decisions}["sum"] == rule


def test_a_sum_in_a_gpu_kernel_adds_up_in_float32_in_bfloat16() -> None:
    assert decided(summed(4096), A100).rule == "follow"
    assert decided(summed(4096), A100, "float16").rule == "count"


def test_a_mean_in_a_gpu_kernel_adds_up_in_float32() -> None:
    found = decided(lambda: tf.reduce_mean(product(4096, 8), 0, name="sum"), A100)
    assert found.rule == "follow"


def test_a_sum_over_an_unknown_batch_in_such_a_kernel_stays_float32() -> None:
    found = decided(summed(None), dtype="float16")
    assert found.rule == "count"
    assert found.cause.startswith("an unknown number of terms")
