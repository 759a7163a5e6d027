"""`Trial`: fair turns, honest times, and no verdict without evidence."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
import tensorflow as tf

from amp.graph_rewrite.report import TrialOutcome
from tensorflow.python.eager import context as context_lib
from amp.integration.functions import trial as trial_lib
from amp.integration.functions.trial import LEAST, MOST, Trial, twin_is_faster, why_not
from amp.policy import Policy

pytestmark = pytest.mark.kernels

FIRST_CALLS = 2  # one of each, not timed


class Machine:
    """Runs functions that take the time they are told to, on a clock of its own."""

    def __init__(self, seconds: Callable[[bytes, int], float]) -> None:
        self.now = 0.0
        self.calls: list[bytes] = []
        self.outcomes: list[TrialOutcome] = []
        self.seconds = seconds
        self.trial = Trial(
            b"f", b"f_twin", lambda _, o: self.outcomes.append(o), lambda: self.now
        )

    def run(self, name: bytes) -> str:
        self.now += self.seconds(name, len(self.calls))
        self.calls.append(name)
        return f"result of {name.decode()}"

    def calls_to_end(self) -> int:
        while not self.outcomes:
            assert self.trial.call(self.run).startswith("result of f")
            assert len(self.calls) <= 2 * (1 + MOST), "the trial does not end"
        return len(self.calls)


def constant(original: float, twin: float) -> Callable[[bytes, int], float]:
    return lambda name, _: twin if name == b"f_twin" else original


def noisy(
    original: float, twin: float, seed: int, spread: float = 0.05, slow: float = 0.0
) -> Callable[[bytes, int], float]:
    """Normal noise of a relative `spread`; a fraction `slow` takes up to 10 times."""
    draw = random.Random(seed)

    def seconds(name: bytes, _: int) -> float:
        base = twin if name == b"f_twin" else original
        delay = draw.uniform(2, 10) if draw.random() < slow else 1
        return base * delay * max(0.5, draw.gauss(1, spread))

    return seconds


def share_of_twin(ratio: float, **noise: float) -> float:
    """How often the twin wins when it is `ratio` times as fast; 100 trials."""
    won = 0
    for seed in range(100):
        machine = Machine(noisy(ratio, 1.0, seed, **noise))
        machine.calls_to_end()
        won += machine.outcomes[0].twin
    return won / 100


def test_a_faster_twin_is_known_after_eight_calls() -> None:
    machine = Machine(constant(original=1.5, twin=1.0))
    assert machine.calls_to_end() == FIRST_CALLS + 2 * LEAST == 8
    assert machine.outcomes == [
        TrialOutcome(True, 1.5, 1.0, 2 * LEAST, "ended: 16 bits are faster")
    ]


def test_against_the_prediction_it_takes_more_evidence() -> None:
    machine = Machine(constant(original=1.0, twin=1.5))
    assert 8 < machine.calls_to_end() <= 12
    (outcome,) = machine.outcomes
    assert not outcome.twin
    assert outcome.text == "ended: float32 is faster"
    assert (outcome.seconds32, outcome.seconds16) == (1.0, 1.5)
    assert outcome.timed == len(machine.calls) - FIRST_CALLS


def test_once_ended_the_faster_runs_and_nobody_is_told_again() -> None:
    machine = Machine(constant(original=1.0, twin=1.5))
    machine.calls_to_end()
    machine.calls.clear()
    for _ in range(5):
        machine.trial.call(machine.run)
    assert machine.calls == [b"f"] * 5
    assert len(machine.outcomes) == 1


@pytest.mark.parametrize("slow", [0.0, 0.05])
@pytest.mark.statistical
def test_noise_and_slow_calls_do_not_hide_a_difference(slow: float) -> None:
    # 10 % is two standard deviations of the noise; simulated 0.5 % wrong or undecided.
    assert share_of_twin(1.1, slow=slow) >= 0.97
    assert share_of_twin(1 / 1.1, slow=slow) <= 0.03


def test_a_first_call_that_compiles_is_not_counted() -> None:
    def seconds(name: bytes, number: int) -> float:
        first = 100.0 if number < FIRST_CALLS else 0.0
        return first + constant(original=1.5, twin=1.0)(name, number)

    machine = Machine(seconds)
    machine.calls_to_end()
    assert machine.calls[:2] == [b"f_twin", b"f"]
    assert machine.outcomes[0].seconds16 == pytest.approx(1.0)


def test_equally_fast_is_left_to_the_prediction() -> None:
    machine = Machine(constant(original=1.0, twin=1.0))
    assert machine.calls_to_end() == 2 * (1 + MOST)
    (outcome,) = machine.outcomes
    assert outcome.twin
    assert outcome.text == "ended without certainty: the two are about equally fast"
    assert outcome.timed == 2 * MOST


@pytest.mark.parametrize("period", [2, 3, 4])
@pytest.mark.parametrize("phase", [0, 1])
def test_a_step_that_is_long_every_so_often_condemns_no_twin(
    period: int, phase: int
) -> None:
    def seconds(name: bytes, number: int) -> float:
        return 3.0 if number % period == phase else 1.0

    machine = Machine(seconds)
    machine.calls_to_end()
    assert machine.outcomes[0].twin


def test_drift_falls_on_both() -> None:
    def seconds(name: bytes, number: int) -> float:
        return constant(original=1.0, twin=1.2)(name, number) * 0.995**number

    machine = Machine(seconds)
    machine.calls_to_end()
    assert not machine.outcomes[0].twin


def test_each_pair_of_calls_has_one_of_each() -> None:
    machine = Machine(constant(original=1.0, twin=1.0))
    machine.calls_to_end()
    pairs = list(zip(machine.calls[::2], machine.calls[1::2], strict=True))
    assert {frozenset(pair) for pair in pairs} == {frozenset([b"f", b"f_twin"])}
    assert len(set(pairs[:4])) == 2  # and not always in one order


def test_the_last_word_takes_less_evidence_and_in_doubt_is_the_prediction() -> None:
    spread = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    later = [time + 2.5 for time in spread]
    assert twin_is_faster(spread, later) is None
    assert twin_is_faster(spread, later, last=True) is False
    assert twin_is_faster(later, spread, last=True) is True
    assert twin_is_faster(spread, spread, last=True) is True
    assert twin_is_faster([1.0] * 60, [2.0] * (LEAST - 1)) is None


def test_evidence_is_the_rank_sum_test() -> None:
    from scipy import stats

    draw = random.Random(3)
    for size in (3, 5, 12, 50):
        a = [draw.gauss(1.0, 0.1) for _ in range(size)]
        b = [draw.gauss(1.05, 0.1) for _ in range(size)]
        found = stats.norm.sf(trial_lib._evidence(a, b))
        want = stats.mannwhitneyu(a, b, alternative="less", method="asymptotic")
        assert found == pytest.approx(want.pvalue)


def test_calls_in_two_threads_run_at_once_and_are_not_timed() -> None:
    outcomes: list[TrialOutcome] = []
    trial = Trial(b"f", b"f_twin", lambda _, o: outcomes.append(o), lambda: 0.0)
    both = threading.Barrier(2, timeout=30)

    def work() -> None:
        for _ in range(1 + MOST):
            trial.call(lambda name: both.wait())  # returns only if both are inside

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken
    (outcome,) = outcomes
    assert (outcome.timed, outcome.seconds32, outcome.seconds16) == (0, None, None)
    assert outcome.twin
    assert outcome.text == "ended as predicted: too few calls could be timed alone"


def test_a_call_inside_a_call_is_not_timed_and_times_neither() -> None:
    machine = Machine(constant(original=1.5, twin=1.0))
    for _ in range(FIRST_CALLS):
        machine.trial.call(machine.run)
    machine.trial.call(lambda name: machine.trial.call(machine.run))
    assert not any(machine.trial._times.values())
    machine.calls_to_end()
    assert machine.outcomes[0].seconds32 == 1.5


def test_a_call_that_raises_is_passed_on_and_not_counted() -> None:
    machine = Machine(constant(original=1.5, twin=1.0))

    def broken(name: bytes) -> None:
        machine.now += 100.0
        raise ValueError("the user's own")

    for _ in range(5):
        with pytest.raises(ValueError, match="the user's own"):
            machine.trial.call(broken)
    machine.calls_to_end()
    (outcome,) = machine.outcomes
    assert (outcome.seconds32, outcome.seconds16) == (1.5, 1.0)


def test_the_clock_waits_for_what_was_asked_of_the_devices() -> None:
    @tf.function
    def slow() -> tf.Tensor:
        return tf.numpy_function(lambda: time.sleep(0.3) or 1.0, [], tf.float64)

    def seconds(end: Callable[[], float]) -> float:
        start = trial_lib.synchronised_clock()
        slow()
        return end() - start

    seconds(trial_lib.synchronised_clock)
    assert seconds(time.perf_counter) >= 0.3  # a CPU's call returns when it is done
    tf.config.experimental.set_synchronous_execution(False)
    try:
        assert min(seconds(time.perf_counter) for _ in range(3)) < 0.3
        assert seconds(trial_lib.synchronised_clock) >= 0.3
    finally:
        tf.test.experimental.sync_devices()
        tf.config.experimental.set_synchronous_execution(True)


@pytest.mark.parametrize(
    ("fields", "compiled", "why"),
    [
        ({}, False, ""),
        ({}, True, "XLA compiles"),
        ({"trial": True}, True, ""),
        ({"trial": False}, False, "AMP_TRIAL=0"),
        ({"assignment": "all"}, False, "assignment='all'"),
        ({"assignment": "all", "trial": True}, False, ""),
        ({"emulate": True}, False, "emulation"),
        ({"emulate": True, "trial": True}, False, "emulation"),
    ],
)
def test_a_trial_is_on_where_compiling_twice_is_cheap(
    fields: dict[str, object], compiled: bool, why: str
) -> None:
    found = why_not(Policy(dtype="bfloat16", **fields), compiled)
    assert (why in found) if why else found == ""


def test_deterministic_operations_and_several_workers_have_no_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = Policy(dtype="bfloat16")
    with monkeypatch.context() as patch:
        config = trial_lib.config_lib
        patch.setattr(config, "is_op_determinism_enabled", lambda: True)
        assert "deterministic" in why_not(policy, False)
        assert why_not(Policy(dtype="bfloat16", trial=True), False) == ""
    with monkeypatch.context() as patch:
        patch.setattr(
            context_lib.context(), "_collective_ops_server_def", object()
        )
        assert "several workers" in why_not(policy, False)
    with monkeypatch.context() as patch:
        patch.setattr(tf.config.optimizer, "get_jit", lambda: "autoclustering")
        assert "XLA" in why_not(policy, False)
    assert why_not(policy, False) == ""
