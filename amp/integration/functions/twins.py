"""`Twins`: the twins of all functions that are called under one policy.

A *twin* is a rewritten function; a function may have several, by different plans. They
are registered in TensorFlow's runtime beside the original, which is never changed, and
take and return the same tensors, so that at any call any of them may run.
`function_hooks` asks `Twins` at each call which to run.

No hook and no graph algorithm is here, and which twin runs is decided for each function
in `function_twins`.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from amp.graph_rewrite.cost.op_instance import Timer
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import COMPUTE
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.report_builder import left
from amp.graph_rewrite.rewrite import Begun, begin
from amp.graph_rewrite.steps import uncollected
from amp.integration import fallback, heap
from amp.integration.contests import plan_store
from amp.integration.contests.plan_store import Record
from amp.integration.functions.first_step import FirstSteps
from amp.integration.functions.function_checks import Shared
from amp.integration.functions.function_plans import FunctionPlans
from amp.integration.functions.function_twins import FunctionTwins
from amp.integration.functions.keep_patterns import KeepPatterns
from amp.integration.measuring import job_timer
from amp.integration.measuring.job_timer import Noted
from amp.integration.newest_reports import NewestReports
from amp.integration.observing.checks import Checks
from amp.integration.observing.step_probes import StepProbes
from amp.integration.process import PROCESS
from amp.integration.racing import exemptions
from amp.integration.racing.race_log import FLOAT32
from amp.integration.runtime import definitions, failures, shape_inference, twin_making
from amp.integration.runtime.call_devices import DeviceReports, settled_on
from amp.integration.runtime.function_call import FunctionCall
from amp.integration.runtime.unasked import Unasked
from amp.once import Once
from amp.policy import Policy

_UNUSED = fallback.Part("what earlier runs of the job found out is not used")


class Twins:
    """The twins made under one policy, by the names of their originals.

    Args:
      settled: the policy, with every "auto" settled, and the device.
      asked: the policy as the user gave it, which is settled anew for another device.

    Attributes:
      proven: by a function's name, the name to call without any question.
      keep_patterns: which `keep` patterns of the policy matched a node so far.
    """

    def __init__(self, settled: Resolution, asked: Policy) -> None:
        assert settled.policy is not None
        self.settled, self._asked = settled, asked
        # By device: the twins for calls on it, or why there are none.
        self._there: dict[str, Twins | str] = {}
        self._device_reports = DeviceReports(settled)
        self.proven: Unasked[bytes, bytes] = Unasked()
        self._policy: Policy = settled.policy
        self._first = FirstSteps(settled, self._seen, self._called_once)
        self._once = Once()
        self._shared = Shared(
            settled=settled,
            proven=self.proven,
            reports=NewestReports(self._policy),
            checks=Checks(self._policy.strict),
            once=self._once,
            probes=StepProbes(self._policy.strict),
            held=self._first.due,
        )
        self._functions: dict[bytes, FunctionTwins | Literal[False]] = {}
        self.keep_patterns = KeepPatterns(self._policy.keep)
        self._met: set[str] = set()  # fingerprints of the functions added so far
        PROCESS.twins.add(self)

    def on(self, device: str, context: Any, name: bytes) -> Twins | None:
        """The twins for a call on a device, None if the original is to run.

        Args:
          device: its whole name, as `Context.device_name` has it inside a device scope.
          context: TensorFlow's eager context.
          name: the original's name.
        """
        find = functools.partial(self._there.get, device)
        there = find() or self._once.get(device, find, lambda: self._settle(device))
        if isinstance(there, str):
            self._device_reports.tell(context, name, device, there)
            return None
        return there

    def _settle(self, device: str) -> Twins | str:
        """Finds or makes the twins for calls on a device."""
        strict = self._policy.strict
        part = fallback.Part(f"functions run as they are on {device}", strict)
        off = Resolution(None, self.settled.device, "it could not be asked what it is")
        settled = fallback.attempt(
            part, lambda: settled_on(device, self.settled, self._asked), lambda: off
        )
        known = [each for each in list(self._there.values()) if isinstance(each, Twins)]
        same = (each for each in (self, *known) if each.settled == settled)
        found = next(same, None) or settled.reason
        if settled.policy is not None and isinstance(found, str):
            found = Twins(settled, self._asked)
            found.keep_patterns = self.keep_patterns
        self._there[device] = found
        return found

    def call(self, call: FunctionCall, context: Any, name: bytes) -> Any:
        """Makes one call of a function that `proven` gives no name for.

        The first call of a training step, or one that is to tell sizes, runs in float32
        (`first_step`); the next, or else this one, makes the twin. A function without
        anything to convert has none. Where loops take batches whose sizes nothing
        tells, the first was looked at before, and this call takes it.

        Args:
          call: the call that the user made.
          context: TensorFlow's eager context.
          name: the original's name.

        Returns:
          The outputs of the call.
        """
        looked = None
        if name not in self._functions:
            looked = self._first.look(context, name, call)
        elements = looked or self._first.left_over(name, call)
        if elements is None:
            return self._called(call, context, name)
        try:
            return self._called(elements.given(call), context, name)
        finally:
            fallback.attempt_quietly(elements.hand_over, None)
            if self._first.leave(name, elements):
                self.proven.end(name)  # the next call may take them

    def call_again(
        self, call: FunctionCall, context: Any, name: bytes, error: tf.errors.OpError
    ) -> Any:
        """Makes a call for which the form that `proven` gave has failed.

        Args:
          call, context, name: as of `call`.
          error: what TensorFlow raised.
        """
        function = self._functions.get(name)
        if not function:
            raise error
        return function.call_again(call, context, error)

    def _called(self, call: FunctionCall, context: Any, name: bytes) -> Any:
        if name in self._functions:
            return self._made_and_called(call, context, name)
        with heap.trimmed():
            done, outputs = self._first.make(context, name, call)
            if done:
                return outputs
            return self._made_and_called(call, context, name)

    def _made_and_called(self, call: FunctionCall, context: Any, name: bytes) -> Any:
        find = functools.partial(self._functions.get, name)
        function = self._once.get(name, find, lambda: self._make(context, name, call))
        if function:
            return function.call(call, context)
        if function is not None:  # None: within the making of this very twin
            probes = self._shared.probes
            done, outputs = probes.call(name, name, call)
            self._shared.go_on(name, name)
            if done:
                return outputs
        return call.run(name)

    def _make(
        self, context: Any, name: bytes, call: FunctionCall
    ) -> FunctionTwins | Literal[False]:
        strict = self._policy.strict
        part = failures.as_it_was(f"function {name.decode()}", strict)
        with fallback.strictly(strict):
            add = functools.partial(self.add, context, name, call.inputs)
            made = fallback.attempt(part, add, lambda: self._failed(name))
        self._functions[name] = made or False
        if not made:
            self._shared.reports.forget(name)  # nothing more is to come
        return made or False

    def _called_once(self, name: bytes, module: ir.Module, report: Report) -> None:
        """Reports on a function that is not planned yet, and perhaps never will be."""
        self.met(module)
        self._shared.reports.put(name, report)

    def _failed(self, name: bytes) -> None:
        """Has the report on a function, if there is one, say that no plan was made."""
        verdict = "left in float32: making its twin failed, as a warning told"
        self._shared.reports.change(
            name, lambda report: dataclasses.replace(report, verdict=verdict)
        )

    @uncollected()
    def add(
        self, context: Any, name: bytes, inputs: Sequence[Any] = ()
    ) -> FunctionTwins | None:
        """Rewrites a function and registers its first twin in the runtime.

        Args:
          context: TensorFlow's eager context.
          name: the original's name.
          inputs: the tensors of its first call, which plans are made for; () if there
            is none yet.

        Returns:
          Its twins; None if there is nothing to convert, or if float32 was the fastest
          in an earlier run of the job and is not contested in this one.

        Raises:
          AmpError: what the rewrite found wrong.
        """
        start, spent = time.perf_counter(), PROCESS.measuring.spent
        told = self._first.take(context, name)
        begun = told.begun
        module = begun.given if begun else definitions.read(context, name.decode())
        self.met(module)
        if begun is None:
            sizes = shape_inference.at_call(inputs)
            begun = begin(module, self.settled, sizes=sizes)
        key, known = self.begin_run(module, told.key, begun)
        if known.winner == FLOAT32:
            cause = "float32 was the fastest in an earlier run of the job"
            report = left(module, self.settled, "trial", cause)
            self._shared.reports.put(name, report)
            return None
        timer = self._timer(module, known, told.seconds)
        prepared = begun.prepared(timer)
        plans = FunctionPlans(name, prepared, {}, known.winner)
        function = FunctionTwins(plans, key, self._shared)
        if not function.begin(context, known, told):
            return None
        # What was measured meanwhile need not be measured again.
        spent = PROCESS.measuring.spent - spent
        function.between.planning = time.perf_counter() - start - spent
        return function

    def met(self, module: ir.Module) -> None:
        """Is told of each function or session's graph before it is planned."""
        self.keep_patterns.met(module)
        begins = PROCESS.begins
        if begins is not None and _has_product(module):
            PROCESS.begins = None
            begins(self.settled)

    def _timer(self, module: ir.Module, known: Record, seconds: float) -> Timer:
        """What gives the measured times that a function is planned by.

        1. Where plans race: those by which the plan was made that won in an earlier
           run; else the times that are stored, and what a glance tells of ops that
           have none. What is missing is measured later.
        2. Where runs are to be the same bit for bit: the times that are stored.
        3. Elsewhere (several workers): what is missing is measured at once.

        Args:
          module: the function.
          known: what an earlier run of the job found out.
          seconds: that its first step took; 0 if there was none.
        """
        if not exemptions.why_not(self._policy):
            times = known.times
            name = module.main.name
            glance = job_timer.glancing(self.settled, seconds, name)
            return Noted(self.settled, (lambda _: times) if known.winner else glance)
        if exemptions.repeats(self._policy):
            return job_timer.stored_on(self.settled)
        return job_timer.measuring(self.settled, module.main.name)

    def _seen(self, begun: Begun) -> tuple[str, Record]:
        """As `begin_run`, before it is clear that the function will be planned.

        Returns:
          Its fingerprint, and the record for sizes as far as they are known now.
        """

        def look_up() -> tuple[str, Record]:
            key = plan_store.fingerprint(begun.given, self.settled)
            return key, plan_store.load(
                plan_store.at_size(key, twin_making.shapes_given(begun))
            )

        return fallback.attempt(_UNUSED, look_up, lambda: ("", Record()))

    def begin_run(
        self, module: ir.Module, key: str = "", begun: Begun | None = None
    ) -> tuple[str, Record]:
        """The name of a function's record, and what earlier runs of the job found out.

        Args:
          module: the function, which is planned now: the run counts.
          key: its fingerprint, "" if it is not known yet.
          begun: the function with its sizes, if calls tell any.
        """
        if exemptions.why_not(self._policy):
            return "", Record()

        def look_up() -> tuple[str, Record]:
            nonlocal key
            key = key or plan_store.fingerprint(module, self.settled)
            key = plan_store.at_size(
                key, twin_making.shapes_given(begun) if begun else ()
            )
            if key in self._met:
                return key, plan_store.load(key)
            self._met.add(key)
            known = plan_store.next_run(key)
            # Only the first of several functions that are alike races again.
            winner = "" if known.contested else known.winner
            return key, dataclasses.replace(known, winner=winner)

        return fallback.attempt(_UNUSED, look_up, lambda: ("", Record()))

    def functions(self) -> list[FunctionTwins]:
        """The functions that have a twin."""
        return [function for function in self._functions.values() if function]

    @property
    def has_functions(self) -> bool:
        """Whether any function was called under the policy."""
        return bool(self._functions)

    def made_for(self, name: bytes) -> list[str]:
        """The names of the functions that are registered for one original."""
        function = self._functions.get(name)
        observed = self._shared.probes.functions(name)
        return (function.functions() if function else []) + observed

    def forget(self, name: bytes) -> list[str]:
        """Drops all that is stored for a function that TensorFlow removes.

        Called by finalizers, in any thread and at any line, so it takes no lock. Each
        step is a single operation of a dict, and nobody can call the function any more.

        Returns:
          The names of the functions that were registered for it.
        """
        self.proven.forget(name)
        self._device_reports.forget(name)
        told = self._first.forget(name) + self._shared.probes.functions(name)
        self._shared.probes.forget(name)
        function = self._functions.pop(name, None)
        if not function:
            self._shared.reports.forget(name)
            return told
        made = function.functions()
        function.forget()
        return told + made


def _has_product(module: ir.Module) -> bool:
    nodes = (node for graph in module.graphs() for node in graph.nodes.values())
    return any(node.op in COMPUTE for node in nodes)


def settling() -> bool:
    """Whether any function of the process may soon be called in another form.

    For `benchmarks`, which time a job once it runs as it will.
    """
    functions = (f for twins in PROCESS.twins for f in twins.functions())
    return any(function.settling for function in functions)


def every() -> list[Twins]:
    """The twins of every policy settled so far."""
    return list(PROCESS.twins)
