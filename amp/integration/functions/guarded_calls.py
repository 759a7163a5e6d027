"""`GuardedCalls`: one function's calls, which go on where what is called cannot run.

Used by `function_twins`, which says what is called, and what from then on. Only where
one call goes is decided here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from amp.integration import fallback
from amp.integration.contests.contest import Contest
from amp.integration.contests.entrants import NotMade
from amp.integration.functions.function_plans import FunctionPlans, Made
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime import failures
from amp.integration.runtime.function_call import FunctionCall
from amp.loss_scaling.once import Once


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
        self._current, self._drop = current, drop
        self._once, self._strict = once, strict

    def call(
        self,
        call: FunctionCall,
        context: Any,
        plan: str,
        failed: tf.errors.OpError | None = None,
    ) -> Any:
        """Calls the original or a twin; if that cannot run, another.

        1. A twin fails: the original is called where `failures.gives_way` says so.
           Otherwise the error is raised.
        2. The original runs out of memory in its turn of a race or check: a twin is
           called, if there is one, also if a part of the original has run. Otherwise
           the twin alone would have been called, so the failure is the plugin's.
        3. The original fails otherwise: the error is the user's and is raised.
        4. A plan turns out not to be worth a twin: the fastest so far is called.
        5. Another thread has let the twin go meanwhile: the original is called.

        Args:
          call: the call that the user made.
          context: TensorFlow's eager context.
          plan: the name of the plan to call, or FLOAT32.
          failed: what was raised where its twin was called without a question before.
        """
        made = None if plan == FLOAT32 else self.made(context, plan)
        if isinstance(made, NotMade):
            return call.run(self._drop(plan, made.why, False))  # Case 4
        try:
            if failed is not None and made is not None:
                raise failed
            return call.run(self._name if made is None else made.twin.name)
        except tf.errors.OpError as e:
            plans, contest = self._current()
            missing = isinstance(e, tf.errors.NotFoundError)
            if made is not None and missing and plans.known(plan) is not made:
                return call.run(self._name)  # Case 5
            if self._strict:
                raise
            memory = isinstance(e, tf.errors.ResourceExhaustedError)
            if made is None and memory and contest is not None and contest.under_way:
                front = self._drop(plan, failures.TOO_LARGE, True)
                if front == self._name:
                    raise  # Case 3
                failures.warn_of_memory(self._what)
                return call.run(front)  # Case 2
            if made is None or not failures.gives_way(
                e, functools.partial(call.has_begun, made.twin.name, e, made.twin)
            ):
                raise  # Cases 3 and 1
            refusal = e
        outputs = call.run(self._name)  # Case 1; raises too if the user's code is wrong
        front = self._drop(plan, failures.REFUSED, True)
        failures.warn_of_refusal(self._what, plan, refusal, others=front != self._name)
        return outputs

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
