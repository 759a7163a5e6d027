"""`LaterPlan`: what is measured between calls changes the plan, if it is worth it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jumping_clock
import pytest
import tensorflow as tf
from jumping_clock import Clock

import amp
from amp.graph_rewrite import figures
from amp.graph_rewrite.assign.nominee import CUT, EVERYTHING, PRODUCTS, Nominee
from amp.graph_rewrite.cost.op_instance import Instance, Times
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.rewrite import Prepared
from amp.integration.contests import contest, entrants, plan_store
from amp.integration.contests.entrants import MEASURED
from amp.integration.functions import (
    function_checks,
    function_twins,
    later_plan,
    twins,
)
from amp.integration.functions.between_calls import BetweenCalls
from amp.integration.functions.function_plans import FunctionPlans
from amp.integration.functions.later_plan import LaterPlan
from amp.integration.functions.twins import Twins
from amp.integration.measuring import (
    hardware,
    job_timer,
    measuring_slices,
    operation_timer,
    stored_times,
)
from amp.integration.observing import accuracy_check, checks
from amp.integration.process import PROCESS
from amp.integration.racing import exemptions, race_rules, winner_checks
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime.function_call import FunctionCall

pytestmark = pytest.mark.kernels
clock = jumping_clock.clock

# Calls, by which every race has ended: where one takes three times as long, the first
# look tells.
ENOUGH = 2 * (2 + race_rules.looks(2)[0])
SIZE = 512
FAST = 0.01  # seconds of a call of the fast function


def measures(monkeypatch: pytest.MonkeyPatch, share: float = 1e6) -> None:
    """Has measuring take a part of the time of calls, by default all that it wants."""
    for name in ("SHARE", "SHARE_IN_DOUBT"):
        monkeypatch.setattr(measuring_slices, name, share)


@pytest.fixture(autouse=True)
def measured_at_once(
    only_amx: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Measuring may take all the time that it wants."""
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("AMP_TUNE_BUDGET")
    monkeypatch.setattr(function_twins, "OTHERS", ())
    measures(monkeypatch)
    monkeypatch.setattr(later_plan, "COVERED", 1.0)
    monkeypatch.setattr(job_timer, "GLANCE", 0.0)


class Bench:
    """Gives planted times: a product gains in 16 bits, a `slow` op loses there."""

    slow = "Relu"
    longer = 1.0  # everything takes so many times what is predicted

    def __init__(self) -> None:
        self.keys: list[str] = []

    def measure(
        self, wanted: Sequence[Instance], seconds: float, *_: Any
    ) -> dict[str, Times]:
        self.keys += [one.key for one in wanted]
        return {one.key: self._times(one) for one in wanted}

    def _times(self, one: Instance) -> Times:
        high = self.longer * one.predicted[0]
        if one.key.startswith(self.slow):
            return 5 * high, 500 * high
        return high, high / 2


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    one = Bench()
    monkeypatch.setattr(operation_timer, "measure", one.measure)
    return one


class Calls:
    """Which function ran at each call; all but the last one made are slow.

    Each computes once, what its first call gives is given by all that follow: products
    in bfloat16 are slow on a CPU without them, and their times are planted.
    """

    first_takes = 0.0  # seconds that a twin's first call takes longer

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.names: list[bytes] = []
        self.outputs: dict[bytes, Any] = {}
        self.fast = -1  # number of the function that is fast, in order of first calls

    @property
    def met(self) -> list[bytes]:
        return list(dict.fromkeys(self.names))

    def counted(self, call: FunctionCall) -> FunctionCall:
        def run(name: bytes) -> Any:
            first, begun = name not in self.names, self.clock()
            self.names.append(name)
            if name not in self.outputs:
                self.outputs[name] = call.run(name)
            due = FAST if self.met.index(name) == self.fast else 3 * FAST
            if first and b"__amp" in name:
                due += self.first_takes
            self.clock.jump(begun + due - self.clock())  # however busy the machine
            return self.outputs[name]

        return dataclasses.replace(call, run=run)


@pytest.fixture
def ran(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls, original = Calls(clock), Twins.call

    def call(self: Twins, inner: FunctionCall, *args: Any) -> Any:
        return original(self, calls.counted(inner), *args)

    monkeypatch.setattr(Twins, "call", call)
    return calls


class Step:
    """Products with a relu between them, which a plan by the model has in 16 bits."""

    def __init__(self) -> None:
        self.weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / SIZE**0.5)
        self.x = tf.random.normal([SIZE, SIZE])
        self.run = tf.function(self._step)

    def _step(self) -> tf.Tensor:
        y = tf.matmul(self.x, self.weights)
        return tf.matmul(tf.nn.relu(y), self.weights)

    def train(self, steps: int, **policy: Any) -> None:
        policy = {"dtype": "bfloat16", "check": False, **policy}
        with amp.mixed_precision_scope(**policy):
            for _ in range(steps):
                self.run()


def in_16_bits(report: amp.Report) -> set[str]:
    return {one.op for one in report.decisions if one.dtype != "float32"}


def test_a_first_call_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: Any) -> Any:
        raise AssertionError("the first call is to wait for no measurement")

    monkeypatch.setattr(operation_timer, "measure", measure)
    Step().train(1)
    (report,) = amp.reports()
    assert "MatMul" in in_16_bits(report)
    assert report.measured_share == 0.0


def test_what_was_measured_enters_the_race_and_wins_if_it_is_faster(
    bench: Bench, ran: Calls
) -> None:
    ran.fast = 2  # the third function that is called
    step = Step()
    step.train(4)
    (report,) = amp.reports()
    assert "Relu" in in_16_bits(report)
    step.train(4 * ENOUGH)
    (report,) = amp.reports()
    plans = {plan.name: plan.fate for plan in report.plans}
    assert set(plans) == {FLOAT32, CUT.name, MEASURED.name}
    assert plans[MEASURED.name] == "won"
    assert "Relu" not in in_16_bits(report)
    assert "MatMul" in in_16_bits(report)
    assert report.measured_share > 0.5
    assert len(ran.met) == 3
    assert stored_times.load().keys() == set(bench.keys)


def test_a_plan_that_ctrl_c_interrupts_is_found_after_the_next_call(
    bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, interrupted = later_plan._predicted, []

    def once(*args: Any) -> tuple[float, float] | None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return honest(*args)

    monkeypatch.setattr(later_plan, "_predicted", once)
    ran.fast = 2
    step = Step()
    with pytest.raises(KeyboardInterrupt):
        step.train(4 * ENOUGH)
    step.train(4 * ENOUGH)
    (report,) = amp.reports()
    assert MEASURED.name in {plan.name for plan in report.plans}


def test_where_the_race_is_over_the_winner_is_challenged(
    bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures(monkeypatch, 0.0)
    ran.fast = 1  # float32, of those that race first
    step = Step()
    step.train(ENOUGH)
    (report,) = amp.reports()
    assert {p.name: p.fate for p in report.plans}[FLOAT32] == "won"
    (file,) = plan_store.path("any").parent.glob("*.json")
    assert plan_store.load(file.stem).winner == FLOAT32  # it may yet lose
    measures(monkeypatch)
    ran.fast = 2
    step.train(2 * ENOUGH)
    (report,) = amp.reports()
    plans = {plan.name: plan.fate for plan in report.plans}
    assert plans[MEASURED.name] == "won"
    assert plans[FLOAT32] in ("slower", "hopeless")
    assert report.measured32 is not None
    assert report.measured16 is not None
    assert report.measured16 < report.measured32
    assert plan_store.load(file.stem).winner not in ("", FLOAT32)


def test_a_job_of_short_runs_does_not_race_in_each_though_a_plan_may_come(
    bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second as in the first, and then not before the fourth."""
    measures(monkeypatch, 0.0)
    raced = []
    for _ in range(4):
        del ran.names[:]
        ran.fast = 1  # float32, of those that race
        Step().train(ENOUGH)
        raced.append(len(set(ran.names)) > 1)
        PROCESS.settled.clear()  # as a new process
    assert raced == [True, True, False, True]


def test_a_plan_that_stays_the_same_does_not_race_again(
    bench: Bench, ran: Calls
) -> None:
    bench.slow = "no operation"
    ran.fast = 0
    Step().train(2 * ENOUGH)
    (report,) = amp.reports()
    assert {plan.name for plan in report.plans} == {FLOAT32, CUT.name}
    assert bench.keys


def test_a_step_settles_once_no_race_and_no_doubt_is_left(
    bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions were wrong, as a plan that should gain is the slower one."""
    measures(monkeypatch, 0.0)
    step, ran.fast = Step(), 1
    assert not twins.settling()
    step.train(4)
    assert twins.settling()  # plans race
    step.train(ENOUGH)
    (report,) = amp.reports()
    assert {p.name: p.fate for p in report.plans}[FLOAT32] == "won"
    assert twins.settling()  # another is looked for
    measures(monkeypatch)
    ran.fast = 2
    step.train(4 * ENOUGH)
    assert in_16_bits(amp.reports()[0])
    assert not twins.settling()


def test_the_next_run_starts_with_the_plan_that_won(bench: Bench, ran: Calls) -> None:
    ran.fast = 2
    Step().train(4 * ENOUGH)
    low = in_16_bits(amp.reports()[-1])
    del ran.names[:], bench.keys[:]
    ran.fast = 0
    PROCESS.settled.clear()  # as a new process
    Step().train(ENOUGH)
    report = amp.reports()[-1]
    assert report.trial == contest.KNOWN
    assert in_16_bits(report) == low
    assert len(ran.met) == 1
    assert bench.keys == []


def test_a_winner_by_the_models_prices_stays_that_plan(
    bench: Bench, ran: Calls
) -> None:
    """Its operations were measured since, and a plan by those times was slower."""
    ran.fast = 0
    Step().train(4 * ENOUGH)
    low = in_16_bits(amp.reports()[-1])
    assert "Relu" in low
    assert len(ran.met) == 3
    del ran.names[:]
    PROCESS.settled.clear()
    Step().train(ENOUGH)
    report = amp.reports()[-1]
    assert report.trial == contest.KNOWN
    assert in_16_bits(report) == low
    assert len(ran.met) == 1


def test_a_plan_may_come_of_measuring_where_the_model_sees_no_gain(
    bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = dataclasses.replace(CPU_AMX, speed={}, slowdown={"bfloat16": {"matmul": 2}})
    monkeypatch.setattr(hardware, "device", lambda: flat)
    ran.fast = 1
    step = Step()
    step.train(1)
    (report,) = amp.reports()
    assert report.nodes_low == 0
    step.train(4 * ENOUGH)
    (report,) = amp.reports()
    assert "MatMul" in in_16_bits(report)
    assert {plan.name: plan.fate for plan in report.plans}[MEASURED.name] == "won"


@pytest.mark.parametrize("fields", [{"trial": False}, {}])
def test_runs_that_are_to_repeat_measure_nothing(
    bench: Bench, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored counts, so the same cache gives the same plan."""
    if not fields:
        config = exemptions.config_lib
        monkeypatch.setattr(config, "is_op_determinism_enabled", lambda: True)
    Step().train(5, **fields)
    assert bench.keys == []
    assert amp.reports()[-1].measured_share == 0.0
    stored_times.add({"MatMul *512x512 *512x512 | bfloat16 kernels": (1e-3, 5e-4)})
    PROCESS.settled.clear()
    Step().train(5, **fields)
    assert bench.keys == []
    assert amp.reports()[-1].measured_share > 0.5


def costs(report: amp.Report) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for one in report.decisions:
        found.setdefault(one.op, []).append((one.seconds32, one.seconds16))
    return found


def test_what_was_measured_is_what_the_report_then_predicts(
    bench: Bench, ran: Calls
) -> None:
    """In the same run, where the plan stays the same, and in the next one."""
    bench.slow, bench.longer = "no operation", 3.0
    Step().train(1)
    before = amp.reports()[-1]
    ran.fast = 1  # the twin of the second function
    Step().train(4 * ENOUGH)
    report = amp.reports()[-1]
    assert report.nodes_low > 0
    assert before.measured_share == 0
    assert report.measured_share == pytest.approx(1.0)
    for (high, low), (then, _) in zip(
        costs(report)["MatMul"], costs(before)["MatMul"], strict=True
    ):
        assert high == pytest.approx(3.0 * then)
        assert low == pytest.approx(high / 2)
    assert report.seconds32 == pytest.approx(3.0 * before.seconds32, rel=0.1)
    assert figures.gain(report.seconds32, report.seconds16) in report.verdict
    PROCESS.settled.clear()  # as a new process
    Step().train(2)
    again = amp.reports()[-1]
    assert again.trial == contest.KNOWN
    assert costs(again) == costs(report)
    assert again.seconds16 == pytest.approx(report.seconds16)
    assert again.measured_share == report.measured_share


class Training(Step):
    """The same as a step of training."""

    def _step(self) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.matmul(self.x, self.weights)
            y = tf.matmul(tf.nn.relu(y), self.weights)
            loss = tf.reduce_mean(tf.square(y))
        self.weights.assign_sub(0.1 * tape.gradient(loss, self.weights))
        return loss


def record() -> plan_store.Record:
    """What is stored of the only function."""
    (file,) = plan_store.path("any").parent.glob("*.json")
    return plan_store.load(file.stem)


@pytest.fixture
def not_measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is measured before a test says otherwise."""
    with monkeypatch.context() as patch:
        measures(patch, 0.0)
        yield


def test_a_new_winner_of_a_later_run_is_checked_against_float32(
    not_measured: None, bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no time of an earlier run to be compared with."""
    monkeypatch.setattr(plan_store, "SOON", math.inf)
    ran.fast = 1
    Training().train(ENOUGH)
    del ran.names[:]
    measures(monkeypatch)
    monkeypatch.setattr(winner_checks, "CHECKS", ())
    monkeypatch.setattr(winner_checks, "EVERY", 5)
    monkeypatch.setattr(winner_checks, "LEAST_CALLS", 0)
    PROCESS.settled.clear()  # as a new process
    Training().train(4 * ENOUGH)
    report = amp.reports()[-1]
    assert {p.name: p.fate for p in report.plans}[MEASURED.name] == "won"
    assert any(b"__amp" not in name for name in ran.names)


def test_a_new_winner_of_a_later_run_is_that_of_the_next(
    not_measured: None, bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran.fast = 0
    Step().train(ENOUGH)
    del ran.names[:]
    measures(monkeypatch)
    PROCESS.settled.clear()
    ran.fast = 1
    Step().train(2 * ENOUGH)
    low = in_16_bits(amp.reports()[-1])
    assert "Relu" not in low
    assert "measured" in amp.reports()[-1].verdict
    PROCESS.settled.clear()
    Step().train(ENOUGH)
    assert in_16_bits(amp.reports()[-1]) == low
    assert amp.reports()[-1].trial == contest.KNOWN


def test_how_soon_a_winner_was_ready_is_of_its_first_call_of_all(
    not_measured: None, bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first call in the race against a plan made later is a warm one."""
    ran.fast, ran.first_takes = 1, 0.5
    step = Training()
    step.train(ENOUGH)
    before = record().ready
    assert before[CUT.name] > ran.first_takes
    measures(monkeypatch)
    step.train(2 * ENOUGH)
    assert MEASURED.name in {plan.name for plan in amp.reports()[-1].plans}
    assert record().ready == before


def test_what_makes_a_plan_ready_pays_for_no_measuring(
    not_measured: None, bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    honest = BetweenCalls.called

    def called(self: BetweenCalls, seconds: float, *rest: Any) -> None:
        told.append(seconds)
        honest(self, seconds, *rest)

    monkeypatch.setattr(BetweenCalls, "called", called)
    ran.fast = 1
    Step().train(6)
    assert [i for i, seconds in enumerate(told) if not seconds] == [0, 2]  # of two


def test_calls_to_come_are_counted_once_if_two_threads_go_on(
    not_measured: None, bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were in a call when the calls that were counted before had been made."""
    counted, late = [], []
    passed, call = LaterPlan.passed, Twins.call

    def noted(self: LaterPlan, calls: int) -> None:
        counted.append(calls)
        passed(self, calls)

    def twice(self: Twins, *args: Any) -> Any:
        outputs, before = call(self, *args), len(counted)
        if counted and counted[-1]:  # as a thread that is late would
            call(self, *args)
            late.append(sum(counted[before:]))
        return outputs

    monkeypatch.setattr(LaterPlan, "passed", noted)
    monkeypatch.setattr(Twins, "call", twice)
    ran.fast = 1
    Training().train(2 * ENOUGH)
    assert late
    assert set(late) == {0}


def test_a_hasty_time_gives_way_to_a_better_one_in_the_next_run_too(
    not_measured: None, bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_timer, "GLANCE", 100.0)
    monkeypatch.setattr(job_timer, "_first_of_each_op", lambda wanted, _: [*wanted])
    bench.slow, ran.fast = "no operation", 1
    step = Training()
    step.train(2)
    bench.longer = 10.0
    measures(monkeypatch)
    step.train(4 * ENOUGH)
    told = amp.reports()[-1].seconds32
    PROCESS.settled.clear()
    Training().train(5)
    assert amp.reports()[-1].trial == contest.KNOWN
    assert amp.reports()[-1].seconds32 == pytest.approx(told)


def test_a_plan_made_after_the_measuring_is_told_by_it(
    bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function_twins, "OTHERS", (EVERYTHING,))
    monkeypatch.setattr(FunctionPlans, "_why_not", lambda *_: "")
    bench.slow, ran.fast = "no operation", 2
    Step().train(4 * ENOUGH)
    report = amp.reports()[-1]
    assert {p.name: p.fate for p in report.plans}[EVERYTHING.name] == "won"
    assert report.measured_share == pytest.approx(1.0)


def test_a_winner_runs_though_its_report_cannot_be_priced(
    not_measured: None, bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("planted")

    bench.slow, ran.fast = "no operation", 1
    step = Training()
    step.train(ENOUGH)
    measures(monkeypatch)
    step.train(2 * ENOUGH)
    PROCESS.settled.clear()
    del ran.names[:]
    monkeypatch.setattr(Prepared, "prices", fails)
    with pytest.warns(RuntimeWarning, match="reports predict by older times"):
        Training().train(5)
    assert b"__amp" in ran.names[-1]


def test_a_like_function_goes_on_with_its_siblings_winner(
    bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it was read before that was known."""
    monkeypatch.setenv("AMP_TUNE_BUDGET", "0")
    one, other = Training(), Training()
    one.train(1)
    other.train(1)
    ran.fast = 2  # the twin of the first function
    one.train(ENOUGH)
    other.train(2)
    assert amp.reports()[-1].trial == contest.KNOWN


def test_a_function_that_is_called_once_is_no_run_of_a_job(
    bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no like function's turn to contest float32."""
    monkeypatch.setenv("AMP_TUNE_BUDGET", "0")
    ran.fast = 0
    Training().train(ENOUGH)
    assert (record().winner, record().runs) == (FLOAT32, 1)
    PROCESS.settled.clear()
    del ran.names[:]
    Training().train(1)
    assert record().runs == 1
    Training().train(ENOUGH)
    assert any(b"__amp" in name for name in ran.names)


@pytest.mark.parametrize("winner", [CUT.name, PRODUCTS.name])
def test_a_first_step_is_the_winners_if_its_own_gradients_were_compared(
    winner: str, bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with products only are as exact as the cheapest; they are not compared."""
    monkeypatch.setattr(function_twins, "OTHERS", (PRODUCTS,))
    monkeypatch.setattr(FunctionPlans, "_why_not", lambda *_: "")
    monkeypatch.setattr(plan_store, "SOON", math.inf)
    measures(monkeypatch, 0.0)
    ran.fast = 1 if winner == CUT.name else 2
    Training().train(2 * ENOUGH, check=True)
    assert (record().winner, record().accuracy["name"]) == (winner, CUT.name)
    PROCESS.settled.clear()
    del ran.names[:]
    Training().train(2, check=True)
    assert (b"__amp" in ran.names[0]) == (winner == CUT.name)


def test_a_plan_made_anew_for_its_accuracy_is_told_by_what_was_measured(
    bench: Bench, ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the second check finds the relu at fault, long after the measuring."""
    late, honest = 3 * ENOUGH, accuracy_check.AccuracyCheck.compare
    for module in (checks, function_checks):
        monkeypatch.setattr(module, "AGAIN", late)
    compared: list[int] = []

    def compare(self: accuracy_check.AccuracyCheck) -> accuracy_check.Checked:
        found = honest(self)
        compared.append(len(ran.names))
        if len(compared) == 1:
            return dataclasses.replace(found, nominee=None)
        (use,) = self._made.low
        faults = [name for name in self._made.low[use] if "Relu" in name]
        assert faults
        kept = {use: dict.fromkeys(faults, Reason("accuracy", "planted"))}
        nominee: Nominee = self._nominee.keeping(kept)
        return dataclasses.replace(found, nominee=nominee)

    monkeypatch.setattr(accuracy_check.AccuracyCheck, "compare", compare)
    bench.slow, bench.longer, ran.fast = "no operation", 3.0, 1
    step = Training()
    step.train(late - 2, check=True)
    before = amp.reports()[-1]
    assert before.measured_share > 0.9
    step.train(2 * ENOUGH, check=True)
    report = amp.reports()[-1]
    assert len(compared) == 2
    assert [d.op for d in report.decisions if d.rule == "accuracy"]
    assert report.measured_share > 0.9
    assert report.seconds32 == pytest.approx(before.seconds32, rel=0.1)


class Diluted(Training):
    """A step whose products are a small part of its time: 16 bits gain little."""

    def _step(self) -> tf.Tensor:
        with amp.keep_float32():
            rest = tf.reduce_mean(
                tf.cos(tf.random.stateless_normal([4096, 512], (1, 2)))
            )
        return super()._step() + 0.0 * rest


@pytest.mark.parametrize(
    ("policy", "least", "races"),
    [({}, 0.0, True), ({"min_gain": 0.9}, 0.0, False), ({}, 10.0, False)],
)
def test_a_step_predicted_to_gain_too_little_races_all_the_same(
    policy: dict[str, Any],
    least: float,
    races: bool,
    ran: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prediction is no promise; what is short, or asked to gain much, has no race."""
    monkeypatch.setattr(entrants, "USUAL_GAIN", 0.6)
    monkeypatch.setattr(entrants, "LEAST_STEP", least)
    measures(monkeypatch, 0.0)
    ran.fast = 1
    policy = {"min_gain": 0.6, **policy}
    Diluted().train(ENOUGH, **policy)
    report = amp.reports()[-1]
    assert (report.nodes_low > 0) == races
    assert any(b"__amp" in name for name in ran.names) == races
    if races:
        fates = {plan.name: plan.fate for plan in report.plans}
        assert fates[EVERYTHING.name] == "won"
        PROCESS.settled.clear()  # as a new process
        Diluted().train(3, **policy)
        assert amp.reports()[-1].trial == contest.KNOWN
