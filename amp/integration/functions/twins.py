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
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import calls, op_schema, serde
from amp.graph_rewrite.report import Report, TrialOutcome
from amp.graph_rewrite.rewrite import rewrite
from amp.integration import fallback, messages, reports
from amp.integration.functions import definitions
from amp.integration.functions.call_devices import CallDevices
from amp.integration.functions.keep_patterns import KeepPatterns
from amp.integration.functions.trial import UNDER_WAY, Trial, why_not
from amp.integration.measuring import job_timer
from amp.integration.process import PROCESS
from amp.loss_scaling.once import Once
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a function by the user, before it is decided which function runs.

    Attributes:
      run: takes the name of the original or of the twin, calls that function with the
        user's arguments, and returns its outputs.
      starts: takes a name and the error that its call raised. Returns whether
        TensorFlow can start that function (place its nodes and make their kernels)
        without running any of it. If it can, the failed call may have run in part.
    """

    run: Callable[[bytes], Any]
    starts: Callable[[bytes, tf.errors.OpError], bool]


class _Tried(NamedTuple):
    """A trial under way, and the report that its outcome goes into."""

    trial: Trial
    number: int
    report: Report


class Twins:
    """The twins made under one policy, by the names of their originals.

    For each function that was called there is one of these states: a trial is under way
    (`_trials`); it is decided what to call (`proven`); or its twin was made and has not
    returned yet. A function without anything to convert is its own twin.

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
        self._made: dict[bytes, list[str]] = {}
        self._repeatable: set[bytes] = set()  # twins that leave nothing if they fail
        self._trials: dict[bytes, _Tried] = {}
        self._once = Once()
        # Held for a few lines and by no finalizer. Reentrant: the garbage collector may
        # run a program's `__del__`, which may call a function, at any of them.
        self._lock = threading.RLock()
        self.keep_patterns = KeepPatterns(self._policy.keep)
        PROCESS.twins.add(self)

    def call(self, call: FunctionCall, context: Any, name: bytes) -> Any:
        """Makes one call of a function that has no entry in `proven` yet.

        The first call makes the twin. If there is a trial, this call is a turn of it.
        Otherwise the twin is called, and gets its entry in `proven` if it returns.

        Args:
          call: the call that the user made.
          context: TensorFlow's eager context.
          name: the original's name.

        Returns:
          The outputs of the call.
        """
        find = functools.partial(self._twin.get, name)
        twin = self._once.get(name, find, lambda: self._make(context, name))
        if twin is None:  # the call comes from within the making of this very twin
            return call.run(name)
        tried = self._trials.get(name)
        if twin == name:
            self.proven[name] = name
            return call.run(name)
        guarded = functools.partial(self._guarded, call, name, twin)
        if tried is not None:
            return tried.trial.call(guarded)
        outputs = guarded(twin)
        self.proven.setdefault(name, twin)
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
            if which == name or self._has_begun(call, twin, e):  # Cases 3 and 1
                raise
            refusal = e
        outputs = call.run(name)  # Case 1; raises too if the user's code is at fault
        self._settle(name, name, "ended: TensorFlow refused the twin")
        fallback.failed(as_it_was(f"function {name.decode()}").says, refusal)
        return outputs

    def _has_begun(
        self, call: FunctionCall, twin: bytes, error: tf.errors.OpError
    ) -> bool:
        """Whether a twin that failed may have changed state before it did.

        A function that only computes changes none. One that XLA compiles as a whole
        writes its variables only after all of it has succeeded. For any other, the
        message of the error does not tell, so TensorFlow is asked whether the twin can
        start: if it can, it has probably run in part.
        """
        return twin not in self._repeatable and call.starts(twin, error)

    def _settle(self, name: bytes, which: bytes, text: str) -> None:
        """Has `which` called from now on, and ends the trial if there is one.

        Args:
          name: the original's name.
          which: the name to call, the original's or the twin's.
          text: says in the report how the trial ended.
        """
        with self._lock:
            tried = self._trials.get(name)
            self.proven[name] = which
        if tried is not None:
            outcome = TrialOutcome(which != name, None, None, 0, text)
            self._conclude(name, tried.trial, outcome)

    def _conclude(self, name: bytes, trial: Trial, outcome: TrialOutcome) -> None:
        """Records the outcome of a trial in `proven` and in the function's report.

        Does nothing if the trial was ended before, by a call in another thread.
        """
        with self._lock:
            tried = self._trials.get(name)
            if tried is None or tried.trial is not trial:
                return
            del self._trials[name]
            self.proven[name] = self._twin[name] if outcome.twin else name
        report = tried.report.after(outcome)
        part = fallback.Part("a trial's outcome is in no report", self._policy.strict)
        replace = functools.partial(reports.replace, tried.number, report)
        fallback.attempt(part, lambda: replace(self._policy.report), lambda: None)

    def _make(self, context: Any, name: bytes) -> bytes:
        part = as_it_was(f"function {name.decode()}", self._policy.strict)
        with fallback.strictly(self._policy.strict):
            twin = fallback.attempt(part, lambda: self.add(context, name), lambda: name)
        self._twin[name] = twin
        return twin

    def add(self, context: Any, name: bytes) -> bytes:
        """Rewrites a function and registers its twin in the runtime.

        Args:
          context: TensorFlow's eager context.
          name: the original's name.

        Returns:
          The twin's name; the original's if there is nothing to convert.

        Raises:
          AmpError: what the rewrite found wrong.
        """
        module = definitions.read(context, name.decode())
        timer = job_timer.measuring(self.settled, name.decode())
        suffix = definitions.new_suffix()
        result = rewrite(module, self.settled, suffix=suffix, timer=timer)
        self.keep_patterns.met(module)
        made = [graph for key, graph in result.graph.functions.items()
                if key not in module.functions]  # fmt: skip
        if result.graph.main is not module.main:
            made.append(result.graph.main)
        if not made:
            reports.add(result.report, self._policy.report)
            return name
        lookup = op_schema.lookup_of(result.graph)
        for graph in made:
            context.add_function_def(serde.write_function(graph, lookup))
        self._made[name] = [graph.name for graph in made]
        twin = str(result.graph.main.name).encode()
        whole = calls.MUST_COMPILE in result.graph.main.flags
        if whole or not definitions.has_effects(module):
            self._repeatable.add(twin)
        compiled = any(use.xla for use in calls.uses_with_weights(module))
        reason = why_not(self._policy, compiled)
        self._try(name, twin, result.report, reason)
        return twin

    def _try(self, name: bytes, twin: bytes, report: Report, why_not: str) -> None:
        """Stores a new twin's report; begins a trial unless `why_not` has a reason."""
        text = f"off: {why_not}" if why_not else UNDER_WAY
        report = dataclasses.replace(report, trial=text)
        number = reports.add(report, self._policy.report)
        if not why_not:
            ended = functools.partial(self._conclude, name)
            self._trials[name] = _Tried(Trial(name, twin, ended), number, report)

    def made_for(self, name: bytes) -> list[str]:
        """The names of the functions that were registered for one original."""
        return list(self._made.get(name, ()))

    def forget(self, name: bytes) -> list[str]:
        """Drops all that is stored for a function that TensorFlow removes.

        Called by finalizers, in any thread and at any line, so it takes no lock. Each
        step is a single operation of a dict, and nobody can call the function any more.

        Returns:
          The names of the functions that were registered for it.
        """
        self.proven.pop(name, None)
        self.devices.forget(name)
        self._repeatable.discard(self._twin.pop(name, b""))
        self._trials.pop(name, None)
        return self._made.pop(name, [])


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
