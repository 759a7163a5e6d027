"""`FirstSteps`: the first calls that run in float32, before a function is planned.

1. A training step's. The job waits for its first step, so nothing is decided before it;
   and gradients are compared on what it was computed from (`value_copies`).
2. That of a function whose arguments do not tell all sizes (a batch that an iterator
   gives inside the function, `tf.where`). The shapes of these tensors are its further
   results.

The twin is made at the next call. Where an earlier run of the job saw that its winner
makes a first step as soon as float32 does, there is none: the winner makes it, and the
memory that float32 takes is never needed. Used by `twins`; which tensors matter is
`normalize.size_roots`'s and `copies`'s to say, and no plan is made here.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import calls, generators, ir
from amp.graph_rewrite.normalize import copies, size_roots, wanted_gradients
from amp.graph_rewrite.normalize.sizes import SizesAtCall
from amp.graph_rewrite.normalize.wanted import NotRepeatable, Wanted
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.report_builder import left
from amp.graph_rewrite.rewrite import Begun, begin
from amp.graph_rewrite.steps import uncollected
from amp.integration import fallback
from amp.integration.contests.plan_store import Record
from amp.integration.functions import first_element
from amp.integration.functions.first_element import FirstElements
from amp.integration.functions.started_function import FirstStepResult, Started
from amp.integration.observing import accuracy_check, checks
from amp.integration.racing import exemptions
from amp.integration.runtime import definitions, failures, shape_inference
from amp.integration.runtime.function_call import FunctionCall
from amp.integration.runtime.unasked import Due
from amp.once import Once


class FirstSteps:
    """The functions of one policy that were read and are not planned yet.

    Args:
      settled: policy and device.
      known: gives a function's fingerprint, and what earlier runs found out of calls of
        its size; "" and nothing if there is no race.
      tell: is given the name of each function whose first step was made, the function
        and the report on it; a function that is called once has no other.
    """

    def __init__(
        self,
        settled: Resolution,
        known: Callable[[Begun], tuple[str, Record]],
        tell: Callable[[bytes, ir.Module, Report], None],
    ) -> None:
        assert settled.policy is not None
        self._settled, self._policy = settled, settled.policy
        self._known, self._tell = known, tell
        self._started: dict[bytes, Started] = {}
        self._left: dict[bytes, FirstElements] = {}  # by function, still to be taken
        self._once = Once()

    def look(
        self, context: Any, name: bytes, call: FunctionCall
    ) -> FirstElements | None:
        """Looks at the first elements that a function's loops take, once.

        Another thread that calls it meanwhile does not wait: its batches are its own.

        Args:
          context: TensorFlow's eager context.
          name: the function's.
          call: the call that the user made, which is to take them.

        Raises:
          OpError: the user's pipeline raised it.
        """
        started = self._found(context, name, call)
        if started is None or not (sources := started.looks()):
            return None
        says = f"the sizes of batches in function {name.decode()} are assumed"
        part = fallback.Part(says, self._policy.strict)
        elements = first_element.look(sources, call.inputs, part)
        begun = started.begun
        if elements is not None and begun is not None:
            sizes = shape_inference.at_call(call.inputs, elements=elements.shapes)
            resized = functools.partial(begun.resized, sizes)
            started.resize(begun, fallback.attempt(part, resized, lambda: begun))
        return elements

    def left_over(self, name: bytes, call: FunctionCall) -> FirstElements | None:
        """The elements that earlier calls left, if this one takes from where they are.

        A call that does not ends the waiting: the iterator is gone, or has them itself
        by now (`hand_over`).
        """
        elements = self._left.get(name)
        if elements is not None and not elements.concern(call):
            self._left.pop(name, None)
            return None
        return elements

    def leave(self, name: bytes, elements: FirstElements) -> bool:
        """Notes what a call has left of the elements; whether there is anything."""
        if elements.taken:
            self._left.pop(name, None)
            return False
        self._left[name] = elements
        return True

    def due(self, name: bytes) -> Due:
        """When a function is asked for elements' sake: until it has taken them."""
        elements = self._left.get(name)
        left = None if elements is None or elements.taken else 0
        return Due(left, lambda calls: None)

    def _found(self, context: Any, name: bytes, call: FunctionCall) -> Started | None:
        return self._once.get(
            name,
            lambda: self._started.get(name),
            lambda: self._start(context, name, call),
        )

    def make(self, context: Any, name: bytes, call: FunctionCall) -> tuple[bool, Any]:
        """Makes a function's first step in float32, if it is to be.

        Args:
          context: TensorFlow's eager context.
          name: the function's.
          call: the call that the user made.

        Returns:
          Whether the step was made, and if so its results.
        """
        started = self._found(context, name, call)
        if started is None or not started.begins():
            return False, None
        try:
            return self._made(started, name, call)
        finally:
            started.ends(context)

    def _made(
        self, started: Started, name: bytes, call: FunctionCall
    ) -> tuple[bool, Any]:
        more, teller = started.more, started.teller
        start = time.perf_counter()
        try:
            outputs = call.record(teller, more) if more else call.run(name)
        except tf.errors.OpError as e:
            memory = failures.out_of_memory(e)
            if self._policy.strict or not _given_up(name, call, started, e):
                if memory:  # the batch is gone; the next is a twin's
                    started.waits, started.too_large = False, True
                raise
            started.waits, started.too_large = False, memory and not started.more
            return False, None
        took, begun = time.perf_counter() - start, started.begun
        further = outputs[-more:] if more else []
        says = f"what the first step of function {name.decode()} told is not used"
        counts = fallback.attempt(
            fallback.Part(says, self._policy.strict),
            functools.partial(started.told, call, further, took),
            started.told_nothing,
        )
        self._let_batches_go()
        if counts and begun is not None:
            report = functools.partial(self._report, name, begun, started.trains)
            fallback.attempt_quietly(report, None)
        return True, (outputs[:-more] or None) if more else outputs

    def _let_batches_go(self) -> None:
        started = list(self._started.values())
        recorded = [each for each in started if each.recorded is not None]
        for each in recorded[: -checks.BATCHES]:
            each.recorded = None

    @uncollected()
    def _report(self, name: bytes, begun: Begun, trains: bool) -> None:
        why = "which is float32 in a training step" if trains else "which told sizes"
        cause = f"called once so far, {why}; the second call makes the plan"
        module = begun.given
        self._tell(name, module, left(module, self._settled, "first", cause))

    def take(self, context: Any, name: bytes) -> FirstStepResult:
        """What is known of a function, which is planned now.

        What was made to find out is removed.
        """
        started = self._started.get(name)
        return FirstStepResult() if started is None else started.planned(context)

    def forget(self, name: bytes) -> list[str]:
        """Drops a function that is going; takes no lock.

        Returns:
          The names of the functions that were registered for it.
        """
        self._left.pop(name, None)
        started = self._started.pop(name, None)
        return [] if started is None else list(started.functions)

    def _start(self, context: Any, name: bytes, call: FunctionCall) -> Started | None:
        # What fails here fails again when the function is planned, and is said there.
        sizes = shape_inference.at_call(call.inputs)
        started = fallback.attempt_quietly(
            lambda: self._read(context, name, sizes), None
        )
        if started is not None:
            self._started[name] = started
        return started

    @uncollected()
    def _read(self, context: Any, name: bytes, sizes: SizesAtCall) -> Started | None:
        module = definitions.read(context, name.decode())
        begun = begin(module, self._settled, sizes=sizes)
        compiled = calls.MUST_COMPILE in begun.given.main.flags
        compiled |= calls.has_computations(begun.given)
        # What converts everything has no use for sizes.
        if self._policy.assignment == "all" or self._policy.emulate or compiled:
            return Started(begun)
        suffix = f"{definitions.new_suffix()}_first"
        module, roots = begun.in_float32(suffix), begun.roots
        trains = wanted_gradients.is_step(module)
        races = trains and not exemptions.why_not(self._policy)
        key, known = self._known(begun) if races else ("", Record())
        wanted = None
        if (trains or roots) and not self._is_known(known):
            wanted = _gradients(module)
        checked = trains and wanted is not None
        if not (roots or checked or races):
            return Started(begun, sources=begun.element_sources)
        if known.soon and not roots and not checked:
            return Started(begun, sources=begun.element_sources, key=key)
        started = Started(begun, True, trains, roots, wanted=wanted, key=key)
        if started.more:
            if races:
                others = module.functions
                module = generators.drawing_apart(module, suffix, others=others)
            self._add_teller(context, module, started)
        return started

    def _is_known(self, known: Record) -> bool:
        """Whether there is nothing to compare, or an earlier run did it.

        If the plan turns out to be another, its first call is recorded.
        """
        return known.compared or bool(accuracy_check.why_not(self._policy))

    @staticmethod
    def _add_teller(context: Any, module: ir.Module, started: Started) -> None:
        """Registers the step in float32, with what it tells as further results."""
        name = f"{module.main.name}_told"
        if started.wanted is not None:
            module = copies.recorded(module, started.wanted, name)
        module = size_roots.telling(module, started.roots, name)
        started.functions += (*definitions.register(context, module),)
        started.teller = name.encode()


def _gradients(step: ir.Module) -> Wanted | None:
    """The gradients of a step in float32, as far as they can be computed again.

    Not those in a loop or branch: a function with one may be called once, by its twin.
    """
    try:
        found = wanted_gradients.gradients(step)
    except NotRepeatable:
        return None
    return found if found.kept is None else None


def _given_up(
    name: bytes, call: FunctionCall, started: Started, error: tf.errors.OpError
) -> bool:
    """Whether a twin is to run because the step in float32 failed; warns if so.

    It is if the memory does not suffice for float32, which would not have run but for
    the plugin; or where the function that was to tell something gives way.
    """
    what = f"function {name.decode()}"
    if not started.more:
        memory = failures.out_of_memory(error)
        if memory:
            failures.warn_of_memory(what)
        return memory
    begun = functools.partial(call.has_begun, started.teller, error, None, started.more)
    if not failures.gives_way(error, begun):
        return False
    says = f"sizes of {what} are assumed, its first step tells none"
    failures.warn_of_step(says, error)
    return True
