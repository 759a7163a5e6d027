"""`contest`: when a winner is checked, and what becomes of plans."""

from __future__ import annotations

import collections
import math
import types
from typing import Any

import pytest

from amp.graph_rewrite.outcomes import PlanSize, TrialOutcome
from amp.integration import tensor_pool
from amp.integration.contests.contest import Contest
from amp.integration.contests.plan_store import Record
from amp.integration.racing import race as race_lib
from amp.integration.racing import winner_checks
from amp.integration.racing.race_log import FLOAT32, Setup

pytestmark = pytest.mark.kernels


def known(**seconds: float) -> Contest:
    """A contest that an earlier run decided in favour of the plan "cut"."""
    plans: object = None  # asked for functions, and there are none here
    contest = Contest(plans, lambda *_: None)  # type: ignore[arg-type]
    contest.begin_known(Record("cut", seconds))
    return contest


def test_a_check_is_due_when_the_calls_before_it_have_passed() -> None:
    contest = known(cut=1.0, float32=1.01)
    assert contest.race() is None
    assert contest.calls_left == winner_checks.CHECKS[0]
    contest.passed(winner_checks.CHECKS[0] - 1)
    assert contest.race() is None
    contest.passed(1)
    race = contest.race()
    assert race is not None
    assert race is contest.race()  # the same until it has ended


def test_the_end_of_a_race_is_told_again_where_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of Ctrl-C in a notebook: what is known of the winner, and the loser, goes on."""
    now, told, released = [0.0], [], []
    monkeypatch.setattr(race_lib, "synchronised_clock", lambda: now[0])

    def run(plan: str) -> None:
        now[0] += {"cut": 1.0, FLOAT32: 2.0}[plan]

    def ended(contest: Contest, outcome: Any) -> None:
        told.append(outcome)
        if len(told) == 1:
            raise KeyboardInterrupt

    def release(plan: str) -> None:
        released.append(plan)
        if len(released) == 1:
            raise KeyboardInterrupt

    plans: Any = types.SimpleNamespace(settle=lambda: None, released=release)
    contest = Contest(plans, ended)
    contest.begin_known(Record("cut", {"cut": 1.0, FLOAT32: 2.0}))
    contest.passed(contest.calls_left or 0)
    race = contest.race()

    def to_the_end() -> None:
        while race is not None:
            race.call(run)

    with pytest.raises(KeyboardInterrupt):
        to_the_end()
    assert (len(told), released) == (1, [])
    with pytest.raises(KeyboardInterrupt):
        assert contest.race()
    assert contest.race() is None
    assert contest.race() is None
    assert told == [None, None]  # the same plan runs as before
    assert released == [FLOAT32, FLOAT32]


def test_a_winner_is_doubted_now_and_then_though_it_is_as_fast_as_when_it_won(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What its race told of float32 may have been wrong, or of another machine."""
    now = [0.0]
    monkeypatch.setattr(race_lib, "synchronised_clock", lambda: now[0])

    def run(plan: str) -> None:
        now[0] += {"cut": 1.0, FLOAT32: 0.9}[plan]

    plans: Any = types.SimpleNamespace(settle=lambda: None, released=lambda plan: None)
    contest = Contest(plans, lambda *_: None)
    contest.begin_known(Record("cut", {"cut": 1.0, FLOAT32: 2.0}, runs=4))
    assert contest.calls_left == winner_checks.DOUBTED
    contest.passed(winner_checks.DOUBTED)
    while (race := contest.race()) is not None:
        race.call(run)
    assert contest.winner == FLOAT32


def test_how_dear_a_check_is_was_found_out_by_the_earlier_run() -> None:
    calls = known(cut=1.0, float32=3.0).calls_left
    assert calls == winner_checks.calls_to_check(0, 3.0) > winner_checks.CHECKS[0]


def reporting(report: Any) -> Any:
    """Plans that all have one report, none of which is compiled."""
    return types.SimpleNamespace(
        setup=Setup(),
        report=lambda _: report,
        settle=lambda: None,
        released=lambda _: None,
    )


def test_how_wrong_predictions_were_is_known_after_the_race_too() -> None:
    now, seconds = [0.0], {"cut": 0.1, FLOAT32: 0.15}

    def run(plan: str) -> None:
        now[0] += seconds[plan]

    report = types.SimpleNamespace(
        seconds32=0.3, seconds16=0.1, size32=PlanSize(0, 0, 1), size=PlanSize(1, 1, 1)
    )
    plans = reporting(report)
    contest = Contest(plans, lambda *_: None, clock=lambda: now[0])
    assert contest.doubt == 1.0
    contest.begin("cut", ())
    while (race := contest.race()) is not None:
        race.call(run)
    assert contest.winner == "cut"
    assert contest.doubt == pytest.approx(2.0)


def test_all_races_of_a_function_share_one_budget() -> None:
    """A plan that is found later waits until 2 % of the job's steps pay for it too."""
    now, calls = [0.0], collections.Counter[str]()
    seconds = {"cut": 0.1, FLOAT32: 0.15, "later": 0.08}

    def run(plan: str) -> None:
        now[0] += seconds[plan] + (0.0 if calls[plan] else 12.0)  # of a budget of 20 s
        calls[plan] += 1

    report = types.SimpleNamespace(
        seconds32=0.15, seconds16=0.1, size32=PlanSize(0, 0, 1), size=PlanSize(1, 1, 1)
    )
    plans = reporting(report)
    contest = Contest(plans, lambda *_: None, clock=lambda: now[0])
    contest.begin("cut", ())
    while (race := contest.race()) is not None:
        race.call(run)
    lost = 12.0 + 7 * 0.05  # float32's first call, and what it took longer in the rest
    enough = math.ceil((lost + 12.0) / (0.02 * 0.1)) - calls.total()
    contest.passed(enough - 100)
    assert not contest.challenge("later", 0.08, 0.1)
    contest.passed(200)
    assert contest.challenge("later", 0.08, 0.1)
    while contest.under_way:
        race = contest.race()
        assert race is not None
        race.call(run)
    assert (contest.winner, calls["later"] > 0) == ("later", True)
    assert contest.outcome is not None
    predicted = {plan.name: plan.predicted for plan in contest.outcome.plans}
    assert predicted == {"cut": 0.1, FLOAT32: 0.15, "later": 0.08}  # in seconds


def test_float32_that_was_too_dear_to_compile_is_tried_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The report says so, and what came of it when it was tried."""
    now, calls = [0.0], collections.Counter[str]()
    monkeypatch.setattr(race_lib, "synchronised_clock", lambda: now[0])

    def run(plan: str) -> None:
        compiling = 0.0 if calls[plan] else 60.0  # of a budget of 20 s
        now[0] += compiling + {"cut": 0.1, FLOAT32: 0.2}[plan]
        calls[plan] += 1

    told: list[TrialOutcome | None] = []
    report = types.SimpleNamespace(
        seconds32=1.5,
        seconds16=1.0,
        size32=PlanSize(0, 0, 400),
        size=PlanSize(5, 2, 200),
    )
    plans: Any = types.SimpleNamespace(
        report=lambda plan: report,
        setup=Setup(compiled=True),
        settle=lambda: None,
        released=lambda plan: None,
    )
    contest = Contest(plans, lambda _, outcome: told.append(outcome))
    contest.begin("cut", [])
    while (race := contest.race()) is not None:
        race.call(run)
    assert calls == {"cut": 3}
    (outcome,) = told
    assert outcome is not None
    assert "float32 is tried when" in outcome.text
    sizes = {plan.name: (plan.low, plan.casts, plan.bytes) for plan in outcome.plans}
    assert sizes == {"cut": (5, 2, 200), FLOAT32: (0, 0, 400)}
    assert contest.calls_left == pytest.approx(60.0 / 0.02 / 0.1, abs=1)
    contest.passed(contest.calls_left)
    while len(told) == 1:
        race = contest.race()
        assert race is not None
        race.call(run)
    assert told[1] is not None
    assert (contest.winner, told[1].seconds32) == ("cut", pytest.approx(0.2))


@pytest.mark.parametrize("compiling", [1.0, 60.0])  # of a budget of 20 s
def test_a_check_in_a_later_run_compiles_float32_within_the_budget(
    compiling: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under XLA it has not run here, and an earlier run knows how long it took.

    The winner's time has changed, so the check asks for it.
    """
    now, calls = [0.0], collections.Counter[str]()
    monkeypatch.setattr(race_lib, "synchronised_clock", lambda: now[0])

    def run(plan: str) -> None:
        now[0] += 0.0 if calls[plan] or plan == "cut" else compiling
        now[0] += {"cut": 0.15, FLOAT32: 0.2}[plan]
        calls[plan] += 1

    plans: Any = types.SimpleNamespace(
        setup=Setup(compiled=True), settle=lambda: None, released=lambda plan: None
    )
    contest = Contest(plans, lambda *_: None)
    seconds, ready = {"cut": 0.1, FLOAT32: 0.2}, {"cut": 5.0, FLOAT32: compiling}
    contest.begin_known(Record("cut", seconds, ready=ready))
    assert contest.calls_left is not None
    contest.passed(contest.calls_left)
    race = contest.race()
    while contest.under_way:
        assert race is not None
        race.call(run)
    assert contest.winner == "cut"
    assert (calls[FLOAT32] > 0) == (compiling < 20.0)
    if compiling > 20.0:  # it is tried when that is 2 % of the job
        longer = compiling - 0.15  # than another call
        assert contest.calls_left == pytest.approx(longer / 0.02 / 0.15, abs=1)


def test_there_is_no_check_where_float32_cannot_run() -> None:
    contest = known(cut=1.0, float32=1.01)
    contest.drop(FLOAT32, "ran out of memory", failed=True)
    assert contest.calls_left is None
    assert contest.winner == "cut"


@pytest.mark.parametrize(("slower", "called"), [(1.0, 0), (1.1, 0), (1.5, 1)])
def test_a_winner_that_made_the_first_step_meets_float32_if_it_has_become_slower(
    monkeypatch: pytest.MonkeyPatch, slower: float, called: int
) -> None:
    """Float32 has not run in this process, and takes its memory until it has."""
    now, calls = [0.0], collections.Counter[str]()
    trimmed: list[str] = []
    monkeypatch.setattr(tensor_pool, "trim", lambda: trimmed.append("memory"))
    monkeypatch.setattr(race_lib, "synchronised_clock", lambda: now[0])

    def run(plan: str) -> None:
        now[0] += {"cut": slower, FLOAT32: 1.44}[plan]
        calls[plan] += 1

    told: list[TrialOutcome | None] = []
    plans: Any = types.SimpleNamespace(settle=lambda: None, released=lambda plan: None)
    contest = Contest(plans, lambda _, outcome: told.append(outcome))
    known = {"cut": 1.0, FLOAT32: 1.44}
    contest.begin_known(Record("cut", known))
    contest.passed(contest.calls_left or 0)
    while (race := contest.race()) is not None:
        race.call(run)
    assert min(calls[FLOAT32], 1) == called
    assert calls["cut"] >= winner_checks.ALONE
    assert contest.winner == (FLOAT32 if called else "cut")
    assert trimmed == ["memory"] * called
    assert [outcome is not None for outcome in told] == [bool(called)]
    # The next check is due as ever, and float32 was not found to be too dear.
    if not called:
        assert contest.calls_left == winner_checks.calls_to_check(1, 1.44)
