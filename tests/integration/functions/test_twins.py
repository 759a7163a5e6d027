"""`Twins`: original and twin are tried against each other, then the faster runs."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
import os
import pathlib
import threading
import time
import types
import weakref
from typing import Any

import jumping_clock
import keras
import numpy as np
import pytest
import tensorflow as tf
from jumping_clock import Clock
from tensorflow.python.eager import context as context_lib

import amp
from amp.errors import VerifyError
from amp.graph_rewrite import rewrite
from amp.graph_rewrite.assign.nominee import (
    CUT,
    EVERYTHING,
    PRODUCTS,
    REWRITTEN,
    UNCLUSTERED,
    Nominee,
)
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.rewrite import Prepared
from amp.graph_rewrite.steps import Step as Phase
from amp.integration import reports
from amp.integration.contests import contest, entrants, plan_store, stored_checks
from amp.integration.functions import (
    function_checks,
    function_hooks,
    function_plans,
    function_twins,
    later_plan,
)
from amp.integration.functions.function_plans import FunctionPlans
from amp.integration.functions.function_twins import FunctionTwins
from amp.integration.functions.guarded_calls import Current, GuardedCalls
from amp.integration.functions.twins import Twins
from amp.integration.measuring import hardware
from amp.integration.observing import accuracy_check, plan_nodes
from amp.integration.process import PROCESS
from amp.integration.racing import race, race_rules, winner_checks
from amp.integration.racing import turns as turns_lib
from amp.integration.racing.race_log import FLOAT32, Log
from amp.integration.runtime.function_call import FunctionCall
from amp.once import Once

pytestmark = pytest.mark.kernels
clock = jumping_clock.clock

# Every bfloat16 rounding is off by 2**-8 at most; under 2**3 of them in a row here.
BFLOAT16 = 2.0**-8 * 2**3
ENOUGH = 2 * (2 + race_rules.looks(5)[-1])  # calls, by which two have been told apart
# The same where one takes four times as long, however busy the machine is.
SOON = 2 * (2 + race_rules.looks(5)[2])
SIZE = 256  # of the products, which are predicted to be faster in 16 bits


@pytest.fixture(autouse=True)
def two_race(only_amx: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest plan races against the original alone."""
    monkeypatch.setattr(function_twins, "OTHERS", ())


class Calls(list[str]):
    """What ran, "twin" or "original", call by call; one of them may be made slow."""

    slow = ""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def calls(self, call: FunctionCall) -> FunctionCall:
        def counted(name: bytes) -> Any:
            which = "twin" if b"__amp" in name else "original"
            self.append(which)
            begun = time.perf_counter()
            found = call.run(name)
            if which == self.slow:  # by far, however long a step takes here
                self.clock.jump(max(0.02, 3 * (time.perf_counter() - begun)))
            return found

        return dataclasses.replace(call, run=counted)


@pytest.fixture
def ran(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The calls that went through `Twins.call`, those of a race among them."""
    calls, original = Calls(clock), Twins.call

    def call(self: Twins, inner: FunctionCall, *args: Any) -> Any:
        return original(self, calls.calls(inner), *args)

    monkeypatch.setattr(Twins, "call", call)
    return calls


class Step:
    """A step of training with a counter, whose products are worth 16 bits on AMX."""

    def __init__(self, **options: Any) -> None:
        tf.keras.utils.set_random_seed(1)
        self.weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / SIZE**0.5)
        self.count = tf.Variable(0)
        self.x = tf.random.normal([SIZE, SIZE])
        self.run = tf.function(self._step, **options)

    def _step(self) -> tf.Tensor:
        self.count.assign_add(1)
        with tf.GradientTape() as tape:
            y = tf.matmul(tf.tanh(tf.matmul(self.x, self.weights)), self.weights)
            loss = tf.reduce_mean(tf.square(y))
        self.weights.assign_sub(0.1 * tape.gradient(loss, self.weights))
        return loss

    def train(self, steps: int, **policy: Any) -> list[float]:
        # Of races alone; what a check of gradients does is in test_checks.
        policy = {"check": False, **policy}
        with amp.mixed_precision_scope(dtype="bfloat16", **policy):
            return [float(self.run()) for _ in range(steps)]


@pytest.mark.parametrize(("slow", "faster"), [("original", True), ("twin", False)])
def test_the_faster_runs_in_the_end_and_every_call_is_one_step(
    ran: Calls, slow: str, faster: bool, tmp_path: pathlib.Path
) -> None:
    ran.slow = slow
    want = Step()
    want_losses = [float(want.run()) for _ in range(SOON)]
    step = Step()
    losses = step.train(SOON, report=str(tmp_path))
    assert int(step.count) == SOON
    np.testing.assert_allclose(losses, want_losses, rtol=BFLOAT16)
    assert ran[:5] == ["original", "twin", "twin", "original", "original"]
    assert {"twin", "original"} == set(ran)
    assert len(ran) < SOON  # the others went to the faster, without a question
    (report,) = amp.reports()
    assert report.verdict.startswith("rewritten" if faster else "left in float32")
    assert (report.nodes_low > 0) == faster
    assert report.measured32 is not None
    assert report.measured16 is not None
    assert (report.measured16 < report.measured32) == faster
    assert report.timed == len(ran) - 3
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text()) == json.loads(report.to_json())


def test_a_race_knows_how_much_work_each_call_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works: list[float] = []
    honest = race.Race.call

    def noted(self: race.Race, call: Any, work: float) -> Any:
        works.append(work)
        return honest(self, call, work)

    monkeypatch.setattr(race.Race, "call", noted)
    given = tf.TensorSpec([None, SIZE])
    product = tf.function(lambda x: tf.matmul(x, tf.ones([SIZE, SIZE])), [given])
    with amp.mixed_precision_scope(dtype="bfloat16", check=False):
        for rows in (SIZE, SIZE, 2 * SIZE):
            product(tf.ones([rows, SIZE]))
    assert works == [SIZE * SIZE, SIZE * SIZE, 2 * SIZE * SIZE]


def test_where_the_original_won_it_runs_bit_for_bit(ran: Calls) -> None:
    ran.slow = "twin"
    x = tf.random.normal([SIZE, SIZE])
    product = tf.function(lambda x: tf.matmul(x, x))
    with amp.mixed_precision_scope(dtype="bfloat16"):
        for _ in range(SOON):
            product(x)
        got = product(x)
    np.testing.assert_array_equal(got, product(x))


def test_while_it_lasts_the_report_says_so() -> None:
    Step().train(2)
    (report,) = amp.reports()
    assert report.trial == contest.UNDER_WAY
    assert report.measured32 is report.measured16 is None
    assert "measured" not in report.verdict


@pytest.mark.parametrize(
    ("fields", "why"),
    [({"trial": False}, "AMP_TRIAL=0"), ({"assignment": "all"}, "assignment")],
)
def test_without_a_race_the_twin_runs_from_the_first_call_on(
    ran: Calls, fields: dict[str, Any], why: str
) -> None:
    step = Step()
    step.train(3, **fields)
    assert ran == ["twin"]  # proven by its first call
    (report,) = amp.reports()
    assert report.nodes_low > 0
    assert report.trial.startswith("off: ")
    assert why in report.trial


def test_what_xla_compiles_races_as_well(
    ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_fast = dataclasses.replace(CPU_AMX, compiled=None)  # so that there is a twin
    monkeypatch.setattr(hardware, "device", lambda: as_fast)
    ran.slow = "twin"
    Step(jit_compile=True).train(SOON)
    assert {"twin", "original"} == set(ran)
    (report,) = amp.reports()
    assert report.trial == "ended: float32 is faster"


def test_nothing_to_convert_is_nothing_to_try(ran: Calls) -> None:
    fn = tf.function(lambda x: x + 1.0)
    with amp.mixed_precision_scope(dtype="bfloat16"):
        fn(tf.ones([4]))
        fn(tf.ones([4]))
    assert ran == ["original"]
    assert amp.reports()[0].trial == ""


def test_forward_and_backward_are_tried_apart_in_any_combination(
    ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([False, True])

    def one_way_then_the_other(_: Any, names: list[str]) -> list[str]:
        return names[::-1] if next(turns) else names

    monkeypatch.setattr(turns_lib, "_order", one_way_then_the_other)
    never = race_rules.Rules(*[lambda log, running: race_rules.Ruling()] * 2)
    monkeypatch.setattr(race_rules, "RACE", never)
    step = Step()
    forward = tf.function(lambda x: tf.tanh(tf.matmul(x, step.weights)))

    def gradient() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(forward(step.x)))
        return tape.gradient(loss, step.weights)

    want = gradient()
    with amp.mixed_precision_scope(dtype="bfloat16"):
        for _ in range(6):
            got = gradient()
            assert np.abs(got - want).max() <= BFLOAT16 * np.abs(want).max()
    assert len(amp.reports()) == 2
    combinations = set(zip(ran[::2], ran[1::2], strict=True))
    assert len(combinations) == 4


def twin_names() -> set[str]:
    """The names of all functions that TensorFlow keeps for twins."""
    names = context_lib.context().list_function_names()
    return {name for name in names if "__amp" in name}


def test_every_plan_races_and_the_losers_are_let_go(
    monkeypatch: pytest.MonkeyPatch, ran: Calls
) -> None:
    monkeypatch.setattr(function_twins, "OTHERS", (EVERYTHING, PRODUCTS))
    monkeypatch.setattr(entrants, "CLOSE_IF_MODELLED", 100.0)
    ran.slow = "original"
    step = Step()
    before = twin_names()
    step.train(4 * ENOUGH)
    (report,) = amp.reports()
    plans = {plan.name: plan for plan in report.plans}
    assert set(plans) == {"float32", CUT.name, EVERYTHING.name, PRODUCTS.name}
    (winner,) = [plan for plan in report.plans if plan.fate == "won"]
    assert winner.name != "float32"
    assert winner.seconds == report.measured16
    twins = [t.twins for t in PROCESS.settled.values() if t.twins is not None]
    name = step.run.get_concrete_function().name
    left = {made for each in twins for made in each.made_for(name)}
    assert left
    assert twin_names() - before == left
    assert int(step.count) == 4 * ENOUGH


@pytest.mark.parametrize(
    ("winner", "steep", "more"),
    [
        (EVERYTHING, False, 1),
        (UNCLUSTERED, False, 0),
        (PRODUCTS, False, 0),
        (PRODUCTS, True, 1),
    ],
)
def test_a_winner_that_holds_other_nodes_in_16_bits_is_compared_too(
    monkeypatch: pytest.MonkeyPatch, winner: Nominee, steep: bool, more: int
) -> None:
    """With float32, once it has won; the cheapest was before the race.

    Products only are not, but for one that the cheapest has not, if a steep function
    reads it.
    """
    compared = noted_checks(monkeypatch)
    other = [(FunctionUse("other", xla=False), "product")] if steep else []
    monkeypatch.setattr(plan_nodes, "before_steep", lambda *_: other)

    def wins(log: Log, running: Any) -> race_rules.Ruling:
        if winner.name not in running:  # it meets who is left of the first two
            return race_rules.Ruling(winner=CUT.name)
        won = len(log.times(winner.name)) == 1
        return race_rules.Ruling({}, winner.name if won else None, "ended: planted")

    rules = dataclasses.replace(race_rules.RACE, judge=wins)
    monkeypatch.setattr(race_rules, "RACE", rules)
    monkeypatch.setattr(function_twins, "OTHERS", (winner,))
    monkeypatch.setattr(function_plans.FunctionPlans, "_why_not", lambda *_: "")
    step = Step()
    step.train(12, check="auto")
    assert compared == [CUT.name] + [winner.name] * more
    assert int(step.count) == 12
    # The cheapest is compared once more where its nodes run, and the yardstick never.
    (twins,) = [t.twins for t in PROCESS.settled.values() if t.twins is not None]
    name = step.run.get_concrete_function().name
    assert twins._shared.checks.waits(name) is (winner is not PRODUCTS or steep)
    assert f"{winner.name}: won" in str(amp.reports()[0])


CONVOLUTIONS = ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput")


class Normalized:
    """A step of training with a convolution and a batch norm, as Keras 3 has them."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Conv2D(16, 3, padding="same", use_bias=False)]
        layers += [keras.layers.BatchNormalization(), keras.layers.Activation("relu")]
        self.model = keras.Sequential([*layers, *self._again()])
        self.x = tf.random.normal([16, 24, 24, 16])
        self.model.build(self.x.shape)
        self.variables = self.model.trainable_variables
        self.run = tf.function(self._step)

    def _again(self) -> list[Any]:
        return [keras.layers.Conv2D(8, 3), keras.layers.GlobalAveragePooling2D()]

    def _step(self) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(self.x, training=True)))
        for variable, by in zip(
            self.variables, tape.gradient(loss, self.variables), strict=True
        ):
            variable.assign_sub(0.1 * by)
        return loss

    def train(self, steps: int, **policy: Any) -> list[float]:
        with amp.mixed_precision_scope(dtype="bfloat16", **policy):
            return [float(self.run()) for _ in range(steps)]


def race_won_in_float32(monkeypatch: pytest.MonkeyPatch, *others: Nominee) -> None:
    """These race besides the cheapest, and `float32_rewritten_wins`."""
    monkeypatch.setattr(function_twins, "OTHERS", others)
    monkeypatch.setattr(entrants, "CLOSE_IF_MODELLED", 100.0)
    rules = dataclasses.replace(race_rules.RACE, judge=float32_rewritten_wins)
    monkeypatch.setattr(race_rules, "RACE", rules)


def noted_checks(monkeypatch: pytest.MonkeyPatch, says: str = "") -> list[str]:
    """The names of the plans of which gradients are compared, as they come."""
    compared: list[str] = []
    honest = accuracy_check.AccuracyCheck.__init__

    def noted(self: Any, context: Any, *given: Any) -> None:
        compared.append(says + given[2].name)
        honest(self, context, *given)

    monkeypatch.setattr(accuracy_check.AccuracyCheck, "__init__", noted)
    return compared


def float32_rewritten_wins(log: Log, running: Any) -> race_rules.Ruling:
    """Planted: it wins once all were timed that it meets, and others by order."""
    if not all(map(log.times, running)):
        return race_rules.Ruling()
    winner = REWRITTEN.name if REWRITTEN.name in running else running[0]
    return race_rules.Ruling(winner=winner)


@pytest.mark.parametrize("begins", [False, True])
def test_float32_with_kernels_races_wins_and_is_what_the_next_run_starts_with(
    monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """Against the cheapest, or in its place where that changes nothing."""
    policy = {"deny": CONVOLUTIONS} if begins else {}
    compared = noted_checks(monkeypatch)
    race_won_in_float32(monkeypatch, REWRITTEN, EVERYTHING)
    want = Normalized()
    wanted = [float(want.run()) for _ in range(20)]
    step = Normalized()
    losses = step.train(20, **policy)
    # A step takes its loss from the one before, and leaves the rounding of that.
    before = np.array([wanted[0], *wanted[:-1]])
    assert np.all(np.abs(np.subtract(losses, wanted)) <= BFLOAT16 * before)
    (report,) = amp.reports()
    assert report.trial == "ended: float32 as rewritten is faster"
    assert report.verdict.startswith("rewritten in float32, predicted")
    assert (report.nodes_low, report.casts) == (0, 0)
    fates = {plan.name: plan.fate for plan in report.plans}
    assert fates[REWRITTEN.name] == "won"
    assert (CUT.name in fates) is not begins
    # Nothing of the winner is rounded, so only what raced before it was compared.
    assert compared == ([] if begins else [CUT.name])
    assert "1 of 1 functions rewritten" in reports.summary(None, 0)

    PROCESS.settled.clear()  # as a new process
    again = Normalized()
    np.testing.assert_allclose(again.train(5, **policy), wanted[:5], rtol=1e-5)
    report = amp.reports()[-1]
    assert report.trial == contest.KNOWN
    assert report.verdict.startswith("rewritten in float32, predicted")
    assert None not in (report.measured32, report.measured16)
    assert compared == ([] if begins else [CUT.name])


def test_what_another_thread_was_to_call_without_a_question_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is gone once a check has had another plan made, which is to race."""
    honest = accuracy_check.AccuracyCheck.compare

    def compare(self: accuracy_check.AccuracyCheck) -> Any:
        (twins,) = [t.twins for t in PROCESS.settled.values() if t.twins is not None]
        name = step.run.get_concrete_function().name
        twin = next(made for made in twins.made_for(name) if "_check" not in made)
        twins.proven.given[name] = itertools.repeat(twin.encode(), 1000)  # planted
        return honest(self)

    monkeypatch.setattr(accuracy_check.AccuracyCheck, "compare", compare)
    monkeypatch.setattr(
        accuracy_check.GradientJudge, "yardstick", lambda *_: False
    )  # planted
    race_won_in_float32(monkeypatch, REWRITTEN)
    step = Normalized()
    step.train(20, check=True)
    assert amp.reports()[-1].trial.startswith("ended")


def test_no_plan_in_16_bits_takes_a_step_before_one_was_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where float32 with other kernels begins, the first that meets it is."""
    events = noted_checks(monkeypatch, "compared ")
    make = FunctionPlans._make

    def gains_nothing(self: Any, context: Any, prepared: Prepared, plan: str) -> Any:
        if plan == CUT.name:  # planted
            rewritten = make(self, context, prepared, plan)[1]
            return entrants.NotMade("planted", rewritten.report), rewritten
        return make(self, context, prepared, plan)

    called = GuardedCalls.call

    def noted(self: Any, call: FunctionCall, context: Any, plan: str) -> Any:
        events.append(plan)
        return called(self, call, context, plan)

    monkeypatch.setattr(FunctionPlans, "_make", gains_nothing)
    monkeypatch.setattr(GuardedCalls, "call", noted)
    race_won_in_float32(monkeypatch, REWRITTEN, EVERYTHING)
    want = Normalized()
    wanted = [float(want.run()) for _ in range(20)]
    losses = Normalized().train(20, check="auto")
    np.testing.assert_allclose(losses, wanted, rtol=BFLOAT16)
    check = events.index(f"compared {EVERYTHING.name}")
    assert EVERYTHING.name in events[check:]
    assert EVERYTHING.name not in events[:check]
    assert REWRITTEN.name in events[:check]
    (report,) = amp.reports()
    fates = {plan.name: plan.fate for plan in report.plans}
    assert fates[REWRITTEN.name] == "won"
    assert fates[EVERYTHING.name] == "not chosen"


@pytest.mark.parametrize("noise", [EVERYTHING, PRODUCTS, None])
def test_no_plan_takes_a_step_that_loses_gradients_which_another_has(
    monkeypatch: pytest.MonkeyPatch, noise: Nominee | None
) -> None:
    """In the next run neither, where the plan that passed is the only one known."""
    made, given = [], accuracy_check.AccuracyCheck._of

    def of(self: Any, nominee: Nominee) -> Any:
        found = given(self, nominee)
        all_products = nominee.name == PRODUCTS.name and not nominee.kept
        if nominee.name == EVERYTHING.name or all_products:
            factor = 3.0 if noise and (noise is PRODUCTS or not all_products) else 1.0
            return [factor * each for each in found]  # planted
        return found

    make = FunctionPlans._make

    def noted(self: Any, context: Any, prepared: Prepared, plan: str) -> Any:
        made.append(plan)
        return make(self, context, prepared, plan)

    monkeypatch.setattr(accuracy_check.AccuracyCheck, "_of", of)
    monkeypatch.setattr(FunctionPlans, "_make", noted)
    monkeypatch.setattr(function_twins, "OTHERS", (EVERYTHING, PRODUCTS))
    monkeypatch.setattr(entrants, "CLOSE_IF_MODELLED", 100.0)
    decided = Prepared._decided

    def partly(self: Any, nominee: Nominee, suffix: str) -> Any:
        """Planted: the cheapest has one product less than the others."""
        if nominee.name == CUT.name:
            nominee = nominee.keeping(kept(self))
        return decided(self, nominee, suffix)

    def kept(prepared: Prepared) -> Any:
        uses = prepared.priced.analysis.uses.items()
        products = [
            (use, name)
            for use, one in uses
            for name in one.found.allowed
            if one.graph.nodes[name].op == "MatMul"
        ]
        use, name = products[0]
        return {use: {name: Reason("cheaper", "planted")}}

    monkeypatch.setattr(Prepared, "_decided", partly)
    for run in (1, 2):
        Step().train(ENOUGH, check="auto")
        refused = {EVERYTHING.name} if noise else set()
        if noise is PRODUCTS or (noise and run == 2):
            refused.add(PRODUCTS.name)
        assert refused.isdisjoint(made)
        assert CUT.name in made
        assert noise is not None or EVERYTHING.name in made  # the first to enter
        fates = {plan.name: plan.fate for plan in amp.reports()[-1].plans}
        assert {fates[plan] for plan in refused & {*fates}} <= {entrants.NOT_BORNE}
        PROCESS.settled.clear()  # as a new process, in which they race anew
        del made[:]
        (file,) = plan_store.path("any").parent.glob("*.json")
        stored = json.loads(file.read_text())
        assert stored["accuracy"]["alone"] == bool(refused)
        file.write_text(json.dumps({**stored, "winner": "", "seconds": {}}))


def test_without_a_race_float32_has_its_kernels_where_16_bits_gain_nothing() -> None:
    step = Normalized()
    step.train(2, trial=False, deny=CONVOLUTIONS)
    (report,) = amp.reports()
    assert report.verdict.startswith("rewritten in float32, predicted")
    assert report.trial.startswith("off: ")


@pytest.mark.parametrize(("trial", "steps"), [(False, 12), ("auto", 12), ("auto", 3)])
def test_where_no_16_bits_pass_the_check_float32_has_its_kernels(
    monkeypatch: pytest.MonkeyPatch, trial: Any, steps: int
) -> None:
    """No further plan tries 16 bits then, and none is compared once more.

    In three steps no race ends, so that the next run knows of the check alone.
    """
    compared = noted_checks(monkeypatch)
    monkeypatch.setattr(
        accuracy_check.GradientJudge, "yardstick", lambda *_: False
    )  # planted
    left: list[bool] = []  # whether any plan has anything in 16 bits
    begun = later_plan.begun

    def asked(plans: FunctionPlans, known: Any) -> Any:
        prepared = plans.prepared
        assert prepared is not None
        nominees = map(plans.nominee, entrants.NOMINEES)
        lows = [prepared.foreseen(nominee).low for nominee in nominees]
        left.append(any(any(low.values()) for low in lows))
        return begun(plans, known)

    monkeypatch.setattr(later_plan, "begun", asked)
    monkeypatch.setattr(function_checks, "AGAIN", 3)
    race_won_in_float32(monkeypatch, REWRITTEN, EVERYTHING, PRODUCTS)
    policy = {"trial": trial, "check": True}
    wanted = Normalized()
    want = [float(wanted.run()) for _ in range(12)]
    step = Normalized()
    losses = step.train(steps, **policy)
    np.testing.assert_allclose(losses, want[:steps], rtol=1e-5)
    (report,) = amp.reports()
    assert compared == [CUT.name]
    assert report.accuracy is not None
    assert "with products in 16 bits they are not" in report.accuracy.text
    assert report.verdict.startswith("rewritten in float32, predicted")
    assert (report.nodes_low, report.casts) == (0, 0)
    assert "accuracy" in {decision.rule for decision in report.decisions}
    raced = {REWRITTEN.name, FLOAT32} if trial and steps == 12 else set()
    assert {plan.name for plan in report.plans} == raced

    PROCESS.settled.clear()  # as a new process
    again = Normalized()
    np.testing.assert_allclose(again.train(12, **policy), want, rtol=1e-5)
    report = amp.reports()[-1]
    # Where runs are to repeat bit for bit, nothing is known of an earlier one.
    assert compared == [CUT.name] * (1 if trial else 2)
    assert left == [True, not trial]  # nor is any tried of what will be measured
    assert report.verdict.startswith("rewritten in float32, predicted")


def test_a_winner_that_fails_a_check_gives_way_to_float32(
    ran: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted() -> None:
        raise VerifyError("a fault", where="here", allowed="none", remedy="find it")

    monkeypatch.setattr(rewrite, "SECOND", (Phase("planted", planted, ()),))
    ran.slow = "original"
    step, before = Step(), twin_names()
    with pytest.warns(RuntimeWarning, match="as it was: its rewrite failed"):
        step.train(SOON)
    (report,) = amp.reports()
    assert twin_names() == before
    assert report.nodes_low == 0
    assert report.trial == "ended: a check of the winner failed"
    # It had won, so that float32 was not the fastest.
    assert report.verdict == "left in float32: a check of the winner failed"
    assert "fastest" not in reports.summary(None, 0)
    assert int(step.count) == SOON
    PROCESS.settled.clear()  # as a new process
    Step().train(1)
    assert ran[-1] == "original"


@pytest.mark.parametrize(("rows", "known"), [(SIZE - 1, True), (SIZE // 16, False)])
def test_a_winner_is_one_for_calls_of_about_its_size(
    ran: Calls, rows: int, known: bool
) -> None:
    """Where the trace does not tell sizes, as of batches of `fit`."""
    ran.slow = "original"
    weights = tf.random.normal([SIZE, SIZE])

    def run(size: int, calls: int) -> str:
        given = tf.TensorSpec([None, SIZE])
        product = tf.function(lambda x: tf.matmul(tf.tanh(x), weights), [given])
        with amp.mixed_precision_scope(dtype="bfloat16", check=False):
            for _ in range(calls):
                product(tf.ones([size, SIZE]))
        PROCESS.settled.clear()  # as a new process
        return str(amp.reports()[-1].trial)

    assert run(SIZE, SOON).startswith("ended")
    assert (run(rows, 2) == contest.KNOWN) is known


def test_a_plan_that_its_check_changes_has_not_won_in_an_earlier_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the job ends, or the making of the other plan fails, right after it."""
    won = race_rules.Ruling({}, CUT.name, "ended: planted")
    monkeypatch.setattr(race_rules, "_look", lambda *_: won)
    monkeypatch.setattr(race_rules, "_hopeless", lambda *_: False)
    monkeypatch.setattr(function_checks, "AGAIN", ENOUGH)
    step = Step()
    step.train(ENOUGH // 2, check=True)
    (file,) = plan_store.path("any").parent.glob("*.json")
    assert json.loads(file.read_text())["winner"] == CUT.name

    def fails(*_: Any) -> bool:
        raise VerifyError("a fault", where="here", allowed="none", remedy="find it")

    monkeypatch.setattr(
        accuracy_check.GradientJudge, "yardstick", lambda *_: False
    )  # planted
    monkeypatch.setattr(FunctionTwins, "_replace", fails)
    with pytest.warns(RuntimeWarning, match="as it was"):
        step.train(2 * ENOUGH, check=True)
    found = json.loads(file.read_text())
    assert found["winner"] == ""
    assert found["accuracy"]["kept"]


@pytest.mark.parametrize(
    ("soon", "calls"), [(0.0, ["original", "twin"]), (math.inf, ["twin"])]
)
def test_the_next_run_starts_with_the_winner(
    ran: Calls, monkeypatch: pytest.MonkeyPatch, soon: float, calls: list[str]
) -> None:
    """With its second step, or with the first if it is ready about as soon."""
    monkeypatch.setattr(plan_store, "SOON", soon)
    ran.slow = "original"
    Step().train(SOON)
    del ran[:]
    PROCESS.settled.clear()  # as a new process
    step = Step()
    step.train(10)
    assert ran == calls
    assert int(step.count) == 10
    report = amp.reports()[-1]
    assert report.trial == contest.KNOWN
    assert None not in (report.measured32, report.measured16)  # as the first run found
    assert report.nodes_low > 0


def test_where_float32_won_it_is_contested_in_the_second_run_not_in_the_third(
    ran: Calls,
) -> None:
    """Nothing is rewritten then, nor for a second function that is just like it."""
    ran.slow = "twin"
    Step().train(SOON)
    PROCESS.settled.clear()  # as a new process
    del ran[:]
    Step().train(SOON)
    assert ran[:5] == ["original", "twin", "twin", "original", "original"]
    del ran[:]
    Step().train(10)
    assert ran == ["original", "original"]  # asked for in the first two
    PROCESS.settled.clear()
    del ran[:]
    Step().train(10)
    assert ran == ["original", "original"]
    report = amp.reports()[-1]
    assert report.nodes_low == 0
    assert "in an earlier run" in report.verdict
    assert {decision.rule for decision in report.decisions} == {"trial"}


@pytest.mark.parametrize(("digest", "before"), [("same", 2), ("another", 0)])
def test_a_race_that_the_job_cut_short_goes_on_in_the_next_run(
    ran: Calls, monkeypatch: pytest.MonkeyPatch, digest: str, before: int
) -> None:
    """Two of six rounds were run then, if the plan is the same; planted: who wins.

    A round has a call of both; the first call of both, and the first step, which is in
    float32, are not timed.
    """
    won = race_rules.Ruling({}, CUT.name, "ended: planted")
    monkeypatch.setattr(race_rules, "_look", lambda *_: won)
    monkeypatch.setattr(race_rules, "_hopeless", lambda *_: False)
    monkeypatch.setattr(stored_checks, "digest", lambda *_: "same")
    Step().train(1 + 2 + 2 * 2)
    PROCESS.settled.clear()  # as a new process
    del ran[:]
    monkeypatch.setattr(stored_checks, "digest", lambda *_: digest)
    Step().train(ENOUGH)
    assert len(ran) == 1 + 2 + 2 * (race_rules.looks(2)[0] - before)
    assert amp.reports()[-1].trial == "ended: planted"


def test_with_the_race_off_no_earlier_run_counts(ran: Calls) -> None:
    ran.slow = "twin"
    Step().train(SOON)
    del ran[:]
    PROCESS.settled.clear()
    Step().train(3, trial=False)
    assert ran == ["twin"]


def test_a_winner_that_became_slower_than_float32_loses_its_place(
    monkeypatch: pytest.MonkeyPatch, ran: Calls
) -> None:
    monkeypatch.setattr(winner_checks, "CHECKS", ())
    monkeypatch.setattr(winner_checks, "EVERY", 5)
    monkeypatch.setattr(winner_checks, "LEAST_CALLS", 0)
    ran.slow = "original"
    step = Step()
    step.train(SOON)
    (report,) = amp.reports()
    assert report.nodes_low > 0
    ran.slow = "twin"
    step.train(2 * SOON)
    (report,) = amp.reports()
    assert report.trial == "float32 became the faster: found by a check"
    assert report.nodes_low == 0
    (twins,) = [t.twins for t in PROCESS.settled.values() if t.twins is not None]
    assert twins.made_for(step.run.get_concrete_function().name) == []
    assert int(step.count) == 3 * SOON


def test_switching_off_and_on_goes_on_where_it_was(ran: Calls) -> None:
    step = Step()
    step.train(1)
    step.run()
    step.train(1)
    step.train(1)
    assert ran == ["original", "twin", "twin"]
    assert int(step.count) == 4
    assert len(amp.reports()) == 1


def test_a_race_goes_with_its_function() -> None:
    step = Step()
    step.train(3)
    name = step.run.get_concrete_function().name
    (twins,) = [t.twins for t in PROCESS.settled.values() if t.twins is not None]
    assert name in twins._functions
    del step
    gc.collect()
    assert name not in twins._functions
    assert name not in twins.proven.given


def test_threads_may_call_at_once_and_each_call_is_one_step() -> None:
    step, failed = Step(), []

    def work() -> None:
        try:
            step.train(ENOUGH // 2)
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert int(step.count) == 4 * (ENOUGH // 2)
    (report,) = amp.reports()
    assert report.trial.startswith("ended")


def test_a_twin_that_another_thread_lets_go_leaves_the_step_to_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, gone, made = Step(), [], GuardedCalls.made

    def let_go(self: GuardedCalls, context: Any, plan: str) -> Any:
        found = made(self, context, plan)
        if not gone:
            gone.append(plan)
            self._current().plans.let_all_go(context)
        return found

    monkeypatch.setattr(GuardedCalls, "made", let_go)
    step.train(3, trial=False, strict=True)
    assert gone
    assert int(step.count) == 3


def test_a_step_that_failed_in_a_twin_that_is_gone_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its error is the user's: some of the step has run."""
    count, context = tf.Variable(0), context_lib.context()
    bad: list[bool] = []
    x = tf.random.normal([SIZE, SIZE])

    def load() -> np.ndarray:
        if bad:
            name = step.get_concrete_function().name
            twins = [t.twins for t in PROCESS.settled.values() if t.twins is not None]
            for made in [made for each in twins for made in each.made_for(name)]:
                context.remove_function(made)  # as another thread does
            raise ValueError("the batch is damaged")
        return np.float32(1.0)

    @tf.function
    def step() -> tf.Tensor:
        count.assign_add(1)
        with tf.control_dependencies([count]):
            scale = tf.numpy_function(load, [], tf.float32)
        return tf.reduce_sum(tf.matmul(tf.tanh(tf.matmul(x, x)), x)) * scale

    with amp.mixed_precision_scope(dtype="bfloat16", trial=False, check=False):
        step()
        bad.append(True)
        with pytest.raises(tf.errors.OpError, match="the batch is damaged"):
            step()
    assert int(count) == 2


def fails(
    monkeypatch: pytest.MonkeyPatch,
    which: str,
    error: tf.errors.OpError,
    turn: int,
    starts: bool = False,
) -> None:
    """Lets one turn of the twin or the original fail; `starts`: not at its start."""
    original, turns = Twins.call, [0]

    def call(self: Twins, inner: FunctionCall, *args: Any) -> Any:
        def failing(name: bytes) -> Any:
            if (b"__amp" in name) == (which == "twin"):
                turns[0] += 1
                if turns[0] == turn:
                    raise error
            return inner.run(name)

        call = dataclasses.replace(
            inner, run=failing, starts=lambda name, error, more: starts
        )
        return original(self, call, *args)

    monkeypatch.setattr(Twins, "call", call)


NO_KERNEL = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")


def test_an_error_on_the_way_runs_nothing_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its text says: the twin could start, so some of it may have run."""
    fails(monkeypatch, "twin", NO_KERNEL, 1, starts=True)
    step = Step()
    with pytest.raises(tf.errors.InvalidArgumentError, match="No OpKernel"):
        step.train(2)
    step.train(5)
    assert int(step.count) == 6


@pytest.mark.parametrize("error", [NotImplementedError, ValueError])
def test_a_kernel_that_raises_in_the_middle_of_a_step_raises_once(
    error: type[Exception],
) -> None:
    """The step updates its variable and takes its batch once, and the error is told."""
    count = tf.Variable(0.0)
    batches = iter(range(100))

    def load() -> float:
        if next(batches) == 0:
            raise error("the first batch is damaged")
        return 1.0

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1.0)
        y = tf.matmul(x, x) * tf.py_function(load, [], tf.float32)
        return tf.matmul(y, x)

    x = tf.ones([64, 64])
    with amp.mixed_precision_scope(dtype="bfloat16", assignment="all"):
        with pytest.raises(tf.errors.OpError, match="the first batch is damaged"):
            step(x)
        step(x)
    assert float(count) == 2.0
    assert next(batches) == 2


def test_a_twin_without_a_kernel_is_found_out_before_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: a node of the twin on a device that is not there."""
    count = tf.Variable(0.0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1.0)
        return tf.matmul(x, x, name="product")

    honest = Prepared.made

    def misplaced(prepared: Prepared, *args: Any) -> Any:
        made = honest(prepared, *args)
        main = made.graph.main
        node = dataclasses.replace(
            main.nodes["product"], device="/job:worker/task:7", pristine=False
        )
        main = main.with_nodes({**main.nodes, "product": node})
        return dataclasses.replace(made, graph=ir.Module(main, made.graph.functions))

    monkeypatch.setattr(Prepared, "made", misplaced)
    with (
        amp.mixed_precision_scope(dtype="bfloat16", assignment="all"),
        pytest.warns(RuntimeWarning, match="runs in float32, as it was"),
    ):
        step(tf.ones([64, 64]))
    assert float(count) == 1.0


# Later ones depend on times: an entrant may be out by then.
@pytest.mark.parametrize("turn", [1, 2])
def test_a_twin_that_is_refused_gives_way_in_any_turn(
    monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    error = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")
    fails(monkeypatch, "twin", error, turn)
    step, before = Step(), twin_names()
    with pytest.warns(RuntimeWarning, match="runs in float32, as it was"):
        step.train(10, min_gain=0.01)
    assert twin_names() == before
    assert int(step.count) == 10
    (report,) = amp.reports()
    assert report.nodes_low == 0
    assert report.trial == "ended: TensorFlow refused the twin"


@pytest.mark.parametrize("fields", [{"trial": False}, {"emulate": True}])
def test_a_twin_that_is_refused_is_not_called_rewritten_where_nothing_races(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    error = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")
    fails(monkeypatch, "twin", error, 1)
    step = Step()
    with pytest.warns(RuntimeWarning, match="runs in float32, as it was"):
        step.train(4, **fields)
    assert int(step.count) == 4
    (report,) = amp.reports()
    assert not report.rewritten
    assert report.nodes_low == 0
    assert "TensorFlow refused the twin" in report.verdict


def test_what_the_original_is_refused_too_is_the_users_error_alone() -> None:
    @tf.function
    def elsewhere(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/job:worker/task:7"):
            return tf.matmul(x, x)

    with (
        amp.mixed_precision_scope(dtype="bfloat16", assignment="all"),
        pytest.raises(tf.errors.InvalidArgumentError, match="task:7") as error,
    ):
        elsewhere(tf.ones([2, 2]))
    assert error.value.__context__ is None
    (report,) = amp.reports()
    assert report.nodes_low > 0


def test_strict_raises_what_tensorflow_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    error = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")
    fails(monkeypatch, "twin", error, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="No OpKernel"):
        Step().train(2, strict=True)


def test_float32_that_does_not_fit_leaves_the_twin_at_work(
    monkeypatch: pytest.MonkeyPatch, ran: Calls
) -> None:
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    fails(monkeypatch, "original", error, 1)
    step = Step()
    with pytest.warns(RuntimeWarning, match=r"ran out of memory[\s\S]*AMP_TRIAL=0"):
        step.train(5)
    assert int(step.count) == 5
    assert ran[-1] == "twin"
    (report,) = amp.reports()
    assert report.nodes_low > 0
    assert report.trial == "ended: float32 ran out of memory"


@pytest.mark.parametrize("turn", [1, 2])
def test_a_twin_that_does_not_fit_leaves_float32_at_work(
    monkeypatch: pytest.MonkeyPatch, ran: Calls, turn: int
) -> None:
    """Also where a part of it has run: without the plugin it might have fitted."""
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    fails(monkeypatch, "twin", error, turn, starts=True)
    ran.slow = "original"
    step = Step()
    with pytest.warns(RuntimeWarning, match="OOM when allocating tensor"):
        step.train(SOON)
    assert int(step.count) == SOON
    assert ran[-1] == "original"


@pytest.mark.parametrize("fits", [True, False])
def test_a_twin_that_no_longer_fits_leaves_float32_at_work(fits: bool) -> None:
    """A proven twin is called without a question; float32 is all that is left then."""
    step, ran = Step(), []
    step.train(3, trial=False)
    name = step.run.get_concrete_function().name

    def tensorflow(context: Any, which: bytes, *args: Any) -> list[str]:
        ran.append("original" if which == name else "twin")
        if which != name or not fits:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM")
        return ["outputs"]

    call = function_hooks.HOOKS["Context.call_function"](tensorflow)
    with amp.mixed_precision_scope(dtype="bfloat16", trial=False, check=False):
        if fits:
            with pytest.warns(RuntimeWarning, match="OOM"):
                assert call(context_lib.context(), name, [], 1) == ["outputs"]
            call(context_lib.context(), name, [], 1)
        else:
            with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM"):
                call(context_lib.context(), name, [], 1)
    assert ran == ["twin", "original", *(["original"] if fits else [])]


def test_with_strict_a_twin_that_no_longer_fits_is_an_error_from_one_call() -> None:
    step, ran = Step(), []
    step.train(3, trial=False, strict=True)
    name = step.run.get_concrete_function().name

    def tensorflow(context: Any, which: bytes, *args: Any) -> None:
        ran.append(which)
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    call = function_hooks.HOOKS["Context.call_function"](tensorflow)
    fields: dict[str, Any] = {"dtype": "bfloat16", "trial": False, "check": False}
    with (
        amp.mixed_precision_scope(strict=True, **fields),
        pytest.raises(tf.errors.ResourceExhaustedError, match="OOM"),
    ):
        call(context_lib.context(), name, [], 1)
    assert len(ran) == 1
    assert ran != [name]


@pytest.mark.parametrize("races", [False, True])
def test_out_of_memory_without_a_twin_to_call_is_the_users_error_from_one_call(
    races: bool,
) -> None:
    """Operations may still be measured where float32 has won, or races a plan to be."""
    ran: list[bytes] = []

    def run(name: bytes) -> None:
        ran.append(name)
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    contest: Any = types.SimpleNamespace(under_way=races)
    calls = GuardedCalls(
        b"step",
        lambda: Current(None, contest),  # type: ignore[arg-type]
        lambda plan, why, failed: b"step",
        Once(),
        strict=False,
    )
    call: Any = types.SimpleNamespace(run=run)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM"):
        calls.call(call, None, FLOAT32)
    assert ran == [b"step"]


@pytest.mark.parametrize("which", ["twin", "original"])
def test_the_users_own_error_comes_from_one_call(
    monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    error = tf.errors.InvalidArgumentError(None, None, "the user's own")
    fails(monkeypatch, which, error, 2, starts=True)
    step = Step()
    with pytest.raises(tf.errors.InvalidArgumentError, match="the user's own"):
        step.train(10)
    before = int(step.count)
    step.train(10)
    assert int(step.count) == before + 10


def test_asynchronous_execution_is_tried_as_well(ran: Calls) -> None:
    ran.slow = "twin"
    step = Step()
    tf.config.experimental.set_synchronous_execution(False)
    try:
        step.train(SOON)
        assert int(step.count) == SOON
    finally:
        tf.test.experimental.sync_devices()
        tf.config.experimental.set_synchronous_execution(True)
    assert amp.reports()[0].trial == "ended: float32 is faster"


def test_a_plan_is_made_for_the_sizes_of_the_first_call_and_kept() -> None:
    weights = tf.random.normal([SIZE, 2 * SIZE]) / SIZE**0.5

    @tf.function(input_signature=[tf.TensorSpec([None, None, SIZE])])
    def fn(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(tf.reshape(x, [-1, SIZE]), weights)
        return tf.reshape(tf.tanh(y), [tf.shape(x)[0], -1, 2 * SIZE])

    before = len(amp.reports())
    with amp.mixed_precision_scope(dtype="bfloat16", trial=False):
        for sizes in ((8, 64), (3, 5), (0, 7)):
            x = tf.random.normal([*sizes, SIZE])
            want = fn.python_function(x)
            np.testing.assert_allclose(fn(x), want, atol=BFLOAT16)
    (report,) = amp.reports()[before:]
    assert report.made_for == {"x": [8, 64, SIZE]}
    assert report.nodes_low
    assert f"made for     sizes x [8, 64, {SIZE}]" in str(report)
    assert report.sizes_assumed == ()


def test_a_twin_that_was_refused_is_never_called_again(
    monkeypatch: pytest.MonkeyPatch, ran: Calls
) -> None:
    """Also where there is no race that could go on without it."""
    error = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")
    fails(monkeypatch, "twin", error, 1)
    step = Step()
    with pytest.warns(RuntimeWarning, match="runs in float32, as it was"):
        step.train(1, trial=False)
    step.train(2, trial=False)
    assert ran == ["twin", "original"]  # what is called from then on is not asked for


@pytest.mark.parametrize("branch", [False, True])
def test_no_two_steps_of_a_race_draw_the_same(ran: Calls, branch: bool) -> None:
    """Each form has kernels of its own, which would begin at the program's seeds.

    Also where they are in a function that is the same in all forms.
    """
    weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / 16.0)

    @tf.function
    def step(training: tf.Tensor) -> tf.Tensor:
        def draw() -> tf.Tensor:
            return tf.random.normal([SIZE, SIZE], seed=5)

        x = tf.cond(training, draw, lambda: tf.ones([SIZE, SIZE])) if branch else draw()
        with tf.GradientTape() as tape:
            y = tf.matmul(tf.tanh(tf.matmul(x, weights)), weights)
            loss = tf.reduce_mean(tf.square(y))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return x[0, 0]

    with amp.mixed_precision_scope(dtype="bfloat16"):
        drawn = [float(step(tf.constant(True))) for _ in range(20)]
    assert {"twin", "original"} <= {*ran}
    assert len({*drawn}) == len(drawn)


def test_how_long_both_took_to_their_first_call_is_kept(ran: Calls) -> None:
    ran.slow = "original"
    Step().train(SOON)
    (file,) = (pathlib.Path(os.environ["AMP_CACHE_DIR"]) / "plans").glob("*.json")
    ready = json.loads(file.read_text())["ready"]
    assert ready.keys() == {FLOAT32, CUT.name}
    assert min(ready.values()) > 0
    assert ready[FLOAT32] > 0.02  # it was made slow


def test_twins_go_with_their_function_and_wait_for_no_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They hold plans and graphs."""
    made: list[weakref.ref[FunctionTwins]] = []
    honest = FunctionTwins.__init__

    def noted(self: FunctionTwins, *args: Any) -> None:
        honest(self, *args)
        made.append(weakref.ref(self))

    monkeypatch.setattr(FunctionTwins, "__init__", noted)
    weights = tf.ones([64, 64])
    gc.collect()
    gc.disable()
    try:
        product = tf.function(lambda x: tf.matmul(x, weights))
        with amp.mixed_precision_scope(dtype="bfloat16", trial=False, check=False):
            product(tf.ones([4, 64]))
        del product
        alive = [one() is not None for one in made]
    finally:
        gc.enable()
    assert alive == [False]
