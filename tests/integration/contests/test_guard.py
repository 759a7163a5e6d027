"""`guard`: a call whose form cannot run goes on in another, or is the user's error."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any, cast

import pytest
import tensorflow as tf

from amp.graph_rewrite.assign.nominee import CUT
from amp.integration.contests.contest import Contest
from amp.integration.contests.entrants import NotMade
from amp.integration.contests.guard import Guard, Turn
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime import failures

FULL = tf.errors.ResourceExhaustedError(None, None, "OOM")
WRONG = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")
TWIN = Turn(CUT.name, "twin", lambda error: False)


@dataclasses.dataclass
class Calls:
    """Forms, of which some raise; what was called, and what was dropped.

    Attributes:
      raises: what a form raises.
      front: what a drop leaves.
      raced: whether a race is under way; None for no race and no check.
    """

    raises: dict[str, tf.errors.OpError] = dataclasses.field(default_factory=dict)
    front: str = "original"
    raced: bool | None = True
    strict: bool = False
    called: list[str] = dataclasses.field(default_factory=list)
    dropped: list[tuple[str, str, bool]] = dataclasses.field(default_factory=list)

    @dataclasses.dataclass
    class Race:
        under_way: bool

    def run(self, form: str) -> str:
        self.called.append(form)
        if form in self.raises:
            raise self.raises[form]
        return f"outputs of {form}"

    def drop(self, plan: str, why: str, failed: bool) -> str:
        self.dropped.append((plan, why, failed))
        if self.front == "original":
            self.raced = None
        return self.front

    def contest(self) -> Contest | None:
        raced = self.raced
        return None if raced is None else cast(Contest, self.Race(raced))

    def make(self, turn: Turn[str], failed: tf.errors.OpError | None = None) -> Any:
        guard = Guard(
            "function f", lambda: "original", self.contest, self.drop, self.strict
        )
        return guard.call(turn, self.run, failed)


@pytest.fixture(autouse=True)
def told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def test_a_form_that_runs_is_called_once_and_nothing_is_said(
    told: list[warnings.WarningMessage],
) -> None:
    calls = Calls()
    assert calls.make(TWIN) == "outputs of twin"
    assert (calls.called, calls.dropped, told) == (["twin"], [], [])


@pytest.mark.parametrize(
    ("error", "why"), [(WRONG, failures.REFUSED), (FULL, failures.NO_MEMORY)]
)
@pytest.mark.parametrize(
    ("front", "says"), [("another", "races without"), ("original", "in float32")]
)
def test_the_original_runs_where_a_twin_fails_before_it_begins(
    error: tf.errors.OpError,
    why: str,
    front: str,
    says: str,
    told: list[warnings.WarningMessage],
) -> None:
    calls = Calls({"twin": error}, front)
    assert calls.make(TWIN) == "outputs of original"
    assert calls.called == ["twin", "original"]
    assert calls.dropped == [(CUT.name, why, True)]
    assert [says in str(one.message) for one in told] == [True]


def test_a_twin_that_has_begun_is_not_made_up_for() -> None:
    """Variables might be updated twice."""
    calls = Calls({"twin": WRONG})
    with pytest.raises(tf.errors.InvalidArgumentError):
        calls.make(Turn(CUT.name, "twin", lambda error: True))
    assert (calls.called, calls.dropped) == (["twin"], [])


def test_an_error_that_the_original_raises_too_is_the_users() -> None:
    calls = Calls({"twin": WRONG, "original": WRONG})
    with pytest.raises(tf.errors.InvalidArgumentError):
        calls.make(TWIN)
    assert calls.dropped == []


def test_a_twin_takes_over_where_float32_runs_out_of_memory_in_its_turn(
    told: list[warnings.WarningMessage],
) -> None:
    calls = Calls({"original": FULL}, front="twin")
    assert calls.make(Turn(FLOAT32, "original")) == "outputs of twin"
    assert calls.dropped == [(FLOAT32, failures.TOO_LARGE, True)]
    assert ["in float32" in str(one.message) for one in told] == [True]


@pytest.mark.parametrize(
    ("error", "raced", "front"),
    [
        (FULL, None, "twin"),  # without a race it would have run too
        (FULL, False, "twin"),
        (FULL, True, "original"),  # nothing else is left
        (WRONG, True, "twin"),
    ],
)
def test_what_float32_raises_else_is_raised(
    error: tf.errors.OpError, raced: bool | None, front: str
) -> None:
    calls = Calls({"original": error}, front, raced)
    with pytest.raises(type(error)):
        calls.make(Turn(FLOAT32, "original"))
    assert calls.called == ["original"]


def test_a_form_that_computes_as_the_original_has_its_error_raised() -> None:
    calls = Calls({"same": FULL})
    with pytest.raises(tf.errors.ResourceExhaustedError):
        calls.make(Turn(CUT.name, "same"))
    assert (calls.called, calls.dropped) == (["same"], [])


def test_a_plan_that_is_not_worth_making_leaves_its_turn_to_the_fastest() -> None:
    calls = Calls(front="another")
    made = NotMade("predicted slower")
    assert calls.make(Turn(CUT.name, made)) == "outputs of another"
    assert calls.dropped == [(CUT.name, "predicted slower", False)]


@pytest.mark.parametrize("strict", [False, True])
def test_the_original_is_called_where_the_form_was_let_go_meanwhile(
    strict: bool,
) -> None:
    calls = Calls({"twin": WRONG}, strict=strict)
    gone = dataclasses.replace(TWIN, gone=lambda error: True)
    assert calls.make(gone) == "outputs of original"
    assert calls.dropped == []


@pytest.mark.parametrize("turn", [TWIN, Turn(FLOAT32, "original")])
def test_strictly_every_failure_is_raised(turn: Turn[str]) -> None:
    calls = Calls({"twin": FULL, "original": FULL}, front="another", strict=True)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        calls.make(turn)
    assert len(calls.called) == 1


def test_a_form_that_failed_without_a_question_is_not_called_again() -> None:
    calls = Calls()
    assert calls.make(TWIN, failed=FULL) == "outputs of original"
    assert calls.dropped == [(CUT.name, failures.NO_MEMORY, True)]
