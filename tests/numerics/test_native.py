"""TensorFlow's 16-bit kernels give gradients as exact as their emulation promises.

An emulated plan rounds each 16-bit result once; its kernels are float32. A native
kernel may round within: it accumulates sums in 16 bits, or rounds what a formula has in
between. By the rule `count` a sum that is accumulated in 16 bits has so few terms that
its error is at most `WORSE` times what the roundings of its operands and result alone
make of it (`candidates/sums.py` says how that follows), and kernels of the elementwise
ops round no more often than that. Errors of a gradient are sums of those of the
operations before it, each times what lies in between, which both have in common. So
native gradients are at most `WORSE` times as far from float32's as those of the same
plan emulated. (`yardstick.on_this_machine` says what they are compared with where
products have no arithmetic in the type.)

Which side of a kink a value next to it falls to is chance, so a case has the middle one
of three draws.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from types import MappingProxyType

import pytest
import thorough
import yardstick
from cases import CASES
from yardstick import Runner

from amp.graph_rewrite.candidates import context
from amp.graph_rewrite.ops import op_table
from amp.integration.measuring import hardware

DTYPES = ("bfloat16", "float16")
WORSE = 2.0
DRAWS = 3
# Two errors of one size differ by chance. The square of an error is a sum over the
# elements of all gradients, of which at least 50 are independent; the spread of an
# error is then sqrt(1/100) of it, that of the ratio of two sqrt(1/50), that of the
# middle one of three such ratios 0.67 of that: 0.095. This is 2.6 spreads above 1.
CHANCE = 1.25


def ratio(name: str, dtype: str, ours: Runner, other: Runner) -> float:
    """How much larger one error is than another, in the middle one of the draws."""
    build = CASES[name]
    return statistics.median(
        yardstick.off(build, ours, dtype, draw)
        / yardstick.off(build, other, dtype, draw)
        for draw in range(DRAWS)
    )


# A mask of -1e9 where the whole model is float16.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("dtype", thorough.but(("bfloat16",), DTYPES))
@pytest.mark.parametrize("name", thorough.but([*CASES][1::2], CASES))
def test_native_gradients_are_as_exact_as_emulated_ones_and_as_the_whole_model(
    name: str, dtype: str
) -> None:
    """Law: within `WORSE` of the emulation; with everything that may be 16-bit in 16
    bits, no worse than where all tensors are.
    """
    native, emulated = yardstick.on_this_machine(CASES[name], dtype)
    assert 0 < ratio(name, dtype, native, emulated) <= WORSE
    whole = yardstick.whole_model(CASES[name], dtype)
    assert ratio(name, dtype, native, whole) <= CHANCE


FAULTS = {
    "UnsortedSegmentSum": "graph_network",
    "BiasAddGrad": "linear_attention",
    "Cumsum": "cumulative_decay",
}


def saying(op: str) -> Mapping[str, op_table.Row]:
    """The op table, with an op whose kernels are said to accumulate in float32."""
    wrong = dataclasses.replace(
        op_table.TABLE[op], accumulates_low=(), native_accumulates_low=()
    )
    return MappingProxyType({**op_table.TABLE, op: wrong})


@pytest.mark.parametrize("op", FAULTS)
def test_a_wrong_fact_of_a_kernel_is_seen(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "bfloat16" not in hardware.shipped().native:
        pytest.skip("products without arithmetic in bfloat16 are coarser than the sum")
    monkeypatch.setattr(context, "TABLE", saying(op))
    native, emulated = yardstick.on_this_machine(CASES[FAULTS[op]], "bfloat16")
    assert ratio(FAULTS[op], "bfloat16", native, emulated) > WORSE


def test_a_plan_that_is_coarser_than_the_whole_model_is_seen() -> None:
    """One in bfloat16 is, beside the whole model in float16 with 8 times its digits."""
    build = CASES["regression"]
    native, _ = yardstick.on_this_machine(build, "bfloat16")
    whole = yardstick.whole_model(build, "float16")
    coarse = [yardstick.off(build, native, "bfloat16", i) for i in range(DRAWS)]
    fine = [yardstick.off(build, whole, "float16", i) for i in range(DRAWS)]
    found = statistics.median(a / b for a, b in zip(coarse, fine, strict=True))
    assert found > CHANCE
