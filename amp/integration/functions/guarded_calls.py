"""`GuardedCalls`: one function's calls, which go on where what is called cannot run.

Used by `function_twins`, which says what is called, and what from then on. Plans are
made here when their turn comes; where one call goes is not decided here (`guard`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from amp.integration import fallback
from amp.integration.contests.contest import Contest
from amp.integration.contests.entrants import NotMade
from amp.integration.contests.guard import Guard, Turn
from amp.integration.functions.function_plans import FunctionPlans, Made
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime import failures
from amp.integration.runtime.function_call import FunctionCall
from amp.once import Once


class Current(NamedTuple):
    """A function's plans, and their race or the check of its winner, if there is one.

    Another thread may have others put in their place at any time.
    """

    plans: FunctionPlans
    contest: Contest | None


class GuardedCalls:
    """The calls of one function by any of its plans.

    Args:
      name: the original's.
      current: gives its plans as they are now.
      drop: has a plan, which cannot run, called no more, and returns the function that
        is called instead; takes its name, why, and whether it has failed.
      once: has each plan made once.
      strict: whether a failure is raised.
    """

    def __init__(
        self,
        name: bytes,
        current: Callable[[], Current],
        drop: Callable[[str, str, bool], bytes],
        once: Once,
        strict: bool,
    ) -> None:
        self._name, self._what = name, f"function {name.decode()}"
        self._current, self._once, self._strict = current, once, strict
        self._guard: Guard[bytes] = Guard(
            self._what, lambda: name, lambda: current().contest, drop, strict
        )

    def call(
        self,
        call: FunctionCall,
        context: Any,
        plan: str,
        failed: tf.errors.OpError | None = None,
    ) -> Any:
        """Calls the original or a twin; if that cannot run, another.

        Args:
          call: the call that the user made.
          context: TensorFlow's eager context.
          plan: the name of the plan to call, or FLOAT32.
          failed: what was raised where its twin was called without a question before.
        """
        made = None if plan == FLOAT32 else self.made(context, plan)
        turn: Turn[bytes]
        if isinstance(made, Made):
            name, twin = made.twin.name, made.twin
            begun = functools.partial(call.has_begun, name, twin=twin)
            turn = Turn(plan, name, begun, functools.partial(self._gone, plan, made))
        elif made is None:  # it is the original's turn, or another thread makes it
            turn = Turn(FLOAT32, self._name)
        else:
            turn = Turn(plan, made)
        return self._guard.call(turn, call.run, failed)

    def _gone(self, plan: str, made: Made, error: tf.errors.OpError) -> bool:
        """Whether another thread has let the functions of a plan go meanwhile."""
        missing = isinstance(error, tf.errors.NotFoundError)
        return missing and self._current().plans.known(plan) is not made

    def made(self, context: Any, plan: str) -> Made | NotMade | None:
        """The functions of a plan, made at its first turn; None while they are made.

        Where that fails, the user is warned, and it is as if not worth making.
        """
        plans, contest = self._current()
        doubt = 1.0 if contest is None else contest.doubt
        find = functools.partial(plans.known, plan)
        found = find()
        if found is not None:
            return found
        part = failures.without(self._what, plan, self._strict)
        failed = NotMade(failures.NOT_MADE)

        def make() -> Made | NotMade:
            with fallback.strictly(self._strict):
                made = fallback.attempt(
                    part, lambda: plans.make(context, plan, doubt)[0], lambda: failed
                )
            if contest is not None and isinstance(made, Made):
                contest.made(plan, made.report)
            if plans is not self._current().plans:
                plans.let_go(context, plan)  # another thread made others meanwhile
            return made

        return self._once.get((self._name, plan), find, make)
