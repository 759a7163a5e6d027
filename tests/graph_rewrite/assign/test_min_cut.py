"""`assign`: the cut is the cheapest assignment; ties stay float32; it scales."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp.graph_rewrite.assign.min_cut import Branch, Tensor, rounding, solve, total

Times = Mapping[str, tuple[float, float]]


def cost(times: Times, tensors: Sequence[Tensor], low: frozenset[str]) -> float:
    """The total time of an assignment, straight from the words of the model."""
    total = sum(seconds[name in low] for name, seconds in times.items())
    for tensor in tensors:
        made_low = tensor.producer in low
        other = [(reader in low) != made_low for reader in tensor.readers]
        inside = sum(
            branch.share
            for branch in tensor.branches
            if any((reader in low) != made_low for reader in branch.readers)
        )
        seconds = tensor.cast if made_low else tensor.down
        total += seconds * (1.0 if any(other) else min(inside, 1.0))
    return total


def cheapest(
    times: Times, fixed: frozenset[str], tensors: Sequence[Tensor]
) -> tuple[float, int, int]:
    """The least cost over all assignments; the fewest and the most nodes with it."""
    count = len(times)
    bits = np.arange(2**count)[:, None] >> np.arange(count) & 1
    low = {name: bits[:, i] == 1 for i, name in enumerate(times)}
    no = np.zeros(2**count, bool)
    low |= dict.fromkeys(fixed, ~no)
    total = np.zeros(2**count)
    for name, (high_time, low_time) in times.items():
        total += np.where(low[name], low_time, high_time)
    for tensor in tensors:
        made = low.get(tensor.producer or "", no)
        reads = [low.get(reader, no) for reader in tensor.readers] or [made]
        up, down = made & ~np.all(reads, axis=0), ~made & np.any(reads, axis=0)
        inside_up, inside_down = np.zeros(2**count), np.zeros(2**count)
        for branch in tensor.branches:
            inside = [low.get(reader, no) for reader in branch.readers] or [made]
            inside_up += branch.share * (made & ~np.all(inside, axis=0))
            inside_down += branch.share * (~made & np.any(inside, axis=0))
        total += tensor.cast * np.where(up, 1.0, np.minimum(inside_up, 1.0))
        total += tensor.down * np.where(down, 1.0, np.minimum(inside_down, 1.0))
    least = float(total.min())
    counts = bits.sum(axis=1)[total == least]
    return least, int(counts.min()), int(counts.max())


def test_what_costs_the_same_goes_the_way_that_it_is_told() -> None:
    """A reshape between arithmetic in float32 and a product."""
    times = {"arithmetic": (1.0, 5.0), "reshape": (0.0, 0.0), "product": (9.0, 1.0)}
    tensors = [
        Tensor("arithmetic", ["reshape"], 1.0, 1.0),
        Tensor("reshape", ["product"], 1.0, 1.0),
        Tensor("product", [FIXED_HIGH], 1.0, 1.0),
    ]
    assert solve(times, frozenset(), tensors) == {"product"}
    low = solve(times, frozenset(), tensors, {"reshape", "arithmetic"})
    assert low == {"product", "reshape"}


FIXED_LOW, FIXED_HIGH = "low", "high"
# Even numbers, so that half of one is whole: exact sums, and ties are met.
seconds = st.integers(0, 6).map(lambda number: 2.0 * number)


@st.composite
def instances(
    draw: st.DrawFn, amounts: st.SearchStrategy[float]
) -> tuple[Times, list[Tensor]]:
    names = [f"n{i}" for i in range(draw(st.integers(1, 10)))]
    times = {name: (draw(amounts), draw(amounts)) for name in names}
    anyone = st.sampled_from([*names, FIXED_LOW, FIXED_HIGH])
    tensors = []
    for _ in range(draw(st.integers(0, 8))):
        cast = draw(amounts)
        tensors.append(
            Tensor(
                producer=draw(st.none() | anyone),
                readers=tuple(draw(st.lists(anyone, max_size=4))),
                cast=cast,
                down=draw(st.sampled_from([0.0, cast])),
                branches=[
                    Branch(index, 0.5, tuple(draw(st.lists(anyone, max_size=3))))
                    for index in range(draw(st.integers(0, 3)))
                ],
            )
        )
    return times, tensors


@given(instances(seconds))
@settings(derandomize=True, deadline=None, max_examples=250)
def test_the_cut_is_the_brute_force_minimum_and_ties_go_as_they_are_told(
    instance: tuple[Times, list[Tensor]],
) -> None:
    times, tensors = instance
    fixed = frozenset({FIXED_LOW})
    low = solve(times, fixed, tensors)
    price, fewest, most = cheapest(times, fixed, tensors)
    assert low <= times.keys()
    # Whole numbers are whole units, as a unit is a power of two: nothing is rounded.
    assert cost(times, tensors, low | fixed) == price
    assert len(low) == fewest
    told = solve(times, fixed, tensors, times.keys())
    assert cost(times, tensors, told | fixed) == price
    assert len(told) == most


@given(instances(st.floats(1e-9, 1e-3)))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_real_times_are_optimal_within_the_rounding_to_whole_units(
    instance: tuple[Times, list[Tensor]],
) -> None:
    """As `rounding` derives; 1e-12 for float64 sums in another order."""
    times, tensors = instance
    fixed = frozenset({FIXED_LOW})
    low = solve(times, fixed, tensors)
    price, _, _ = cheapest(times, fixed, tensors)
    found = cost(times, tensors, low | fixed)
    assert total(times, tensors, low | fixed) == pytest.approx(found, rel=1e-12)
    assert found <= price + rounding(times, tensors) + 1e-12 * price


def test_a_cast_is_paid_once_however_many_read_it() -> None:
    # Three readers gain 1 each; one shared cast costs 2, three would cost 6.
    times = dict.fromkeys("abc", (1.0, 0.0))
    shared = [Tensor(None, ("a", "b", "c"), 2.0, 2.0)]
    assert solve(times, frozenset(), shared) == frozenset("abc")
    apart = [Tensor(None, (name,), 2.0, 2.0) for name in "abc"]
    assert solve(times, frozenset(), apart) == frozenset()


def test_a_tie_stays_float32() -> None:
    times = {"a": (2.0, 0.0)}
    assert solve(times, frozenset(), [Tensor(None, ("a",), 2.0, 2.0)]) == frozenset()
    assert solve(times, frozenset(), [Tensor(None, ("a",), 1.0, 1.0)]) == {"a"}


def test_a_cast_in_a_branch_counts_as_often_as_the_branch_runs() -> None:
    def low(gain: float, *tensors: Tensor) -> frozenset[str]:
        return solve({"a": (gain, 0.0), "b": (gain, 0.0)}, frozenset(), tensors)

    one, other = Branch("then", 0.5, ("a",)), Branch("else", 0.5, ("b",))
    assert low(1.5, Tensor(None, (), 2.0, 2.0, [one])) >= {"a"}
    assert "a" not in low(0.75, Tensor(None, (), 2.0, 2.0, [one]))
    # All branches together cost no more than one cast before them.
    inner = [one, other, Branch("third", 0.5, ("b",))]
    assert low(1.25, Tensor(None, (), 2.0, 2.0, inner)) == {"a", "b"}
    # Where a reader outside needs the cast, the branch has it for nothing.
    outside = Tensor(None, ("b",), 2.0, 2.0, [one])
    assert low(1.25, outside) == {"a", "b"}


def test_a_branch_in_a_branch_pays_for_the_cheaper_of_two_casts() -> None:
    deep = Branch("then", 0.5, (), [Branch("within", 0.25, ("a",))])
    chain = [Tensor(None, (), 4.0, 4.0, [deep])]
    assert solve({"a": (1.5, 0.0)}, frozenset(), chain) == {"a"}
    assert solve({"a": (0.5, 0.0)}, frozenset(), chain) == frozenset()
    assert total({"a": (1.5, 0.0)}, chain, {"a"}) == 1.0


def test_a_constant_is_cast_for_nothing() -> None:
    times = {"a": (1.0, 0.0)}
    assert solve(times, frozenset(), [Tensor(None, ("a",), 5.0, 0.0)]) == {"a"}


def test_a_slower_node_is_carried_where_casts_would_cost_more() -> None:
    # low -> slow -> low: two casts of 3 against a loss of 5.
    times = {"a": (100.0, 0.0), "slow": (0.0, 5.0), "b": (100.0, 0.0)}
    chain = [Tensor("a", ("slow",), 3.0, 3.0), Tensor("slow", ("b",), 3.0, 3.0)]
    assert solve(times, frozenset(), chain) == {"a", "slow", "b"}
    cheap = [Tensor("a", ("slow",), 2.0, 2.0), Tensor("slow", ("b",), 2.0, 2.0)]
    assert solve(times, frozenset(), cheap) == {"a", "b"}


@pytest.mark.parametrize("times", [{}, {"a": (0.0, 0.0)}])
def test_nothing_to_gain_is_nothing_low(times: Times) -> None:
    assert solve(times, frozenset(), [Tensor(None, ("a",), 0.0, 0.0)]) == frozenset()


def test_a_hundred_thousand_nodes_take_seconds() -> None:
    random = np.random.default_rng(0)
    count = 100_000
    gains = random.normal(0.0, 1.0, count)
    times = {f"n{i}": (max(g, 0.0), max(-g, 0.0)) for i, g in enumerate(gains)}
    tensors = [
        Tensor(
            f"n{i}",
            tuple(f"n{j}" for j in (i + random.integers(1, 50, 2)) if j < count),
            float(price),
            float(price),
        )
        for i, price in enumerate(random.uniform(0, 0.5, count))
    ]
    start = time.process_time()
    low = solve(times, frozenset(), tensors)
    took = time.process_time() - start
    assert 0 < len(low) < count
    assert took < 5.0  # about 1 s on an idle core
