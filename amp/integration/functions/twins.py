"""`Twins`: made at a function's first call, tried, and called from then on.

Holds no hook and no graph algorithm: it reads definitions, calls `rewrite` once, and
registers the result beside the original, which is never touched.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from amp.errors import PolicyError
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import calls, ir, op_schema, serde
from amp.graph_rewrite.report import Report, TrialOutcome
from amp.graph_rewrite.rewrite import rewrite
from amp.integration import fallback, messages, reports
from amp.integration.functions import definitions
from amp.integration.functions.call_devices import CallDevices
from amp.integration.functions.trial import UNDER_WAY, Trial, why_not
from amp.integration.measuring import job_timer
from amp.integration.once import Once
from amp.integration.process import PROCESS
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a function, which may be made of its original or of its twin.

    Attributes:
      run: runs the function of a name and returns its outputs.
      starts: whether TensorFlow could start the function of a name, after the call of
        it ended in an error, which is given: it places the nodes
        and makes their kernels as for a call, and runs none of them.
    """

    run: Callable[[bytes], Any]
    starts: Callable[[bytes, tf.errors.OpError], bool]


class _Tried(NamedTuple):
    """A trial under way, and the report that its outcome goes into."""

    trial: Trial
    number: int
    report: Report


class Twins:
    """The twins made under one settled policy, by the name of their original.

    Args:
      settled: the policy, with every "auto" settled, and the device.
    """

    def __init__(self, settled: Resolution) -> None:
        assert settled.policy is not None
        self.settled = settled
        self.devices = CallDevices(settled)
        self.proven: dict[bytes, bytes] = {}  # what to call, no more questions asked
        self._policy: Policy = settled.policy
        self._twin: dict[bytes, bytes] = {}
        self._made: dict[bytes, list[str]] = {}
        self._repeatable: set[bytes] = set()  # twins that leave nothing if they fail
        self._trials: dict[bytes, _Tried] = {}
        self._once = Once()
        # Held for a few lines and by no finalizer. Reentrant: the garbage collector may
        # run a program's `__del__`, which may call a function, at any of them.
        self._lock = threading.RLock()
        self._unmatched = set(self._policy.keep)
        self._ran = False
        PROCESS.twins.add(self)

    def call(self, call: FunctionCall, context: Any, name: bytes) -> Any:
        """Calls a function that is not proven yet, once, or its twin in its place.

        The first call makes the twin. Where there is a trial, this and the next calls
        are its turns; otherwise a twin that has run is proven.

        Args:
          call: the call that TensorFlow was asked for.
          context: TensorFlow's eager context.
          name: the original's.
        """
        find = functools.partial(self._twin.get, name)
        twin = self._once.get(name, find, lambda: self._make(context, name))
        if twin is None:  # the rewrite itself, or who is told of it, calls the function
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
        """Calls one of the two, and the other where the first cannot start.

        The original may only run instead where nothing of the twin has run: a second
        run would update variables twice and take another batch. No text of an error
        tells that, so after one TensorFlow is asked to start the twin once more.
        """
        try:
            return call.run(which)
        except tf.errors.OpError as e:
            if self._policy.strict:
                raise
            # Without the trial the original would not have run: its want of memory is
            # our fault, and worth what the twin may now do twice.
            if which == name and isinstance(e, tf.errors.ResourceExhaustedError):
                self._settle(name, twin, "ended: float32 ran out of memory")
                _warn_of_memory(name.decode())
                return call.run(twin)
            if which == name or self._has_begun(call, twin, e):
                raise
            refusal = e
        outputs = call.run(name)  # fails too if the error is the user's own
        self._settle(name, name, "ended: TensorFlow refused the twin")
        fallback.failed(as_it_was(f"function {name.decode()}").says, refusal)
        return outputs

    def _has_begun(
        self, call: FunctionCall, twin: bytes, error: tf.errors.OpError
    ) -> bool:
        """Whether a twin that failed may have had an effect by then.

        A function that only computes never has. One that XLA compiles whole has none
        before all of it has succeeded: its variables are written with what it returns.
        """
        return twin not in self._repeatable and call.starts(twin, error)

    def _settle(self, name: bytes, which: bytes, text: str) -> None:
        """Ends a trial, if there is one, and has `which` called from now on."""
        with self._lock:
            tried = self._trials.get(name)
            self.proven[name] = which
        if tried is not None:
            outcome = TrialOutcome(which != name, None, None, 0, text)
            self._conclude(name, tried.trial, outcome)

    def _conclude(self, name: bytes, trial: Trial, outcome: TrialOutcome) -> None:
        """Acts on the outcome of a trial, unless another came first."""
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
        """Rewrites a function and registers its twin; returns its name.

        The name is the original's where there is nothing to convert.

        Raises:
          AmpError: what the rewrite found wrong.
        """
        module = definitions.read(context, name.decode())
        timer = job_timer.measuring(self.settled, name.decode())
        suffix = definitions.new_suffix()
        result = rewrite(module, self.settled, suffix=suffix, timer=timer)
        self.met(module)
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
        reason = why_not(self._policy, compiled, result.report)
        self._try(name, twin, result.report, reason)
        return twin

    def _try(self, name: bytes, twin: bytes, report: Report, why_not: str) -> None:
        """Keeps the report, and begins a trial if nothing speaks against it."""
        text = f"off: {why_not}" if why_not else UNDER_WAY
        report = dataclasses.replace(report, trial=text)
        number = reports.add(report, self._policy.report)
        if not why_not:
            ended = functools.partial(self._conclude, name)
            self._trials[name] = _Tried(Trial(name, twin, ended), number, report)

    def made_for(self, name: bytes) -> list[str]:
        """The functions registered for one original."""
        return list(self._made.get(name, ()))

    def forget(self, name: bytes) -> list[str]:
        """Drops what is known of a function that is going; what was made for it.

        Finalizers call this, in any thread and at any line, so it takes no lock: each
        step is one operation of a dict, and nobody calls a function that is gone.
        """
        self.proven.pop(name, None)
        self.devices.forget(name)
        self._repeatable.discard(self._twin.pop(name, b""))
        self._trials.pop(name, None)
        return self._made.pop(name, [])

    def met(self, module: ir.Module) -> None:
        """Notes which `keep` patterns match a node of what runs."""
        self._ran = True
        for pattern in list(self._unmatched):
            one = Policy(keep=(pattern,))
            if any(
                one.keeps(node) for graph in module.graphs() for node in graph.nodes
            ):
                self._unmatched.discard(pattern)

    def warn_unmatched(self) -> None:
        """Warns of `keep` patterns that matched no node of any function so far."""
        if self._unmatched and self._ran:
            patterns = ", ".join(sorted(self._unmatched))
            self._unmatched.clear()
            error = PolicyError(
                f"keep pattern {patterns} matched no node of the functions that ran",
                where="Policy(keep=...), AMP_KEEP",
                allowed="patterns (fnmatch) that match the name of at least one node",
                remedy="print(amp.reports()[-1].decisions) for the names there are",
            )
            messages.warn(str(error), UserWarning, stacklevel=3)


def every() -> list[Twins]:
    """The twins of every policy settled so far."""
    return list(PROCESS.twins)


def names_of_twins(name: bytes) -> list[str]:
    """The functions registered beside an original, under any policy."""
    return [made for twins in every() for made in twins.made_for(name)]


def as_it_was(what: str, strict: bool | None = None) -> fallback.Part:
    """The part of a call that rewrites a function or a session's graph.

    Args:
      what: the function or session, for the warning if it fails.
      strict: whether a failure is raised.
    """
    says = f"{what} runs in float32, as it was: its rewrite failed"
    return fallback.Part(says, strict)


def _warn_of_memory(name: str) -> None:
    messages.warn(
        f"function {name} ran out of memory in float32 while it was tried against "
        "its twin, which takes over. This one call began twice: what the first had "
        "done by then (a batch taken, a counter) is done. AMP_TRIAL=0 tries nothing."
    )
