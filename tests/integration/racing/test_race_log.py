"""`Log`: times are compared within rounds, for equal work, and across runs of a job."""

from __future__ import annotations

import json
import math
import random

import pytest

from amp.integration.racing.race_log import FLOAT32, Log


def test_ratios_are_of_common_rounds_only() -> None:
    log = Log({})
    log.add("cut", 0, 1.0)
    log.add("cut", 1, 1.0)
    log.add(FLOAT32, 1, 2.0)
    log.add(FLOAT32, 2, 9.0)
    assert log.ratios("cut", FLOAT32) == [pytest.approx(-math.log(2))]
    assert log.rounds(["cut", FLOAT32]) == 1
    assert log.median(FLOAT32) == 5.5
    assert not log.uneven


Call = tuple[int, float, float]  # its round, work and seconds


def uneven(seed: int, noise: float = 0.0) -> list[Call]:
    """Two calls a round, of different work."""
    draw, calls = random.Random(seed), []
    for number in range(20):
        for _ in range(2):
            work = float(draw.randint(20, 100))
            calls.append((number, work, work**1.4 * math.exp(draw.gauss(0.0, noise))))
    return calls


def filled(calls: list[Call], names: tuple[str, str], ratio: float = 1.0) -> Log:
    """A log of these calls by turns; the first of the two takes `ratio` as long."""
    log = Log({})
    for index, (number, work, seconds) in enumerate(calls):
        own = seconds * (ratio if index % 2 == 0 else 1.0)
        log.add(names[index % 2], number, own, work)
    return log


def test_work_that_is_known_is_taken_out_of_ratios() -> None:
    log = filled(uneven(0), ("cut", FLOAT32))
    assert log.uneven
    assert log.ratios("cut", FLOAT32) == pytest.approx([0.0] * 20, abs=1e-9)


def test_who_of_two_had_which_work_does_not_matter() -> None:
    """The law behind the rank test: names that change places change signs alone."""
    calls = uneven(1, noise=0.1)
    one = filled(calls, ("cut", "all")).ratios("cut", "all")
    other = filled(calls, ("all", "cut")).ratios("cut", "all")
    assert one == pytest.approx([-ratio for ratio in other])


def test_a_later_run_goes_on_with_the_rounds_of_an_earlier_one() -> None:
    earlier = filled(uneven(2, 0.1), ("cut", FLOAT32), 1.3)
    log = Log({})
    log.go_on_from(json.loads(json.dumps(earlier.kept())))
    assert log.uneven
    assert log.timed == []  # no time of this run yet
    assert log.ratios("cut", FLOAT32) == pytest.approx(earlier.ratios("cut", FLOAT32))
    for name in ("cut", FLOAT32):
        log.add(name, 0, 1.0, 50.0)
    assert log.rounds(["cut", FLOAT32]) == 21
    third = Log({})
    third.go_on_from(log.kept())
    third.add("cut", 0, 1.0)
    assert third.rounds(["cut", FLOAT32]) == 21
    assert third.rounds(["cut"]) == 22
