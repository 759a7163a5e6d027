"""`accuracy`: a plan is at fault exactly if it is worse than products only allow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from amp.integration.observing import accuracy
from amp.integration.observing.accuracy import ALL, FEW, NOISE, ONE, Errors, Suspects

UNIT = 2.0**-8


def of(*each: float, sizes: Sequence[float] = ()) -> Errors:
    """The errors of gradients, by default of one size in float32."""
    sizes = tuple(sizes) or (1.0,) * len(each)
    offs = (one**2 * size for one, size in zip(each, sizes, strict=True))
    return Errors(each, tuple(offs), sizes)


def test_errors_are_in_units_of_the_float32_gradient() -> None:
    wanted = [np.array([3.0, 4.0], np.float32), np.array([0.0], np.float32)]
    found = [np.array([3.0, 4.5], np.float32), np.array([0.0], np.float32)]
    errors = accuracy.errors(found, wanted)
    assert (errors.each, errors.all, errors.finite) == ((0.1, 0.0), 0.1, True)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_infinitely_far(bad: float) -> None:
    wanted = [np.ones(2, np.float32)]
    found = accuracy.errors([np.array([1.0, bad], np.float32)], wanted)
    assert found.each == (math.inf,)
    assert not found.finite


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_so_is_one_that_is_0_in_float32(bad: float) -> None:
    wanted = [np.zeros(3, np.float32), np.ones(1, np.float32)]
    products = accuracy.errors(wanted, wanted)
    plan = accuracy.errors([np.full(3, bad, np.float32), wanted[1]], wanted)
    assert plan.each == (math.inf, 0.0)
    assert accuracy.faults(plan, products, UNIT) == [0]
    alone = accuracy.errors([np.full(3, bad, np.float32)], wanted[:1])
    assert accuracy.faults(alone, of(0.0, sizes=[0.0]), UNIT) == [0]


def test_nodes_are_to_blame_that_make_most_of_the_error_of_what_is_told() -> None:
    told, most = of(0.01, 0.02), 0.02 * ONE
    assert accuracy.spoilt(of(0.01, most), told, UNIT) == []
    assert accuracy.spoilt(of(0.01, most + 1e-6), told, UNIT) == [1]
    assert accuracy.spoilt(of(0.7, 0.7), told, UNIT) == [0, 1]  # the worst first
    assert accuracy.spoilt(of(math.inf, 0.0), told, UNIT) == [0]


def test_they_are_not_where_rounding_is_all_or_nothing() -> None:
    assert accuracy.spoilt(of(ONE * UNIT), of(0.0), UNIT) == []  # any rounding is that
    assert accuracy.spoilt(of(9.0), of(NOISE + 0.01), UNIT) == []  # noise without, too
    tiny = (UNIT**2 / 2, 1.0)  # a bias before a batch normalization
    plan, without = of(0.9, 0.0, sizes=tiny), of(0.0, 0.0, sizes=tiny)
    assert accuracy.spoilt(plan, without, UNIT) == []


def test_one_gradient_may_be_so_far_off_and_no_further() -> None:
    sizes = (1.0, 0.01)  # too small to count among all
    products = of(0.01, 0.02, sizes=sizes)
    fine, worse = (of(0.01, off * ONE, sizes=sizes) for off in (0.02, 0.021))
    assert accuracy.faults(fine, products, UNIT) == []
    assert accuracy.faults(worse, products, UNIT) == [1]


def test_all_together_may_be_so_far_off_and_no_further() -> None:
    products = of(0.01, 0.02)
    assert not accuracy.faults(of(0.01 * ALL, 0.02 * ALL), products, UNIT)
    assert not accuracy.faults(of(0.011 * ALL, 0.019 * ALL), products, UNIT)
    worse = of(0.012 * ALL, 0.021 * ALL)
    assert accuracy.faults(worse, products, UNIT) == [0, 1]


def test_of_errors_that_are_allowed_one_by_one_the_largest_is_at_fault() -> None:
    """A unit roundoff is allowed of each, and does not add up over all."""
    products, plan = of(0.0, 2 * UNIT), of(ALL * UNIT, ALL * 2 * UNIT)
    assert accuracy.faults(plan, products, UNIT) == [1]


def test_what_one_rounding_makes_is_no_fault() -> None:
    assert not accuracy.faults(of(UNIT), of(0.0), UNIT)


def test_noise_is_not_judged() -> None:
    products = of(0.01, NOISE * 1.01)
    assert not accuracy.faults(of(0.01, 1e6), products, UNIT)


def test_noise_does_not_hide_what_is_at_fault() -> None:
    products = of(0.01, 0.01, NOISE * 1.01)
    assert accuracy.faults(of(0.03, 0.03, 0.1), products, UNIT) == [0, 1]


def test_a_plan_loses_what_it_makes_noise_of_and_another_tells() -> None:
    other = of(0.02, NOISE / 2, NOISE * 1.01)
    assert not accuracy.loses(of(NOISE, NOISE * ONE / 2, 9.0), other, UNIT)
    assert accuracy.loses(of(NOISE * 1.01, 0.1, 0.1), other, UNIT)
    assert accuracy.loses(of(0.1, NOISE * ONE / 1.9, 0.1), other, UNIT)
    assert accuracy.loses(of(0.1, math.inf, 0.1), other, UNIT)
    assert not accuracy.loses(of(0.1, math.inf, 0.1), of(0.1, math.inf, 0.1), UNIT)


def test_what_may_be_rounding_in_float32_is_not_lost() -> None:
    """As the gradient of a bias before a batch normalization."""
    for part, lost in ((UNIT / 2, False), (UNIT * 2, True)):
        sizes = (1.0, part**2)
        plan, other = of(0.01, 2.0, sizes=sizes), of(0.01, 0.0, sizes=sizes)
        assert accuracy.loses(plan, other, UNIT) == lost


def test_a_gradient_that_a_scale_changes_by_more_than_products_do_is_bent() -> None:
    products = of(0.01, 0.2, 0.0, NOISE * 1.01)
    assert accuracy.bent(of(0.01, 0.2, UNIT, 1.0), products, UNIT) == []
    assert accuracy.bent(of(0.011, 0.21, 1.1 * UNIT, 1.0), products, UNIT) == [0, 1, 2]
    assert accuracy.bent(of(math.inf, 1.0, 1.0, 1.0), products, UNIT) == []


def test_gradients_are_apart_if_either_is_0_and_not_too_small_for_float32() -> None:
    one = [np.array([3.0, 4.0]), np.zeros(1), np.array([2.0]), np.array([2.0**-101])]
    other = [np.array([3.0, 4.5]), np.array([2.0]), np.zeros(1), np.zeros(1)]
    found = accuracy.apart(one, other).each
    assert found == pytest.approx((0.1, 1.0, 1.0, 0.0))
    assert accuracy.errors(one, other).each[2] == 0.0


def test_a_plan_that_is_not_finite_is_at_fault() -> None:
    assert accuracy.faults(of(0.01, math.inf), of(0.01, 0.7), UNIT) == [1]


@given(st.integers(1, 40), st.frozensets(st.integers(0, 39), max_size=5))
def test_the_search_finds_just_the_nodes_at_fault(
    count: int, bad: frozenset[int]
) -> None:
    """Where each fault shows by itself, whatever the other nodes do."""
    bad = frozenset(i for i in bad if i < count)
    hypothesis.assume(bad)  # the search is made only where there is a fault
    found = accuracy.search(
        Suspects(range(count)), lambda kept: bad <= kept, lambda: False
    )
    assert found == bad


@given(
    st.integers(1, 40),
    st.frozensets(
        st.frozensets(st.integers(0, 39), min_size=1), min_size=1, max_size=4
    ),
    st.integers(0, 30),
)
def test_what_is_found_is_fine_however_soon_the_time_is_spent(
    count: int, groups: frozenset[frozenset[int]], most: int
) -> None:
    """Faults of several nodes together: a group harms unless one of it is kept."""
    groups = frozenset(group & frozenset(range(count)) for group in groups) - {
        frozenset()
    }
    hypothesis.assume(groups)
    tried = [0]

    def is_fine(kept: frozenset[int]) -> bool:
        tried[0] += 1
        return all(group & kept for group in groups)

    found = accuracy.search(Suspects(range(count)), is_fine, lambda: tried[0] >= most)
    assert all(group & found for group in groups)


def test_the_search_takes_a_logarithm_of_the_nodes_for_each_fault() -> None:
    tried = []

    def is_fine(kept: frozenset[int]) -> bool:
        tried.append(kept)
        return kept >= {100, 900}

    assert accuracy.search(Suspects(range(1024)), is_fine, lambda: False) == {100, 900}
    assert len(tried) <= 2 * (10 + 1)


@pytest.mark.parametrize(
    ("nearest", "found"),
    [({3, 4, 5}, {3, 4, 5}), ({3, 5}, {4}), (set(range(FEW + 1)), {4})],
)
def test_a_few_nodes_that_only_the_faults_need_are_kept_at_once(
    nearest: set[int], found: set[int]
) -> None:
    suspects = Suspects(range(16), frozenset(nearest))
    assert accuracy.search(suspects, lambda kept: 4 in kept, lambda: False) == found
