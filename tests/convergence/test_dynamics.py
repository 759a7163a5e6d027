"""A loss scale is replayed from its rule; each way to leave it is seen."""

from __future__ import annotations

from typing import Any

import pytest

from convergence import dynamics
from convergence.dynamics import Rule, Track

RULE = Rule(first=15, interval=4)


def run(path: list[list[float]], held: list[int], count: int = 12) -> dict[str, Any]:
    track = {"begin": 0, "count": count, "path": path, "held": held}
    return {"scalers": [track]}


def sound(held: tuple[int, ...], count: int = 12, rule: Rule = RULE) -> dict[str, Any]:
    due = dynamics.replayed(rule, Track(0, count, (), held))
    return run([list(step) for step in due], list(held), count)


def test_a_scale_grows_after_an_interval_and_halves_after_an_overflow() -> None:
    path = dynamics.replayed(RULE, Track(0, 12, (), (0, 6)))
    # Halved by step 0; steps 1 to 4 are good; step 6 halves; 7 to 10 are good.
    expected = [(0, 15), (1, 14), (5, 15), (7, 14), (11, 15)]
    assert path == [(step, 2.0**exponent) for step, exponent in expected]


def test_a_scale_stays_between_its_bounds() -> None:
    low = dynamics.replayed(RULE, Track(0, 99, (), tuple(range(99))))
    assert low[-1][1] == 2.0**-14
    high = dynamics.replayed(RULE, Track(0, 99, (), ()))
    assert high[-1][1] == 2.0**24


def test_a_replay_is_what_the_packages_own_rule_does() -> None:
    from amp.loss_scaling import DynamicLossScale
    from amp.loss_scaling.scale import ScaleState

    rule = DynamicLossScale(growth_interval=4)
    held = (0, 1, 2, 9, 17, 18, 40)
    state, path = ScaleState(rule.initial, 0, 0), []
    for step in range(80):
        if not path or path[-1][1] != state.scale:
            path.append((step, state.scale))
        state = rule.step(state, step not in held, lambda c, yes, no: yes if c else no)
    assert dynamics.replayed(RULE, Track(0, 80, (), held)) == path


def test_a_sound_scale_has_no_fault() -> None:
    for held in ((), (0,), (0, 1, 7)):
        assert dynamics.faults(RULE, sound(held), 1) == []
    constant = Rule(10, 0)
    assert dynamics.faults(constant, run([[0, 1024.0]], [], 200), 1) == []
    assert dynamics.faults(None, {"scalers": []}, 1) == []


@pytest.mark.parametrize(
    ("path", "held", "says"),
    [
        ([[0, 2.0**15]], [], "2^15 before step 4, where 2^16 was due"),  # never grows
        ([[0, 2.0**15], [5, 2.0**16]], [1], "where 2^14 was due"),  # never backs off
        # The scale halves after step 1, and its update was made all the same.
        ([[0, 2.0**15], [2, 2.0**14]], [], "(step 1 was taken)"),
        ([[0, 1.0]], [], "the scale is 2^0 before step 0"),
    ],
)
def test_a_path_that_is_not_the_rules_is_a_fault(
    path: list[list[float]], held: list[int], says: str
) -> None:
    (fault,) = dynamics.faults(RULE, run(path, held), 1)
    assert says in fault


def test_skips_are_bounded() -> None:
    rule, many = Rule(15, 50), tuple(range(0, 200, 2))
    (fault,) = dynamics.faults(rule, sound(many, 200, rule), 1)
    assert fault == "100 of 200 steps skipped, 26 allowed"
    assert not dynamics.faults(rule, sound(many[:26], 200, rule), 1)
    constant = Rule(10, 0)
    assert dynamics.most_skips(constant, 400) == 4
    (fault,) = dynamics.faults(constant, run([[0, 1024.0]], [1, 2, 3], 200), 1)
    assert fault == "3 of 200 steps skipped, 2 allowed"


def test_a_scale_where_none_is_due_and_none_where_one_is() -> None:
    assert dynamics.faults(None, sound(()), 1) == [
        "there is a loss scale where none is due"
    ]
    assert dynamics.faults(RULE, {"scalers": []}, 2) == [
        "0 loss scales, where 2 were due"
    ]


def test_moves_are_counted() -> None:
    assert dynamics.moves(sound((0, 6))) == (2, 2)
