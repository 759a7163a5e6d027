"""`Twins`: makes the twin of a function at its first call, and decides which runs.

A *twin* is the rewritten function. It is registered in TensorFlow's runtime beside the
original, which is never changed, and takes and returns the same tensors, so that at any
call either may run. `function_hooks` asks `Twins` at each call which to run.

No hook and no graph algorithm is here: functions are read and written by `definitions`,
and rewritten by `graph_rewrite`.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.assign.nominee import CUT, Nominee
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.normalize.sizes import SizesAtCall
from amp.graph_rewrite.report import Report, TrialOutcome
from amp.graph_rewrite.rewrite import Prepared
from amp.integration import fallback, messages
from amp.integration.functions import (
    definitions,
    gradient_check,
    shape_inference,
    twin_making,
)
from amp.integration.functions.call_devices import CallDevices
from amp.integration.functions.checks import AGAIN, Checks, Refused
from amp.integration.functions.function_call import FunctionCall
from amp.integration.functions.function_reports import FunctionReports
from amp.integration.functions.gradient_check import Checked, GradientCheck
from amp.integration.functions.keep_patterns import KeepPatterns
from amp.integration.functions.trial import UNDER_WAY, Trial, why_not
from amp.integration.functions.twin_making import MadeTwin
from amp.integration.process import PROCESS
from amp.loss_scaling.once import Once
from amp.policy import Policy


class Twins:
    """The twins made under one policy, by the names of their originals.

    For each function that was called there is one of these states: its gradients are to
    be compared (`_checks`); a trial is under way (`_trials`); it is decided what to
    call (`proven`); or its twin was made and has not returned yet. A function without
    anything to convert is its own twin.

    Args:
      settled: the policy, with every "auto" settled, and the device.

    Attributes:
      devices: on which devices a call of a function runs its original.
      proven: by a function's name, the name to call from now on without any question.
      keep_patterns: which `keep` patterns of the policy matched a node so far.
    """

    def __init__(self, settled: Resolution) -> None:
        assert settled.policy is not None
        self.settled = settled
        self.devices = CallDevices(settled)
        self.proven: dict[bytes, bytes] = {}
        self._policy: Policy = settled.policy
        self._twin: dict[bytes, bytes] = {}
        self._made: dict[bytes, MadeTwin] = {}
        self._trials: dict[bytes, Trial] = {}
        self._checked: set[bytes] = set()  # once, and to be checked again
        self._reports = FunctionReports(self._policy)
        self._checks = Checks(self._policy.strict)
        self._once = Once()
        # Held for a few lines and by no finalizer. Reentrant: the garbage collector may
        # run a program's `__del__`, which may call a function, at any of them.
        self._lock = threading.RLock()
        self.keep_patterns = KeepPatterns(self._policy.keep)
        PROCESS.twins.add(self)

    def call(self, call: FunctionCall, context: Any, name: bytes) -> Any:
        """Makes one call of a function that has no entry in `proven` yet.

        The first call makes the twin, and is a step of the check if there is one. Then,
        if there is a trial, a call is a turn of it. Otherwise the twin is called, and
        gets its entry in `proven` if it returns and no check is to come.

        Args:
          call: the call that the user made.
          context: TensorFlow's eager context.
          name: the original's name.

        Returns:
          The outputs of the call.
        """
        find = functools.partial(self._twin.get, name)
        twin = self._once.get(name, find, lambda: self._make(context, name, call))
        if twin is None:  # the call comes from within the making of this very twin
            return call.run(name)
        if twin != name and self._checks.waits(name):
            record = functools.partial(self._record, call, name)
            step = dataclasses.replace(call, record=record)
            done, outputs, checked = self._checks.call(name, step)
            if done:
                return outputs
            if checked is not None:
                self._take_in(context, name, checked)
                twin = self._twin[name]
        if twin == name:
            self._prove(name, name)
            return call.run(name)
        trial = self._trials.get(name)
        guarded = functools.partial(self._guarded, call, name, twin)
        if trial is not None:
            return trial.call(guarded)
        outputs = guarded(twin)
        if not self._checks.waits(name) and name not in self.proven:
            self._prove(name, twin)
        return outputs

    def _guarded(
        self, call: FunctionCall, name: bytes, twin: bytes, which: bytes
    ) -> Any:
        """Calls the twin or the original; if that fails to start, the other.

        1. The twin fails: the original is called if nothing of the twin has run.
           Otherwise variables might be updated twice, so the error is raised.
        2. The original runs out of memory in its turn of a trial: the twin is called,
           also if a part of the original has run. Without the trial the twin alone
           would have been called, so the failure is the plugin's.
        3. The original fails otherwise: the error is the user's and is raised.

        Args:
          call: the call that the user made.
          name: the original's name.
          twin: the twin's name.
          which: the one of the two to call first.

        Returns:
          The outputs of the call that succeeded.
        """
        try:
            return call.run(which)
        except tf.errors.OpError as e:
            if self._policy.strict:
                raise
            # Case 2.
            if which == name and isinstance(e, tf.errors.ResourceExhaustedError):
                self._settle(name, twin, "ended: float32 ran out of memory")
                _warn_of_memory(name.decode())
                return call.run(twin)
            if which == name or call.has_begun(twin, e, self._made.get(name)):
                raise  # Cases 3 and 1
            refusal = e
        outputs = call.run(name)  # Case 1; raises too if the user's code is at fault
        self._settle(name, name, "ended: TensorFlow refused the twin")
        fallback.failed(as_it_was(f"function {name.decode()}").says, refusal)
        return outputs

    def _record(self, call: FunctionCall, name: bytes, which: bytes, more: int) -> Any:
        """Calls the function that also returns what the original takes from elsewhere.

        Args:
          call: the call that the user made.
          name: the original's name.
          which: the one to call.
          more: how many results it has more than the original.

        Raises:
          Refused: TensorFlow cannot start it; nothing has run.
        """
        try:
            return call.record(which, more)
        except tf.errors.OpError as e:
            begun = call.has_begun(which, e, self._made.get(name), more)
            if self._policy.strict or begun:
                raise
            says = f"gradients of function {name.decode()} are not compared"
            fallback.failed(says, e)
            raise Refused from e

    def _settle(self, name: bytes, which: bytes, text: str) -> None:
        """Has `which` called from now on, and ends the trial if there is one.

        Args:
          name: the original's name.
          which: the name to call, the original's or the twin's.
          text: says in the report how the trial ended.
        """
        with self._lock:
            trial = self._trials.get(name)
            self.proven[name] = which
        self._checks.forget(name)
        if trial is None:
            self._reports.forget(name)
        else:
            outcome = TrialOutcome(which != name, None, None, 0, text)
            self._conclude(name, trial, outcome)

    def _conclude(self, name: bytes, trial: Trial, outcome: TrialOutcome) -> None:
        """Records the outcome of a trial in `proven` and in the function's report.

        Does nothing if the trial was ended before, by a call in another thread.
        """
        with self._lock:
            if self._trials.get(name) is not trial:
                return
            del self._trials[name]
            if not outcome.twin:
                self._checks.forget(name)
            last = not self._checks.waits(name)
            if last:
                self.proven[name] = self._twin[name] if outcome.twin else name
        self._reports.change(name, lambda report: report.after(outcome))
        if last:
            self._reports.forget(name)

    def _prove(self, name: bytes, which: bytes) -> None:
        """Has `which` called from now on; nothing more is to come of the function."""
        self.proven[name] = which
        self._reports.forget(name)

    def _make(self, context: Any, name: bytes, call: FunctionCall) -> bytes:
        part = as_it_was(f"function {name.decode()}", self._policy.strict)
        with fallback.strictly(self._policy.strict):
            add = functools.partial(self.add, context, name, call.inputs)
            twin = fallback.attempt(part, add, lambda: name)
        self._twin[name] = twin
        return twin

    def add(self, context: Any, name: bytes, inputs: Sequence[Any] = ()) -> bytes:
        """Rewrites a function and registers its twin in the runtime.

        Args:
          context: TensorFlow's eager context.
          name: the original's name.
          inputs: the tensors of its first call, which plans are made for; () if there
            is none yet.

        Returns:
          The twin's name; the original's if there is nothing to convert.

        Raises:
          AmpError: what the rewrite found wrong.
        """
        sizes = shape_inference.at_call(inputs)
        prepared = twin_making.prepared(context, name, self.settled, sizes)
        self.keep_patterns.met(prepared.given)
        made, result = twin_making.registered(context, prepared, CUT)
        self._add(name, made, result.report)
        if made.name != name and not gradient_check.why_not(self._policy):
            check = functools.partial(GradientCheck, context, prepared, result, CUT)
            self._checks.plan(name, check, due=1)
        return made.name

    def _add(self, name: bytes, made: MadeTwin, report: Report) -> None:
        """Keeps a new twin and its report, and begins its trial if it gets one."""
        if made.name == name:
            self._reports.put(name, report)
            return
        self._made[name] = made
        reason = why_not(self._policy, made.compiled)
        text = f"off: {reason}" if reason else UNDER_WAY
        self._reports.put(name, dataclasses.replace(report, trial=text))
        if not reason:
            ended = functools.partial(self._conclude, name)
            self._trials[name] = Trial(name, made.name, ended)

    def _take_in(self, context: Any, name: bytes, checked: Checked) -> None:
        """Records the result of a check, and makes the twin that it asks for."""
        prepared, nominee = checked.prepared, checked.nominee
        if prepared is not None and nominee is not None:
            part = as_it_was(f"function {name.decode()}", self._policy.strict)
            replace = functools.partial(self._replace, context, name, prepared)
            with fallback.strictly(self._policy.strict):
                self._twin[name] = fallback.attempt(
                    part, lambda: replace(nominee), lambda: name
                )
        self._reports.change(name, checked.noted_in)
        if prepared is None or self._twin[name] == name or name in self._checked:
            return
        self._checked.add(name)
        plan, sizes = nominee or CUT, prepared.sizes
        again = functools.partial(self._again, context, name, plan, sizes)
        self._checks.plan(name, again, due=AGAIN)

    def _replace(
        self, context: Any, name: bytes, prepared: Prepared, nominee: Nominee
    ) -> bytes:
        """Makes a twin by another plan, in place of the one before."""
        before = self._made.pop(name)
        self._trials.pop(name, None)
        made, result = twin_making.registered(context, prepared, nominee)
        self._add(name, made, result.report)
        twin_making.removed(context, before)
        return made.name

    def _again(
        self, context: Any, name: bytes, nominee: Nominee, sizes: SizesAtCall | None
    ) -> GradientCheck:
        """A check of the plan that runs, at weights that have been trained."""
        prepared = twin_making.prepared(context, name, self.settled, sizes)
        made = prepared.made(nominee, definitions.new_suffix())
        return GradientCheck(context, prepared, made, nominee)

    def made_for(self, name: bytes) -> list[str]:
        """The names of the functions that were registered for one original."""
        made = self._made.get(name)
        return [] if made is None else list(made.functions)

    def forget(self, name: bytes) -> list[str]:
        """Drops all that is stored for a function that TensorFlow removes.

        Called by finalizers, in any thread and at any line, so it takes no lock. Each
        step is a single operation of a dict, and nobody can call the function any more.

        Returns:
          The names of the functions that were registered for it.
        """
        self.proven.pop(name, None)
        self.devices.forget(name)
        self._checks.forget(name)
        self._twin.pop(name, None)
        self._trials.pop(name, None)
        self._checked.discard(name)
        self._reports.forget(name)
        made = self._made.pop(name, None)
        return [] if made is None else list(made.functions)


def every() -> list[Twins]:
    """The twins of every policy settled so far."""
    return list(PROCESS.twins)


def as_it_was(what: str, strict: bool | None = None) -> fallback.Part:
    """What `fallback` is to do if the rewrite of a function or session's graph fails.

    Args:
      what: the function or session, for the warning.
      strict: whether a failure is raised instead.
    """
    says = f"{what} runs in float32, as it was: its rewrite failed"
    return fallback.Part(says, strict)


def _warn_of_memory(name: str) -> None:
    messages.warn(
        f"function {name} ran out of memory in float32 while it was tried against "
        "its twin, which takes over. This one call began twice: what the first had "
        "done by then (a batch taken, a counter) is done. AMP_TRIAL=0 tries nothing."
    )
