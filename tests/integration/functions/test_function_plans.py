"""`function_plans`: which plans are worth a twin, and what becomes of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import tensorflow as tf
from rewriting import settled
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
)
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.rewrite import Foreseen, Prepared, prepare
from amp.graph_rewrite.steps import Step
from amp.integration.contests import contest, entrants
from amp.integration.contests.entrants import MEASURED, NotMade
from amp.integration.functions import function_twins
from amp.integration.functions.function_plans import FunctionPlans, Made
from amp.integration.measuring import hardware
from amp.integration.racing import race_rules
from amp.integration.racing.race_log import FLOAT32, Log
from amp.integration.runtime import definitions
from amp.loss_scaling import DynamicLossScale

pytestmark = pytest.mark.kernels

SIZE = 256  # of products that are predicted to gain in 16 bits


@pytest.fixture
def plans() -> Iterator[FunctionPlans]:
    """Of products with a tanh between them, which is worth 16 bits as well."""
    with amp.mixed_precision_scope(dtype="bfloat16"):
        pass  # the hooks are in place: what is traced has its shapes
    weights = tf.ones([512, 512])

    @tf.function
    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.tanh(tf.matmul(x, weights)), weights)

    concrete = fn.get_concrete_function(tf.ones([512, 512]))
    module = definitions.read(context_lib.context(), concrete.name.decode())
    policy = settled(CPU_AMX, assignment="cost")
    made = FunctionPlans(concrete.name, prepare(module, policy), {})
    yield made
    made.let_all_go(context_lib.context())


def made(plans: FunctionPlans, plan: str, doubt: float = 1.0) -> Made | NotMade:
    return plans.make(context_lib.context(), plan, doubt)[0]


def why_not(found: Made | NotMade) -> str:
    return found.why if isinstance(found, NotMade) else ""


def test_what_was_made_is_registered_until_it_is_let_go(plans: FunctionPlans) -> None:
    context = context_lib.context()
    assert plans.function(CUT.name) == plans.original
    found = made(plans, CUT.name)
    assert isinstance(found, Made)
    assert plans.known(CUT.name) is found
    assert plans.function(CUT.name) == found.twin.name != plans.original
    assert all(context.has_function(name) for name in plans.functions())
    names = plans.functions()
    plans.let_go(context, CUT.name)
    assert not any(context.has_function(name) for name in names)
    assert plans.function(CUT.name) == plans.original


class Layers:
    """A step of forty products, each of which has a gradient to scale and check."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.weights = [tf.Variable(0.2 * tf.eye(size)) for _ in range(40)]
        self.run = tf.function(self._step)

    def _step(self) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.ones([self.size, self.size])
            for each in self.weights:
                y = tf.tanh(tf.matmul(y, each))
            loss = tf.reduce_mean(y**2)
        gradients = tape.gradient(loss, self.weights)
        for each, gradient in zip(self.weights, gradients, strict=True):
            each.assign_sub(0.01 * gradient)
        return loss


@pytest.mark.parametrize("rule", ["auto", DynamicLossScale()])
def test_a_step_races_without_a_scale_that_nobody_asked_for(rule: object) -> None:
    """The checks of forty small layers are a third of a step in float32."""
    step = Layers(16)
    policy = {"dtype": "float16", "loss_scale": rule, "check": False}
    with amp.mixed_precision_scope(**policy, strict=True, trial=True):
        for _ in range(3):
            step.run()
    (report,) = amp.reports()
    assert report.nodes_low == 0
    assert ("predicted" in report.verdict) is (rule == "auto"), report.verdict


@pytest.mark.parametrize(
    ("fields", "races"), [({}, True), ({"loss_scale": DynamicLossScale()}, False)]
)
def test_the_users_own_float32_races_whatever_it_is_predicted_to_gain(
    fields: dict[str, Any], races: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody asked for the scale that the original has. Its gain is told by it.

    Planted: 16 bits are faster than the original, and not than the user's float32.
    """
    fast = dataclasses.replace(
        CPU_AMX, native=("float16",), speed={"float16": {"product": 16.0}}
    )
    monkeypatch.setattr(hardware, "device", lambda: fast)
    monkeypatch.setattr(function_twins, "OTHERS", (REWRITTEN,))
    times = {CUT.name: 0.9, FLOAT32: 1.0, REWRITTEN.name: 0.8}

    def judged(log: Log, running: Sequence[str]) -> race_rules.Ruling:
        if not all(map(log.times, running)):
            return race_rules.Ruling()
        slower = max(running, key=times.__getitem__)
        return race_rules.Ruling({slower: "slower"})

    rules = race_rules.Rules(judged, race_rules.cut_short)
    monkeypatch.setattr(race_rules, "RACE", rules)
    policy = {"dtype": "float16", "check": False, "trial": True, "min_gain": 0.3}
    step = Layers(SIZE)
    with amp.mixed_precision_scope(**policy, **fields):
        for _ in range(20):
            step.run()
    report = amp.reports()[-1]
    plans = {plan.name: plan for plan in report.plans}
    assert plans.keys() == {CUT.name, FLOAT32} | ({REWRITTEN.name} if races else set())
    assert plans[REWRITTEN.name if races else CUT.name].fate == "won"
    own = plans[REWRITTEN.name if races else FLOAT32]
    assert report.measured32 == own.seconds


def test_the_users_own_float32_runs_where_16_bits_gain_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the scale is predicted to cost less than a gain that the user asks for."""
    slow = dataclasses.replace(CPU_AMX, native=("float16",), speed={})
    monkeypatch.setattr(hardware, "device", lambda: slow)
    step = Layers(SIZE)
    with amp.mixed_precision_scope(
        dtype="float16", check=False, trial=True, min_gain=0.3
    ):
        for _ in range(4):
            step.run()
    report = amp.reports()[-1]
    assert report.nodes_low == 0
    assert report.trial == contest.UNDER_WAY


@pytest.mark.parametrize("trial", [True, False])
def test_new_lengths_compile_no_clusters_where_nothing_races(
    trial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "device", lambda: CPU_AMX)

    @tf.function(input_signature=[tf.TensorSpec([None, None, 512])])
    def fn(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, tf.ones([512, 512]))
        z = 0.5 * y * (1.0 + tf.tanh(0.8 * (y + 0.04 * y * y * y)))
        return tf.matmul(z, tf.ones([512, 512]))

    with amp.mixed_precision_scope(dtype="bfloat16", trial=trial, check=False):
        fn(tf.ones([8, 512, 512]))
    report = amp.reports()[-1]
    assert report.nodes_low
    assert bool(report.clusters) is trial


@pytest.mark.parametrize("lost", [False, True])
def test_the_same_plan_is_not_made_twice(
    plans: FunctionPlans, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Nor once the first has lost its race."""
    first = made(plans, CUT.name)
    assert isinstance(first, Made)
    if lost:
        plans.released(CUT.name)
    monkeypatch.setattr(Prepared, "foreseen", lambda *_: Foreseen(0.0, first.low))
    assert "the same as another" in why_not(made(plans, EVERYTHING.name))
    assert "no clusters either" in why_not(made(plans, UNCLUSTERED.name))


@pytest.mark.parametrize("lost", [False, True])
def test_a_plan_that_is_predicted_to_be_much_slower_is_not_made(
    plans: FunctionPlans, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Nor once the cheapest has lost its race."""
    first = made(plans, CUT.name)
    assert isinstance(first, Made)
    if lost:
        plans.released(CUT.name)
    assert first.report.measured_share < entrants.MEASURED_PART
    limit = entrants.CLOSE_IF_MODELLED * first.report.seconds16
    slow = Foreseen(1.2 * limit, {})
    monkeypatch.setattr(Prepared, "foreseen", lambda *_: slow)
    assert "predicted to take 1.80 times" in why_not(made(plans, PRODUCTS.name))
    # Where predictions were wrong by more, it may be as fast.
    assert isinstance(made(plans, PRODUCTS.name, 1.3), Made)


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("gain", [0.03, 0.0])
def test_where_16_bits_gain_nothing_other_kernels_may(
    plans: FunctionPlans, monkeypatch: pytest.MonkeyPatch, stepped: bool, gain: float
) -> None:
    """And they are no entrant where nothing is to be gained by them."""
    prepared = plans.prepared
    assert prepared is not None
    report = dataclasses.replace(prepared.made(CUT).report, seconds32=1.0)
    foreseen = Foreseen(1.0 - gain, {}, 1.0)
    monkeypatch.setattr(Prepared, "foreseen", lambda *_: foreseen)
    monkeypatch.setattr(Prepared, "spares", True)
    monkeypatch.setattr(FunctionPlans, "worth_a_race", lambda *_: "doubtful")
    plans = FunctionPlans(b"f", prepared, {})
    assert plans.spares is (gain > 0)
    otherwise = "doubtful" if stepped else ""
    plan = REWRITTEN.name if gain else otherwise
    assert plans.instead(report, stepped=stepped) == plan


def test_after_the_race_nothing_more_is_made(plans: FunctionPlans) -> None:
    made(plans, CUT.name)
    plans.settle()
    assert "the race was over" in why_not(made(plans, PRODUCTS.name))


def test_what_was_found_by_measuring_is_kept_until_it_has_raced(
    plans: FunctionPlans,
) -> None:
    """A check of the winner may end meanwhile, after which no other plan is made."""
    assert plans.prepared is not None
    plans.reprice(plans.prepared)
    plans.settle()
    assert plans.prepared is None
    assert isinstance(made(plans, MEASURED.name), Made)
    plans.settle()
    assert plans.repriced is None


def test_a_plan_that_races_is_checked_once_it_has_won(
    plans: FunctionPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not again if it won in an earlier run of the job."""

    def planted() -> None:
        raise VerifyError("a fault", where="here", allowed="none", remedy="find it")

    monkeypatch.setattr(rewrite, "SECOND", (Step("planted", planted, ()),))
    monkeypatch.setattr(FunctionPlans, "_why_not", lambda *_: "")
    assert isinstance(made(plans, CUT.name), Made)
    with pytest.raises(VerifyError, match="a fault"):
        plans.check(CUT.name)
    plans.check(CUT.name)  # was made
    assert plans.prepared is not None
    again = FunctionPlans(plans.original, plans.prepared, {}, proven=CUT.name)
    assert isinstance(made(again, CUT.name), Made)
    again.check(CUT.name)
    made(again, PRODUCTS.name)
    with pytest.raises(VerifyError, match="a fault"):
        again.check(PRODUCTS.name)
    again.let_all_go(context_lib.context())


def test_a_check_of_the_winner_that_is_interrupted_is_still_to_be_made(
    plans: FunctionPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = VerifyError("a fault", where="here", allowed="none", remedy="find it")
    found: list[BaseException] = [fault, KeyboardInterrupt()]

    def planted() -> None:
        raise found.pop()

    monkeypatch.setattr(rewrite, "SECOND", (Step("planted", planted, ()),))
    monkeypatch.setattr(FunctionPlans, "_why_not", lambda *_: "")
    assert isinstance(made(plans, CUT.name), Made)
    with pytest.raises(KeyboardInterrupt):
        plans.check(CUT.name)
    with pytest.raises(VerifyError, match="a fault"):
        plans.check(CUT.name)


def test_a_plan_that_does_not_race_is_checked_when_it_is_made(
    plans: FunctionPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted() -> None:
        raise VerifyError("a fault", where="here", allowed="none", remedy="find it")

    monkeypatch.setattr(rewrite, "SECOND", (Step("planted", planted, ()),))
    monkeypatch.setattr(plans, "_race", False)
    with pytest.raises(VerifyError, match="a fault"):
        made(plans, CUT.name)
