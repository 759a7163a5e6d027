"""`ClusterPrices`: a compiled call is worth what it saves of its nodes as kernels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
import tensorflow as tf
from rewriting import context_of, graph_def, module_of, v1

from amp.graph_rewrite.candidates.context import TypedGraph, type_ports
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.model import CostModel, Measured, Point
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.fusion import outline
from amp.graph_rewrite.fusion.candidates import Members
from amp.graph_rewrite.fusion.cluster_prices import CLEARLY, ClusterPrices

SIZE = 8  # elements of every tensor
HIGH, LOW = 4 * SIZE, 2 * SIZE  # their bytes
EXP, CAST = 2 * HIGH, HIGH + LOW  # bytes that an operation and a cast move


def device(start: float, bandwidth: float, call: float, compiled: float) -> Device:
    """Seconds an operation takes to start, bytes a second; the same two of XLA."""
    figures = {"speed": {}, "slowdown": {}, "start": {}, "casts": {}, "flops": 1.0}
    kernels = dataclasses.replace(
        CPU_AMX, launch=start, bandwidth=bandwidth, compiled=None, **figures
    )
    loop = dataclasses.replace(kernels, launch=0.0, bandwidth=compiled, call=call)
    return dataclasses.replace(kernels, compiled=loop)


def saved(
    build: Callable[[], object],
    names: tuple[str, ...],
    on: Device,
    measured: Measured | None = None,
) -> float:
    module = module_of(graph_def(build))
    context = context_of(module)
    typed = type_ports(module.main, context)
    members = Members(TypedGraph(module.main, context, typed))
    prices = ClusterPrices(members, CostModel(on, "bfloat16", measured), on)
    gives = tuple((name, 0) for name in names if members.given(set(names), name))
    made = outline.outline(module.main, names, members.copied, gives, members.type_of)
    return prices.saved(names, made)


def x(dtype: tf.DType = tf.float32) -> tf.Tensor:
    return v1.placeholder(dtype, [SIZE], name="x")


def down() -> None:
    tf.identity(tf.cast(tf.exp(x(), name="exp"), tf.bfloat16, name="down"))


def both() -> None:
    high = tf.cast(x(tf.bfloat16), tf.float32, name="up")
    tf.identity(tf.cast(tf.exp(high, name="exp"), tf.bfloat16, name="down"))


NAMES = ("exp", "down")
FAST = 1e9  # at which moving these few bytes takes under 1e-6 seconds
NEARLY = 1e-6


def test_a_call_saves_the_starts_of_its_kernels() -> None:
    on = device(start=10.0, bandwidth=FAST, call=5.0, compiled=FAST)
    assert saved(down, NAMES, on) == pytest.approx(2 * 10.0 - 5.0, abs=NEARLY)


def test_a_cast_up_that_only_the_cluster_reads_is_saved_too() -> None:
    on = device(start=10.0, bandwidth=FAST, call=5.0, compiled=FAST)
    assert saved(both, NAMES, on) == pytest.approx(3 * 10.0 - 5.0, abs=NEARLY)


@pytest.mark.parametrize(("share", "pays"), [(-0.01, True), (0.01, False)])
def test_what_is_not_clearly_saved_is_nothing(share: float, pays: bool) -> None:
    call = (CLEARLY + share) * 2 * 10.0
    on = device(start=10.0, bandwidth=FAST, call=call, compiled=FAST)
    assert (saved(down, NAMES, on) > 0) is pays


def test_moving_what_crosses_the_border_takes_its_time() -> None:
    on = device(start=0.0, bandwidth=1.0, call=0.0, compiled=FAST)
    moved = HIGH + LOW  # in float32, out in 16 bits
    assert saved(down, NAMES, on) == pytest.approx(EXP + CAST - moved, abs=NEARLY)
    moved = LOW + LOW  # the cast up is inside
    ups = EXP + 2 * CAST - moved
    assert saved(both, NAMES, on) == pytest.approx(ups, abs=NEARLY)


def test_arithmetic_inside_counts_where_it_is_the_longer() -> None:
    rate = 1.5
    on = device(start=0.0, bandwidth=1.0, call=0.0, compiled=rate)
    inside = 2 * EXP / rate  # a cast is arithmetic like any other
    assert inside > HIGH + LOW
    assert saved(down, NAMES, on) == pytest.approx(EXP + CAST - inside)


def test_a_loop_is_as_much_slower_than_its_figures_as_measured_casts_are() -> None:
    on = device(start=0.0, bandwidth=1.0, call=1.0, compiled=FAST)
    slow = Measured(points=[Point("Cast", "cast", (CAST, CAST), (CAST, 2 * CAST))])
    kernels = EXP + 1.5 * CAST  # downwards once, upwards twice as long as predicted
    loop = 1.5 * (HIGH + LOW)
    found = saved(down, NAMES, on, slow)
    assert found == pytest.approx(kernels - loop - 1.0, abs=NEARLY)


def test_what_moves_nothing_costs_nothing_on_either_side() -> None:
    def summed() -> None:
        high = tf.reduce_sum(tf.exp(x(), name="exp"), tf.zeros([0], tf.int32), name="s")
        tf.identity(tf.cast(high, tf.bfloat16, name="down"))

    on = device(start=10.0, bandwidth=FAST, call=5.0, compiled=FAST)
    assert saved(summed, ("exp", "s", "down"), on) == saved(down, NAMES, on)


def biased(split: bool) -> None:
    """A product and its bias in 16 bits, then the arithmetic of `both`.

    Args:
      split: whether the product gets its bias in float32, behind a cast.
    """
    rows = v1.placeholder(tf.bfloat16, [1, SIZE])
    product = tf.matmul(rows, v1.placeholder(tf.bfloat16, [SIZE, SIZE]))
    dtype = tf.float32 if split else tf.bfloat16
    given = tf.cast(product, dtype, name="up") if split else product
    high = tf.nn.bias_add(given, v1.placeholder(dtype, [SIZE]), name="bias")
    wide = high if split else tf.cast(high, tf.float32, name="up")
    tf.identity(tf.cast(tf.exp(wide, name="exp"), tf.bfloat16, name="down"))


def test_a_bias_that_is_merged_into_its_product_takes_no_time() -> None:
    on = device(start=10.0, bandwidth=FAST, call=5.0, compiled=FAST)
    names = ("bias", *NAMES)
    merged = saved(functools.partial(biased, split=False), names, on)
    assert merged == pytest.approx(3 * 10.0 - 5.0, abs=NEARLY)
    split = saved(functools.partial(biased, split=True), names, on)
    assert split == pytest.approx(4 * 10.0 - 5.0, abs=NEARLY)
