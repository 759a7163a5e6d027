"""`StepProbes`: calls of a step that also return what was observed inside it.

Used by `twins` and `function_twins`. A step is observed when a monitor of the user's
has its turn, or when `loss_scaling.stalls` asks which tensor is the first that is not
finite. Then the function that would run, twin or original, runs in a variant with one
more result, which nobody waits for here; all other calls are as they were. Which
tensors are observed, and what is to be learnt from them, is in `normalize.step_probes`.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.integration import fallback
from amp.integration.observing import step_variants
from amp.integration.observing.samples import Sample
from amp.integration.observing.step_variants import Variant
from amp.integration.process import PROCESS
from amp.integration.runtime import definitions, failures
from amp.integration.runtime.function_call import FunctionCall
from amp.integration.runtime.unasked import Due
from amp.loss_scaling.process import SCALING
from amp.loss_scaling.stalls import Asked


class Monitor(Protocol):
    """What wants to see the exponents of gradients now and then."""

    @property
    def every(self) -> int:
        """The calls of a function from one that is observed to the next."""

    def receive(self, sample: Sample) -> None:
        """Takes what a step let observe; must not wait for it."""


class StepProbes:
    """The variants of the functions of one policy.

    Args:
      strict: whether a variant that cannot be made is an error.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        # By function and by whether exponents are counted; None: takes no gradients.
        self._variants: dict[tuple[bytes, bool], Variant | None] = {}
        self._of: dict[bytes, set[bytes]] = {}  # by original, those that were asked for
        self._calls: dict[bytes, int] = {}
        self._busy = threading.Lock()

    def due(self, name: bytes) -> Due:
        """When a function is observed; calls without a question count too."""
        passed = functools.partial(self._passed, name)
        if any(asked.open for asked in list(SCALING.asked.values())):
            return Due(0, passed)
        calls = self._calls.get(name, 0)
        lefts = (_left(calls, monitor) for monitor in list(PROCESS.monitors))
        return Due(min(lefts, default=None), passed)

    def _passed(self, name: bytes, calls: int) -> None:
        if PROCESS.monitors:
            self._calls[name] = self._calls.get(name, 0) + calls

    def call(self, name: bytes, which: bytes, call: FunctionCall) -> tuple[bool, Any]:
        """Makes a call of a function that is to be observed.

        Args:
          name: the original's.
          which: the function that would run.
          call: the call that the user made.

        Returns:
          Whether the step was made, and if so its results.
        """
        if not (PROCESS.monitors or SCALING.asked):
            return False, None
        if not self._busy.acquire(blocking=False):  # another thread's turn
            return False, None
        try:
            return self._call(name, which, call)
        finally:
            self._busy.release()

    def _call(self, name: bytes, which: bytes, call: FunctionCall) -> tuple[bool, Any]:
        calls = self._calls.get(name, 0)
        due = [m for m in list(PROCESS.monitors) if not _left(calls, m)]
        self._passed(name, 1)
        if SCALING.asked:
            found = self._variant(name, which, counts=False)
            asked = _asked(found)
            if found is not None and asked:
                return self._answered(found, call, asked)
        if due:
            found = self._variant(name, which, counts=True)
            if found is not None:
                return self._made(found, call, [monitor.receive for monitor in due])
        return False, None

    def _answered(
        self, variant: Variant, call: FunctionCall, asked: Sequence[Asked]
    ) -> tuple[bool, Any]:
        for each in asked:
            each.begun = True
        try:
            return self._made(variant, call, [each.samples.append for each in asked])
        finally:
            for each in asked:
                each.begun = False

    def _made(
        self,
        variant: Variant,
        call: FunctionCall,
        takers: Sequence[Callable[[Sample], None]],
    ) -> tuple[bool, Any]:
        try:
            outputs = call.record(variant.name, 1)
        except tf.errors.OpError as e:
            begun = functools.partial(call.has_begun, variant.name, e, None, 1)
            if self._strict or not failures.gives_way(e, begun):
                raise
            for key in [k for k, v in self._variants.items() if v is variant]:
                self._variants[key] = None
            failures.warn_of_step(_says(variant.sample.function), e)
            return False, None
        sample = dataclasses.replace(variant.sample, observed=outputs[-1])
        for take in takers:
            take(sample)
        return True, outputs[:-1] or None

    def _variant(self, name: bytes, which: bytes, counts: bool) -> Variant | None:
        key = (which, counts)
        if key not in self._variants:
            self._let_go(name)
            part = fallback.Part(_says(name.decode()), self._strict)
            self._variants[key] = fallback.attempt(
                part,
                lambda: step_variants.registered(name, which, counts),
                lambda: None,
            )
            self._of.setdefault(name, set()).add(which)
        return self._variants[key]

    def _let_go(self, name: bytes) -> None:
        """Removes the variants of twins that are gone."""
        context = context_lib.context()
        gone = [w for w in self._of.get(name, ()) if not context.has_function(w)]
        for which in gone:
            self._of[name].discard(which)
            for counts in (True, False):
                variant = self._variants.pop((which, counts), None)
                if variant is not None:
                    definitions.unregister(context, variant.functions)

    def functions(self, name: bytes) -> list[str]:
        """The names of the functions that are registered for an original."""
        whose = self._of.get(name, ())
        pairs = [self._variants.get((w, c)) for w in whose for c in (True, False)]
        return [each for made in pairs if made is not None for each in made.functions]

    def forget(self, name: bytes) -> None:
        """Drops what is kept for a function that is going; takes no lock."""
        self._calls.pop(name, None)
        for which in self._of.pop(name, ()):
            self._variants.pop((which, True), None)
            self._variants.pop((which, False), None)


def _left(calls: int, monitor: Monitor) -> int:
    """The calls before one that is observed, after so many.

    The first is, and the last of every so many, so that what is read then is new.
    """
    return (monitor.every - 1 - calls) % monitor.every if calls else 0


def _says(name: str) -> str:
    return f"gradients of function {name} are not observed"


def _asked(variant: Variant | None) -> list[Asked]:
    """What is asked about the scalers that a variant's step uses."""
    if variant is None:
        return []
    labels = (gradient.label for gradient in variant.sample.gradients)
    numbers = {int(label.partition(":")[0]) for label in labels}
    return [a for n, a in list(SCALING.asked.items()) if n in numbers and a.open]


def ask() -> bool:
    """Has the next call of every function come by; returns whether any may.

    Called in any thread when `SCALING.asked` or `PROCESS.monitors` has grown.
    """
    policies = list(PROCESS.twins)
    for twins in policies:
        twins.proven.end_all()
    return any(twins.has_functions for twins in policies)


def watch(monitor: Monitor) -> None:
    """Has the calls of functions observed for a monitor, from the next call on.

    As long as there is the monitor: a `fit` that fails tells no callback that it ends.
    """
    PROCESS.monitors = weakref.WeakSet([*PROCESS.monitors, monitor])
    ask()


def unwatch(monitor: Monitor) -> None:
    """Has calls observed for a monitor no more."""
    PROCESS.monitors = weakref.WeakSet(PROCESS.monitors - {monitor})
