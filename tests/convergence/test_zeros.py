"""A gradient that is 0 at every probed step is found, however large its noise is."""

from __future__ import annotations

from typing import Any

import pytest

from convergence import zeros


def runs(*observed: tuple[float | None, float | None]) -> list[dict[str, Any]]:
    """A run whose probes hold these errors and noises of one variable."""
    probes = [
        {"step": i, "gradient": {"w": [*each, 0.3, 0.1], "v": [0.01, 0.01, 0.9, 0.1]}}
        for i, each in enumerate(observed)
    ]
    return [{"probes": [{"step": 9, "overflow": True}, *probes]}]


@pytest.mark.parametrize("noise", [0.001, 0.13, 0.9])
def test_a_gradient_that_is_0_at_every_step_is_found(noise: float) -> None:
    found = zeros.finding(runs((1.0, noise), (1.0, noise)))
    assert (found.clause, found.outcome) == ("zeros", "different")
    assert found.text == "the gradient of w is 0 or nearly so at every probed step"


def test_a_gradient_that_is_0_at_one_step_of_every_run_is_found() -> None:
    some = runs((0.2, 0.3), (1.0, 0.3))
    assert zeros.finding(some).outcome == "equal"
    found = zeros.finding(some + runs((0.3, 0.2), (1.0, 0.2)))
    assert (found.clause, found.outcome) == ("zeros", "different")
    assert found.text == "the gradient of w is 0 or nearly so at step 1 of every run"
    for other in (runs((1.0, 0.3), (0.2, 0.3)), runs((1.0, 0.3), (0.98, 0.3))):
        assert zeros.finding(some + other).outcome == "equal"


@pytest.mark.parametrize(
    "observed",
    [
        [(1.0, 0.3), (0.98, 0.3)],  # once
        [(1.0, 0.3)],  # an error of about 1 may be 1.00
        [(1.0, 1.4), (1.0, 1.2)],  # of rounding alone
        [(None, 0.3), (None, 0.3)],  # not finite, which the rule refuses
        [],
    ],
)
def test_others_are_not(observed: list[tuple[float | None, float | None]]) -> None:
    assert zeros.finding(runs(*observed)).outcome == "equal"
