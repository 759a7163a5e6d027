"""`Race`: fair turns and honest times; who wins is tested in `test_race_rules`."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence

import pytest
import tensorflow as tf

from amp.graph_rewrite.outcomes import RacedPlan, TrialOutcome
from amp.integration.racing import race as race_lib
from amp.integration.racing import race_rules, winner_checks
from amp.integration.racing.race import Listener, Race
from amp.integration.racing.race_log import FLOAT32, Log, Setup
from amp.integration.racing.race_rules import Rules

pytestmark = pytest.mark.kernels

FIRST_ROUND = 4  # calls: of each of two, one that is not timed and one that is
LEAST = race_rules.looks(2)[0]


class Machine:
    """Runs entrants that take the time they are told to, on a clock of its own."""

    def __init__(
        self,
        seconds: Callable[[str, int], float],
        names: Sequence[str] = ("cut", FLOAT32),
        setup: Setup | None = None,
    ) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.outcomes: list[TrialOutcome] = []
        self.released: list[str] = []
        self.seconds = seconds
        self.log = Log({name: 1.0 + i for i, name in enumerate(names)}, setup)
        listener = Listener(
            ended=lambda _, outcome: self.outcomes.append(outcome),
            released=lambda _, name: self.released.append(name),
        )
        clock = lambda: self.now  # noqa: E731
        rules = Rules(race_rules.judged, race_rules.cut_short)
        self.race = Race(names, rules, self.log, listener, clock)

    def run(self, name: str) -> str:
        self.now += self.seconds(name, len(self.calls))
        self.calls.append(name)
        return f"result of {name}"

    def calls_to_end(self) -> int:
        while not self.outcomes:
            assert self.race.call(self.run).startswith("result of ")
            assert len(self.calls) <= 5 * 200, "the race does not end"
        return len(self.calls)


def test_the_gain_is_over_the_users_own_float32() -> None:
    """The original has a loss scale that this package added: 1.5 is what that costs."""
    plain = "float32, rewritten"
    seconds = {"cut": 1.0, FLOAT32: 1.5, plain: 1.2}
    names, setup = ("cut", FLOAT32, plain), Setup(plain=plain)
    machine = Machine(lambda name, _: seconds[name], names, setup)
    machine.calls_to_end()
    (outcome,) = machine.outcomes
    assert (outcome.seconds32, outcome.seconds16) == pytest.approx((1.2, 1.0))


def constant(**seconds: float) -> Callable[[str, int], float]:
    return lambda name, _: seconds[name]


def test_a_clear_difference_is_known_after_six_rounds() -> None:
    machine = Machine(constant(cut=1.0, float32=1.5))
    assert machine.calls_to_end() == 2 + 2 * LEAST == 14
    plans = (
        RacedPlan("cut", 1.0, 1.0, LEAST, "won"),
        RacedPlan(FLOAT32, 2.0, 1.5, LEAST, "slower"),
    )
    text = "ended: 16 bits are faster"
    assert machine.outcomes == [TrialOutcome(True, 1.5, 1.0, 2 * LEAST, text, plans)]
    assert machine.released == [FLOAT32]


def test_calls_go_on_where_their_listener_fails() -> None:
    machine = Machine(constant(cut=1.0, float32=1.5))

    class Told(list[TrialOutcome]):
        def append(self, outcome: TrialOutcome) -> None:
            super().append(outcome)
            raise ZeroDivisionError("planted")

    machine.outcomes = Told()
    with pytest.warns(RuntimeWarning, match=r"race.* is not told: .*planted"):
        machine.calls_to_end()
    assert len(machine.outcomes) == 1
    assert machine.released == [FLOAT32]
    assert machine.race.call(machine.run) == "result of cut"


def test_a_turn_in_which_another_function_ran_comes_again() -> None:
    machine = Machine(constant(cut=1.0, float32=1.5))

    def run(name: str) -> str:
        if not machine.calls:
            machine.race.postpone()
        return machine.run(name)

    machine.race.call(run)
    assert not machine.log.first
    assert not machine.log.timed
    assert machine.calls_to_end() == 1 + 2 + 2 * LEAST
    assert machine.calls[:5] == ["cut", "cut", "cut", FLOAT32, FLOAT32]


def test_of_two_turns_at_a_time_the_one_that_was_put_off_does_not_count() -> None:
    """It ends last, and the time of the other's call is the entrant's own."""
    machine = Machine(constant(cut=1.0, float32=1.5))
    begun, over = threading.Event(), threading.Event()

    def put_off(name: str) -> None:
        machine.race.postpone()
        begun.set()
        over.wait()
        machine.now += 100.0  # what ran in its place

    thread = threading.Thread(target=machine.race.call, args=(put_off,))
    thread.start()
    begun.wait()
    machine.race.call(machine.run)
    over.set()
    thread.join()
    assert machine.log.first == {"cut": 1.0}
    assert machine.log.calls == {"cut": 1}


def test_once_ended_the_winner_runs_and_nobody_is_told_again() -> None:
    machine = Machine(constant(cut=1.5, float32=1.0))
    machine.calls_to_end()
    assert (machine.outcomes[0].twin, machine.outcomes[0].seconds16) == (False, 1.5)
    machine.calls.clear()
    for _ in range(5):
        machine.race.call(machine.run)
    assert machine.calls == [FLOAT32] * 5
    assert len(machine.outcomes) == 1
    assert machine.released == ["cut"]


def test_a_fault_in_the_rules_ends_the_race_and_no_call() -> None:
    machine = Machine(constant(cut=0.5, float32=1.0))

    def broken(*_: object) -> race_rules.Ruling:
        raise ZeroDivisionError("planted")

    machine.race._rules = Rules(broken, broken)
    with pytest.warns(RuntimeWarning, match="was broken off: ZeroDivisionError"):
        machine.calls_to_end()
    (outcome,) = machine.outcomes
    assert (outcome.twin, outcome.text) == (False, "ended: its rules have failed")
    machine.calls.clear()
    assert machine.race.call(machine.run) == f"result of {FLOAT32}"


def test_first_calls_come_in_order_and_are_not_timed() -> None:
    def seconds(name: str, number: int) -> float:
        return 5.0 if number in (0, 2) else 1.0

    machine = Machine(seconds)
    for _ in range(4):
        machine.race.call(machine.run)
    assert machine.calls == ["cut", "cut", FLOAT32, FLOAT32]
    assert [machine.log.times(name) for name in ("cut", FLOAT32)] == [[1.0]] * 2
    assert list(machine.log.first.values()) == [5.0] * 2


def test_each_further_round_has_one_call_of_each_in_random_order() -> None:
    machine = Machine(constant(cut=1.0, float32=1.0))
    machine.calls_to_end()
    calls = machine.calls[4:]
    rounds = list(zip(calls[::2], calls[1::2], strict=True))
    assert {frozenset(turn) for turn in rounds} == {frozenset(("cut", FLOAT32))}
    assert len(set(rounds)) == 2


def test_who_is_left_meets_the_next_and_the_loser_has_gone_before() -> None:
    """So no more than two forms of a function need memory at a time."""
    names = ("cut", FLOAT32, "all", "products")
    seconds = constant(cut=1.0, float32=1.5, all=0.8, products=1.2)
    machine = Machine(seconds, names)
    gone: dict[str, list[str]] = {}

    def run(name: str) -> str:
        gone.setdefault(name, list(machine.released))
        return machine.run(name)

    while not machine.outcomes:
        machine.race.call(run)
    assert gone == {
        "cut": [],
        FLOAT32: [],
        "all": [FLOAT32],
        "products": [FLOAT32, "cut"],
    }
    meeting = 2 + 2 * race_rules.looks(len(names))[0]
    assert machine.calls[meeting : meeting + 3] == ["all", "all", "cut"]
    plans = {plan.name: plan.fate for plan in machine.outcomes[0].plans}
    assert plans == {
        "cut": "slower",
        FLOAT32: "slower",
        "all": "won",
        "products": "slower",
    }


def test_what_the_plans_take_is_told_for_one_machine_though_they_met_two() -> None:
    """Float32 is out before the machine becomes half as fast."""
    names = ("cut", FLOAT32, "all")
    usual = constant(cut=1.0, float32=1.5, all=0.8)
    slow = 2 + 2 * race_rules.looks(len(names))[0]

    def seconds(name: str, number: int) -> float:
        return usual(name, number) * (2.0 if number >= slow else 1.0)

    machine = Machine(seconds, names)
    machine.calls_to_end()
    (outcome,) = machine.outcomes
    assert outcome.seconds16 == pytest.approx(2 * 0.8)
    assert outcome.seconds32 == pytest.approx(2 * 1.5)
    told = {plan.name: plan.seconds for plan in outcome.plans}
    assert told["cut"] == pytest.approx(2 * 1.0)


def test_what_is_not_tried_as_the_budget_is_used_up_is_told() -> None:
    names = ("cut", FLOAT32, "all")

    def seconds(name: str, number: int) -> float:
        return 25.0 if (name, number) == (FLOAT32, 2) else 1.0  # of a budget of 20 s

    machine = Machine(seconds, names)
    machine.calls_to_end()
    assert "all" not in machine.calls
    fates = {plan.name: plan.fate for plan in machine.outcomes[0].plans}
    assert fates["all"] == race_lib.NOT_TRIED
    assert machine.outcomes[0].text == race_rules.USED_UP


@pytest.mark.parametrize("period", [2, 3, 4])
@pytest.mark.parametrize("phase", [0, 1])
def test_a_step_that_is_long_every_so_often_condemns_no_plan(
    period: int, phase: int
) -> None:
    def seconds(name: str, number: int) -> float:
        return 1.8 if number % period == phase else 1.0

    machine = Machine(seconds)
    machine.calls_to_end()
    fates = {plan.fate for plan in machine.outcomes[0].plans}
    assert fates == {"won", "not chosen"}


def test_drift_falls_on_all() -> None:
    def seconds(name: str, number: int) -> float:
        return constant(cut=1.2, float32=1.0)(name, number) * 0.995**number

    machine = Machine(seconds)
    machine.calls_to_end()
    assert not machine.outcomes[0].twin


def test_calls_in_two_threads_run_at_once_and_are_not_timed() -> None:
    machine = Machine(constant())
    both = threading.Barrier(2, timeout=30)

    def work() -> None:
        for _ in range(2 + race_rules.looks(2)[-1]):
            machine.race.call(lambda name: both.wait())  # only if both are inside

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken
    (outcome,) = machine.outcomes
    assert (outcome.timed, outcome.seconds32, outcome.seconds16) == (0, None, None)
    assert outcome.twin
    assert outcome.text == "ended: calls overlapped, and the fastest run"


def test_a_loser_is_released_when_its_last_call_has_ended() -> None:
    machine = Machine(constant(cut=1.5, float32=1.0))
    inside, go_on = threading.Event(), threading.Event()

    def waits(name: str) -> str:
        if name == "cut":
            inside.set()
            assert go_on.wait(30)
        return name

    thread = threading.Thread(target=lambda: machine.race.call(waits))
    thread.start()
    assert inside.wait(30)
    machine.race.drop("cut", "a reason")
    assert machine.outcomes
    assert machine.released == []
    go_on.set()
    thread.join()
    assert machine.released == ["cut"]


def test_a_call_inside_a_call_is_not_timed_and_times_neither() -> None:
    machine = Machine(constant(cut=1.0, float32=1.5))
    for _ in range(FIRST_ROUND):
        machine.race.call(machine.run)
    machine.race.call(lambda name: machine.race.call(machine.run))
    assert [len(machine.log.times(name)) for name in ("cut", FLOAT32)] == [1, 1]
    machine.calls_to_end()
    assert machine.outcomes[0].seconds32 == 1.5


def test_a_call_that_raises_is_passed_on_and_not_counted() -> None:
    machine = Machine(constant(cut=1.0, float32=1.5))

    def broken(name: str) -> None:
        machine.now += 100.0
        raise ValueError("the user's own")

    for _ in range(5):
        with pytest.raises(ValueError, match="the user's own"):
            machine.race.call(broken)
    machine.calls_to_end()
    (outcome,) = machine.outcomes
    assert (outcome.seconds32, outcome.seconds16) == (1.5, 1.0)


def test_who_cannot_run_is_out_and_the_others_race_on() -> None:
    names = ("cut", FLOAT32, "all")
    machine = Machine(constant(cut=1.0, float32=1.5, all=1.2), names)
    machine.race.call(machine.run)
    machine.race.drop("cut", "refused", "ended: refused")
    assert not machine.outcomes
    assert machine.race.front == FLOAT32  # none was timed: as predicted
    machine.calls_to_end()
    plans = {plan.name: plan.fate for plan in machine.outcomes[0].plans}
    assert plans == {"cut": "refused", FLOAT32: "slower", "all": "won"}


def test_if_only_one_can_run_the_race_says_why() -> None:
    machine = Machine(constant(cut=1.0, float32=1.5))
    machine.race.call(machine.run)
    machine.race.drop("cut", "refused", "ended: refused")
    assert machine.outcomes[0].text == "ended: refused"
    assert not machine.outcomes[0].twin


def test_the_time_to_make_a_plan_counts_before_it_is_made() -> None:
    names = ("cut", FLOAT32, "all")
    seconds = constant(cut=1.0, float32=1.5, all=1.2)
    machine = Machine(seconds, names, Setup(making=30.0))  # of a budget of 20 s
    machine.calls_to_end()
    assert "all" not in machine.calls
    fates = {plan.name: plan.fate for plan in machine.outcomes[0].plans}
    assert fates["all"] == "would take too long to be made ready"


def test_who_won_by_an_earlier_run_is_called_before_it_wins() -> None:
    """In an earlier run it may have been made; in this one, that may fail."""
    names = ("cut", FLOAT32, "all")
    earlier = Log({})
    for number in range(20):
        for seconds, name in enumerate(names[::-1], start=1):
            earlier.add(name, number, float(seconds))
    machine = Machine(constant(cut=1.9, float32=1.5, all=1.0), names)
    machine.log.go_on_from(earlier.kept())
    assert machine.calls_to_end() == 6  # each twice: as the second call is timed
    assert [plan.name for plan in machine.outcomes[0].plans if plan.fate == "won"] == [
        "all"
    ]


def test_what_is_known_is_told_after_1_2_4_8_rounds() -> None:
    machine = Machine(constant(cut=1.0, float32=1.0))
    rounds: list[int] = []
    names = ("cut", FLOAT32)
    race = Race(
        names,
        Rules(lambda *_: race_rules.Ruling(), race_rules.cut_short),
        machine.log,
        Listener(
            ended=lambda *_: None,
            released=lambda *_: None,
            advanced=lambda race: rounds.append(race.log.rounds(names)),
        ),
        lambda: machine.now,
    )
    for _ in range(2 + 2 * 17):
        race.call(machine.run)
    assert rounds == [1, 2, 4, 8, 16]


def test_the_clock_waits_for_what_was_asked_of_the_devices() -> None:
    @tf.function
    def slow() -> tf.Tensor:
        return tf.numpy_function(lambda: time.sleep(0.3) or 1.0, [], tf.float64)

    def seconds(end: Callable[[], float]) -> float:
        start = race_lib.synchronised_clock()
        slow()
        return end() - start

    seconds(race_lib.synchronised_clock)
    assert seconds(time.perf_counter) >= 0.3  # a CPU's call returns when it is done
    tf.config.experimental.set_synchronous_execution(False)
    try:
        assert min(seconds(time.perf_counter) for _ in range(3)) < 0.3
        assert seconds(race_lib.synchronised_clock) >= 0.3
    finally:
        tf.test.experimental.sync_devices()
        tf.config.experimental.set_synchronous_execution(True)


def test_the_first_may_be_called_alone_and_is_asked_about_each_time() -> None:
    """So a check knows of the winner before float32 is called."""
    asked: list[int] = []

    def judge(log: Log, running: Sequence[str]) -> race_rules.Ruling:
        asked.append(len(log.times("cut")))
        return race_rules.Ruling()

    calls: list[str] = []
    listener = Listener(lambda *_: None, lambda *_: None)
    rules = Rules(judge, race_rules.cut_short)
    clock = iter(range(1000))
    race = Race(
        ["cut", FLOAT32], rules, Log({}), listener, lambda: next(clock), ahead=6
    )
    for _ in range(8):
        race.call(calls.append)
    assert calls == ["cut"] * 6 + [FLOAT32] * 2
    assert asked == [1, 2, 3, 4, 5, 5]


def test_a_call_that_could_not_be_timed_does_not_bring_float32_in() -> None:
    """One that raises, as at the end of an epoch, or that another one overlaps."""
    judge = functools.partial(
        winner_checks.checked, since=10**6, then={"cut": 0.5, FLOAT32: 1.0}
    )
    calls, ended, clock = [], [], iter(i * 0.5 for i in range(1000))
    listener = Listener(lambda _, outcome: ended.append(outcome), lambda *_: None)
    race = Race(
        ["cut", FLOAT32],
        Rules(judge, winner_checks.cut_short),
        Log({}),
        listener,
        lambda: next(clock),
        ahead=winner_checks.CALLS_ALONE,
    )

    def run(name: str) -> None:
        calls.append(name)
        if len(calls) % 3 == 0:
            raise KeyError

    while not ended:
        with contextlib.suppress(KeyError):
            race.call(run)
    assert set(calls) == {"cut"}
    assert ended[0].twin
