"""`Guard`: calls that go on in another form where the one whose turn it is cannot run.

A form is what can be called: a function, or a session's run. The contract is the same
for both and is written here alone; how a form is made and called is theirs, and nothing
races here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import tensorflow as tf

from amp.integration.contests.contest import Contest
from amp.integration.contests.entrants import NotMade
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime import failures

_Form = TypeVar("_Form")


@dataclasses.dataclass(frozen=True, slots=True)
class Turn(Generic[_Form]):
    """A plan whose form is called.

    Attributes:
      plan: its name; FLOAT32 if the original is called.
      form: what is called, or why there is nothing.
      begun: whether a part of it may have run, given what it raised; None if it
        computes as the original does.
      gone: whether another thread has let it go meanwhile, given that.
    """

    plan: str
    form: _Form | NotMade
    begun: Callable[[tf.errors.OpError], bool] | None = None
    gone: Callable[[tf.errors.OpError], bool] = lambda error: False


@dataclasses.dataclass(frozen=True, slots=True)
class Guard(Generic[_Form]):
    """The calls of one function or run.

    Attributes:
      what: the function or run, for warnings.
      original: gives the form in float32.
      contest: gives its race or check as it is now, None if there is none.
      drop: has a plan, which cannot run, called no more, and returns the form that is
        called instead; takes its name, why, and whether it has failed.
      strict: whether a failure is raised.
    """

    what: str
    original: Callable[[], _Form]
    contest: Callable[[], Contest | None]
    drop: Callable[[str, str, bool], _Form]
    strict: bool

    def call(
        self,
        turn: Turn[_Form],
        run: Callable[[_Form], Any],
        failed: tf.errors.OpError | None = None,
    ) -> Any:
        """Calls a plan's form; if that cannot run, another.

        1. The form of a plan fails: the original is called where `failures.gives_way`
           says so. Otherwise the error is raised.
        2. The original runs out of memory in its turn of a race or check: another form
           is called, if there is one, also if a part of the original has run. Otherwise
           that form alone would have been called, so the failure is the plugin's.
        3. The original fails otherwise: the error is the user's and is raised.
        4. A plan turns out not to be worth a form: the fastest so far is called.
        5. Another thread has let the form go meanwhile: the original is called.

        Args:
          turn: the plan whose turn it is.
          run: calls a form.
          failed: what was raised where the form was called without a question before.
        """
        plan, form, begun = turn.plan, turn.form, turn.begun
        if isinstance(form, NotMade):
            return run(self.drop(plan, form.why, False))  # Case 4
        try:
            if failed is not None and begun is not None:
                raise failed
            return run(form)
        except tf.errors.OpError as e:
            if begun is not None and turn.gone(e):
                return run(self.original())  # Case 5
            if self.strict:
                raise
            if plan == FLOAT32 and self._crowded(e):
                front = self.drop(plan, failures.TOO_LARGE, True)
                if front == self.original():
                    raise  # Case 3
                failures.warn_of_memory(self.what)
                return run(front)  # Case 2
            if begun is None or not failures.gives_way(e, functools.partial(begun, e)):
                raise  # Cases 3 and 1
            refusal = e
        outputs = run(self.original())  # Case 1; raises if the user's code is wrong
        self.drop(plan, failures.why(refusal), True)
        others = self.contest() is not None
        failures.warn_of_refusal(self.what, plan, refusal, others=others)
        return outputs

    def _crowded(self, error: tf.errors.OpError) -> bool:
        """Whether memory ran out where another form would have run alone."""
        contest = self.contest()
        under_way = contest is not None and contest.under_way
        return under_way and failures.out_of_memory(error)
