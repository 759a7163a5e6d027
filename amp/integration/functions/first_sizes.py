"""`FirstSizes`: what the first step of a function tells of sizes, before it is planned.

Where the arguments of the first call do not tell all sizes (a batch that an iterator
gives inside the function, `tf.where`), that call runs the function in float32 with the
shapes of these tensors as further results, and the twin is made at the next call. The
same step records what gradients are compared on (`gradient_copies`). Used by `twins`;
which tensors matter is `normalize.size_roots`'s and `gradients_only`'s to say.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import calls, ir, op_schema, serde
from amp.graph_rewrite.normalize import gradients_only, size_roots
from amp.graph_rewrite.normalize.gradients_only import Gradients, NotRepeatable
from amp.graph_rewrite.normalize.sizes import SizesAtCall
from amp.graph_rewrite.rewrite import Begun
from amp.integration import fallback
from amp.integration.functions import (
    definitions,
    gradient_check,
    shape_inference,
    twin_making,
)
from amp.integration.functions.function_call import FunctionCall
from amp.integration.functions.gradient_copies import Recorded
from amp.loss_scaling.once import Once


@dataclasses.dataclass(slots=True)
class _Started:
    """A function that was read, before it is planned.

    Attributes:
      begun: as it was read; None once it is being planned.
      roots: the tensors whose shapes its first step is to tell.
      teller: the function that tells them, b"" where nothing is to be told any more.
      functions: names of what was registered for it.
      wanted: the gradients to compare, None where none are to be.
      recorded: what they are computed from, once the step was made.
    """

    begun: Begun | None
    roots: tuple[ir.Edge, ...] = ()
    teller: bytes = b""
    functions: tuple[str, ...] = ()
    wanted: Gradients | None = None
    recorded: Recorded | None = None

    @property
    def taken(self) -> tuple[ir.Edge, ...]:
        """The tensors that the step takes from elsewhere, and that it records."""
        taken = () if self.wanted is None else self.wanted.taken
        return tuple(edge for edge, _ in taken)


class FirstSizes:
    """The functions of one policy that were read and are not planned yet.

    Args:
      settled: policy and device.
    """

    def __init__(self, settled: Resolution) -> None:
        assert settled.policy is not None
        self._settled, self._policy = settled, settled.policy
        self._started: dict[bytes, _Started] = {}
        self._once = Once()

    def step(self, context: Any, name: bytes, call: FunctionCall) -> tuple[bool, Any]:
        """Makes the job's step in float32, if it is to tell sizes.

        Args:
          context: TensorFlow's eager context.
          name: the function's.
          call: the call that the user made.

        Returns:
          Whether the step was made, and if so its results.
        """
        started = self._once.get(
            name,
            lambda: self._started.get(name),
            lambda: self._start(context, name, call),
        )
        if started is None or not started.teller:
            return False, None
        roots, teller, taken = started.roots, started.teller, started.taken
        more = len(roots) + len(taken)
        try:
            outputs = call.record(teller, more)
        except tf.errors.OpError as e:
            begun = call.has_begun(teller, e, None, more)
            if self._policy.strict or begun:
                raise
            fallback.failed(_says(name), e)
            started.teller = b""
            return False, None
        told = zip(roots, outputs[-len(roots) :], strict=True)
        tensors = {edge: tuple(shape.numpy().tolist()) for edge, shape in told}
        sizes = shape_inference.at_call(call.inputs, tensors)
        if started.begun is not None and started.teller:
            started.begun = started.begun.resized(sizes)
            if started.wanted is not None:
                own = () if started.wanted.inner else call.inputs
                given = outputs[-more : -len(roots)]
                started.recorded = Recorded(taken, (*own, *given))
            started.teller = b""
        return True, outputs[:-more] or None

    def take(self, context: Any, name: bytes) -> tuple[Begun | None, Recorded | None]:
        """The function as it was read, with all that is known of its sizes.

        What was made to find out is removed.

        Returns:
          The function, None if it was not read; and what its step in float32 was
          computed from, if that was recorded.
        """
        started = self._started.get(name)
        if started is None:
            return None, None
        for function in started.functions:
            context.remove_function(function)
        begun, started.begun, started.functions = started.begun, None, ()
        recorded, started.recorded = started.recorded, None
        return begun, recorded

    def forget(self, name: bytes) -> list[str]:
        """Drops a function that is going; takes no lock.

        Returns:
          The names of the functions that were registered for it.
        """
        started = self._started.pop(name, None)
        return [] if started is None else list(started.functions)

    def _start(self, context: Any, name: bytes, call: FunctionCall) -> _Started | None:
        # What fails here fails again when the function is planned, and is said there.
        sizes = shape_inference.at_call(call.inputs)
        started = fallback.attempt_quietly(
            lambda: self._read(context, name, sizes), None
        )
        if started is not None:
            self._started[name] = started
        return started

    def _read(self, context: Any, name: bytes, sizes: SizesAtCall) -> _Started | None:
        module = definitions.read(context, name.decode())
        begun = twin_making.begun(module, self._settled, sizes)
        compiled = calls.MUST_COMPILE in begun.given.main.flags
        # What converts everything has no use for sizes.
        if self._policy.assignment == "all" or self._policy.emulate or compiled:
            return _Started(begun)
        roots = begun.roots
        if not roots:
            return _Started(begun)
        suffix = f"{definitions.new_suffix()}_sizes"
        module, wanted = begun.in_float32(suffix), None
        told = f"{begun.given.main.name}{suffix}_told"
        if not gradient_check.why_not(self._policy):
            wanted = _gradients(module)
        if wanted is not None:
            module = gradients_only.recorded(module, wanted, told)
        module = size_roots.telling(module, roots, told)
        lookup = op_schema.lookup_of(module)
        made = []
        for graph in (*module.functions.values(), module.main):
            if not context.has_function(graph.name):
                context.add_function_def(serde.write_function(graph, lookup))
                made.append(graph.name)
        return _Started(begun, roots, told.encode(), tuple(made), wanted)


def _gradients(step: ir.Module) -> Gradients | None:
    """The gradients of a step in float32, as far as they can be computed again."""
    try:
        return gradients_only.gradients(step)
    except NotRepeatable:
        return None


def _says(name: bytes) -> str:
    return f"sizes of function {name.decode()} are assumed, its first step tells none"
