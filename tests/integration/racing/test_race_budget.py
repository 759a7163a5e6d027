"""`race_budget`: what a race may cost; that it keeps to it is in `test_race_rules`."""

from __future__ import annotations

import dataclasses

import pytest
from race_machine import Machine, winner

from amp.graph_rewrite.assign.nominee import EVERYTHING, REWRITTEN
from amp.integration.racing import race_budget
from amp.integration.racing.race_log import FLOAT32, Log, Setup


@pytest.mark.parametrize("compiled", [False, True])
def test_what_has_no_clusters_to_compile_is_not_charged_for_any(compiled: bool) -> None:
    """Of a budget of 20 s the favourite's first call took 15."""
    log = Log({}, Setup(making=1.0, compiled=compiled, stepped=True))
    log.first |= {"cut": 15.0, FLOAT32: 1.0}
    log.add("cut", 0, 0.5)
    assert not race_budget.affordable(log, EVERYTHING.name)
    assert race_budget.affordable(log, REWRITTEN.name) is not compiled


def test_what_cannot_be_afforded_is_not_begun() -> None:
    """As under XLA: the second compilation would take all of the budget."""
    machine = Machine({"cut": 0.1, FLOAT32: 0.2}, noise=0.0, first=25.0)
    outcome = machine.race()
    assert winner(outcome) == "cut"
    assert machine.calls[FLOAT32] == 0
    assert "too long to be made ready" in outcome.text
    assert "float32 is tried when making it ready takes 2 %" in outcome.text


def test_float32_is_tried_when_compiling_it_is_two_percent_of_the_job() -> None:
    log = Log({"cut": 0.1, FLOAT32: 0.2}, Setup(compiled=True))
    log.first["cut"] = 25.1
    log.add("cut", 0, 0.1)
    assert not race_budget.affordable(log, FLOAT32)
    calls = race_budget.calls_until_affordable(log)
    assert 25.0 / (calls * 0.1) <= race_budget.SHARE < 25.0 / ((calls - 2) * 0.1)


def test_float32_is_always_tried_where_it_need_not_be_compiled() -> None:
    """However long the twin's first call was: XLA compiles its clusters."""
    log = Log({"cut": 1.0, FLOAT32: 1.5}, Setup(making=50.0))
    log.first["cut"] = 60.0
    log.add("cut", 0, 1.0)
    assert race_budget.affordable(log, FLOAT32)
    assert not race_budget.affordable(log, "all")
    assert not race_budget.affordable(log, REWRITTEN.name)
    own = REWRITTEN.name  # the user's own float32
    log.setup = dataclasses.replace(log.setup, plain=own)
    assert race_budget.affordable(log, own)


def test_the_loss_is_against_the_fastest_for_equal_work() -> None:
    """Not against who happened to have the shortest batches in five of nine rounds.

    The loss is a call of the fast one for each of the slow one. By the odd round the
    fit takes log(2) / 9 of their ratio for an effect of the work: that is 15 % of it.
    """
    log = Log({})
    for number in range(9):
        works = (100.0, 20.0) if number % 2 else (20.0, 100.0)
        log.add("slow", number, 0.02 * works[0], works[0])
        log.add("fast", number, 0.01 * works[1], works[1])
    log.first, log.calls = {"slow": 1.0, "fast": 1.0}, {"slow": 9, "fast": 9}
    assert (log.median("slow"), log.median("fast")) == (0.4, 1.0)
    assert 9 * 0.84 <= race_budget.lost(log) <= 9


def test_a_second_compilation_is_charged_to_the_budget() -> None:
    machine = Machine({"cut": 1.0, FLOAT32: 1.1}, noise=0.05, first=19.9)
    outcome = machine.race()
    assert outcome.text.startswith("ended: the budget is used up")
    assert machine.lost <= 20.0 + 3 * 0.1 + 0.05 * machine.calls.total()
