"""`RaceCosts`: races pay for one more plan, and checks pay for themselves."""

from __future__ import annotations

from amp.integration.contests.race_costs import RaceCosts
from amp.integration.racing.race_log import FLOAT32, Log, Setup


def raced(costs: RaceCosts | None = None) -> Log:
    """A race in which float32's timed call takes a second longer than the other's."""
    log = Log({}, Setup() if costs is None else costs.setup(Setup(), "cut"))
    for name, seconds in (("cut", 1.0), (FLOAT32, 2.0)):
        log.first[name] = seconds
        log.calls[name] = 2
        log.add(name, 0, seconds)
    return log


def test_a_race_is_charged_and_a_check_is_not() -> None:
    costs = RaceCosts()
    log = raced()
    costs.add(log, "", charged=True)
    assert costs.spent == 2.0  # a first call takes a second longer, and so does a call
    before = costs.spent
    costs.add(raced(), "cut", charged=False)
    assert (costs.spent, costs.steps) == (before, 8)
    again = raced(costs)
    costs.add(again, "cut", charged=True)
    assert costs.spent == 2 * before


def test_the_call_of_who_ran_before_is_no_first_one() -> None:
    costs = RaceCosts(ready={"all": 0.5})
    costs.add(raced(), "cut", charged=False)
    assert costs.first == {FLOAT32: 2.0}
    assert costs.longest == 2.0


def test_of_two_first_calls_of_a_plan_the_earlier_counts() -> None:
    costs = RaceCosts(first={FLOAT32: 7.0})
    costs.add(raced(), "", charged=True)
    assert costs.first == {FLOAT32: 7.0, "cut": 1.0}


def test_one_more_plan_is_afforded_while_the_budget_of_all_races_lasts() -> None:
    costs = RaceCosts(ready={"cut": 10.0}, spent=5.0)
    assert costs.afford(0.1, making=5.0)
    assert not costs.afford(0.1, making=5.1)  # of 20 s
    costs.steps = 100_000
    assert costs.afford(0.1, making=180.0)  # 2 % of them
