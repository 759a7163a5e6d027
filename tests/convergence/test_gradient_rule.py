"""Every variable is judged by two quantiles against what noise does to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convergence import gradient_rule, observing, probe
from convergence.settings import UNIT

U = UNIT["float16"]


def runs(*seen: tuple[float | None, float, float], kind: str = "gradient") -> Any:
    probes = [{kind: {"w": [*each, 0.5]}} for each in seen]
    return [{"probes": [*probes, {"overflow": True}]}]


def passes(*seen: tuple[float | None, float, float]) -> bool:
    return all(each.passes for each in gradient_rule.judged(runs(*seen), U))


def test_an_error_of_eight_times_the_noise_passes_and_more_does_not() -> None:
    assert passes(*[(0.079, 0.01, 0.5)] * 5)
    assert not passes(*[(0.081, 0.01, 0.5)] * 5)


def test_an_error_of_32_units_passes_without_any_noise() -> None:
    assert passes((32 * U, 0.0, 0.5))
    assert not passes((33 * U, 0.0, 0.5))


@pytest.mark.parametrize("error", [0.5001, 1.0, 1023.0, None])
def test_what_vanishes_stays_scaled_or_is_not_finite_fails(error: float | None) -> None:
    """Also where noise is so large that eight times it would let it pass."""
    assert not passes((error, 0.12, 0.5))
    (median, high) = gradient_rule.judged(runs((error, 0.12, 0.5)), U)
    assert median.determined
    assert median.excess > 1


def test_a_tenth_of_the_observations_may_be_off_and_no_more() -> None:
    good, bad = (0.001, 0.001, 0.5), (0.9, 0.001, 0.5)
    assert passes(*[good] * 18, *[bad] * 2)
    assert not passes(*[good] * 17, *[bad] * 3)


def test_noise_on_the_same_share_of_steps_excuses_errors() -> None:
    """Where a choice of regions flips, it flips in float32 too, at other steps."""
    calm, flips = (0.001, 0.001, 0.5), (0.3, 0.001, 0.5)
    noisy = (0.001, 0.1, 0.5)
    assert passes(*[calm] * 12, *[flips] * 4, *[noisy] * 4)


def test_a_gradient_that_is_rounding_alone_is_judged_by_its_size() -> None:
    """The bias of a key in attention: 0 but for rounding, so errors are thousands."""
    assert passes(*[(1e4, 1.4, 1e-9)] * 4)
    assert not passes(*[(1e4, 1.4, 1e-3)] * 4)
    assert not passes(*[(None, 1.4, 0.0)] * 4)  # and where there is no size to tell
    (first, _) = gradient_rule.judged(runs((1e4, 1.4, 1e-9)), U)
    assert not first.determined


@pytest.mark.parametrize(
    ("noise", "error", "sound"),
    [
        (1.4, 0.6, True),  # rounding alone: Adam takes a whole step of it
        (1.4, 2.0, True),
        (1.4, 2.1, False),  # larger than a step
        (0.01, 0.6, False),  # a gradient that weights in 16 bits determine
    ],
)
def test_an_update_of_what_is_rounding_alone_may_point_anywhere(
    noise: float, error: float, sound: bool
) -> None:
    probe = {
        "gradient": {"w": [0.01, noise, 1e-9, 0.1]},
        "update": {"w": [error, 0.0, 0.5, 0.1]},
    }
    found = gradient_rule.judged([{"probes": [probe] * 4}], U)
    assert all(each.passes for each in found) is sound


@pytest.mark.parametrize(
    ("noise", "size", "sound"),
    [
        (1.4, 0.019, True),  # as seen in BERT
        (1.4, 0.049, True),
        (1.4, 0.051, False),  # larger than a step of as many values
        (0.01, 0.019, False),  # a gradient that weights in 16 bits determine
    ],
)
def test_adam_takes_none_or_a_whole_step_of_rounding_near_its_epsilon(
    noise: float, size: float, sound: bool
) -> None:
    """The key's bias: float32's step next to none, ours as large as elsewhere."""
    share = 1e-5
    probe = {
        "gradient": {"w": [0.01, noise, 1e-9, 0.025]},
        "update": {"w": [size / share, 0.0, share, 0.025]},
    }
    found = gradient_rule.judged([{"probes": [probe] * 4}], U)
    assert all(each.passes for each in found) is sound


def test_each_variable_is_judged_alone_and_the_worst_comes_first() -> None:
    """One of sixty: a median over variables would not see it."""
    seen = {f"v{i}": [0.001, 0.001, 0.1, 0.1] for i in range(60)} | {
        "zeroed": [1, 0.001, 0.1, 0.1]
    }
    judged = gradient_rule.judged([{"probes": [{"gradient": seen}]}], U)
    failing = [each for each in judged if not each.passes]
    assert {each.variable for each in failing} == {"zeroed"}
    assert failing == judged[: len(failing)]
    assert "zeroed is off by 1 (median)" in str(judged[0])


def test_updates_are_judged_as_gradients_are() -> None:
    (found, _) = gradient_rule.judged(runs((1.0, 0.001, 0.5), kind="update"), U)
    assert (found.kind, found.passes) == ("update", False)


def test_observations_are_errors_relative_to_float32() -> None:
    exact = [np.array([3.0, 4.0], np.float32), np.zeros(2, np.float32)]
    ours = [np.array([3.0, 4.5], np.float32), np.full(2, 1e-9, np.float32)]
    noisy = [np.array([3.0, 4.25], np.float32), np.zeros(2, np.float32)]
    found = probe.compared(["a", "b"], ours, exact, [noisy])
    assert found == {"a": [0.1, 0.05, 1, 1]}  # b is 0 in float32, and near it in ours
    ours[1] = np.ones(2, np.float32)
    assert probe.compared(["a", "b"], ours, exact, [noisy])["b"] == [None, 0, 0, 0]
    ours[0][0] = np.inf
    assert probe.compared(["a", "b"], ours, exact, [noisy])["a"] == [None, 0.05, 1, 1]


def test_updates_are_compared_where_the_gradient_is_more_than_rounding() -> None:
    """Adam without momentum moves each value by one rate, whatever its gradient."""
    gradient = np.array([[1.0, -1.0], [1e-3, 0.5]], np.float32)
    masks = probe.above(["w"], [gradient], 32 * U)
    np.testing.assert_array_equal(masks["w"], [[True, True], [False, True]])
    exact, ours = np.sign(gradient), np.sign(np.where(gradient == 1e-3, 0, gradient))
    whole = probe.compared(["w"], [ours], [exact], [[exact]])
    assert whole["w"][0] == 0.5
    parts = [observing._part([masks["w"]], [values]) for values in (ours, exact)]
    assert probe.compared(["w"], *parts, [parts[1]])["w"][0] == 0.0
    other = observing._part([masks["w"][:1]], [ours])  # of rows that a batch names
    np.testing.assert_array_equal(other, [ours])
    assert probe.above(["w"], [0 * gradient], 32 * U)["w"].all()


def test_an_even_share_counts_the_values_that_float32_moves() -> None:
    """Rows of an embedding that no batch names move nothing."""
    exact = [np.array([1.0, 0.0, 0.0], np.float32), np.ones(3, np.float32)]
    found = probe.compared(["a", "b"], exact, exact, [exact])
    assert found == {"a": [0.0, 0.0, 0.5, 0.5], "b": [0.0, 0.0, 0.866, 0.866]}


def test_noise_is_the_largest_of_several_draws() -> None:
    ours, exact = [np.array([1.5], np.float32)], [np.ones(1, np.float32)]
    draws = [[np.array([x], np.float32)] for x in (1.0, 1.25, 1.0)]
    assert probe.compared(["a"], ours, exact, draws) == {"a": [0.5, 0.25, 1.0, 1.0]}


def test_what_float32_weights_cannot_hold_of_an_update_is_noise() -> None:
    """A batch norm's 127.5 moves by multiples of 2^-17, or not at all."""
    weights = np.array([127.5], np.float32)
    assert probe.spacing(weights) == 2.0**-17
    one, none = (np.array([x], np.float32) for x in (2.0**-17, 0.0))
    each = [none, one], [one, none], [[one, none]]
    found = probe.compared(["a", "b"], *each, [probe.spacing(weights)] * 2)
    assert found == {"a": [1.0, 1.0, 1.0, 1.0]}
    run = {"probes": [{"update": found}]}
    assert all(each.passes for each in gradient_rule.judged([run], U))
    fine = probe.compared(["a", "b"], *each, [probe.spacing(weights / 2**9)] * 2)
    run = {"probes": [{"update": fine}]}
    assert not any(each.passes for each in gradient_rule.judged([run], U))


def test_values_that_became_zeros_and_denormals_are_counted() -> None:
    exact = np.array([2.0**-30, 2.0**-20, 2.0**-10, 0.0], np.float32)
    ours = np.array([0.0, 2.0**-20, 2.0**-10, 0.0], np.float32)
    found = probe.lost(["w"], [ours], [exact], [2.0**-14])
    assert found["w"] == pytest.approx([1 / 3, 1 / 3], abs=1e-5)
    scaled = probe.lost(["w"], [exact], [exact], [2.0**-14 / 2**20])
    assert scaled["w"] == [0.0, 0.0]
    together = gradient_rule.loss_of_values(
        [{"probes": [{"lost": {"w": [0.2, 0.0]}}, {"lost": {"w": [0.4, 0.1]}}]}]
    )
    assert together["w"] == pytest.approx((0.3, 0.05))
