"""`ValueCopies`: registers and runs copies of a function that only compute values.

They are the gradients of a training step, or what a function gives that takes none.
Used by `accuracy_check`. What a copy has in it is `normalize.copies`'s to say, and what
its values mean that of `accuracy`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import execute

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import (
    copies,
    inner_steps,
    scale_reads,
    wanted_gradients,
    wanted_results,
)
from amp.graph_rewrite.normalize.wanted import NotRepeatable, Wanted, holder
from amp.integration import as_written, heap, tensor_pool
from amp.integration.observing import result_judge
from amp.integration.observing.accuracy import Value
from amp.integration.process import PROCESS
from amp.integration.runtime import definitions
from amp.loss_scaling.scale import DynamicLossScale, LossScale

_BACKOFF = 2.0**-4  # from one loss scale to the next to try
_TRIES = 8  # so the last is 2**-28 of the first


class NoneTaken(NotRepeatable):
    """The call that was recorded computed nothing, as others of the job may."""


def scales(rule: LossScale) -> list[float]:
    """The scales to try, down to the smallest that a job itself may come to."""
    first = rule.initial
    if not isinstance(rule, DynamicLossScale):
        return [first]
    tried = (max(first * _BACKOFF**number, rule.minimum) for number in range(_TRIES))
    return list(dict.fromkeys(tried))


class Step(Protocol):
    """The job's own step, as the user called it."""

    @property
    def inputs(self) -> Sequence[Any]:
        """The user's arguments."""

    def run(self, which: bytes) -> Any:
        """Calls a function with them."""

    def record(self, which: bytes, more: int) -> Any:
        """Calls a function that has so many further results."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """What a step in float32 was computed from, recorded before it was planned.

    Attributes:
      taken: the edges that it takes from elsewhere.
      batch: the arguments of copies: its own, and the tensors of these edges.
    """

    taken: tuple[ir.Edge, ...]
    batch: tuple[Any, ...]


class Computed(Sequence[Value]):
    """What a copy returned: gradients, or a sample of results.

    Args:
      given: the copy's results.
      scale: the loss scale that gradients are divided by when they are read; None for
        results.
    """

    def __init__(self, given: Sequence[tf.Tensor], scale: float | None) -> None:
        self._given, self._scale = given, scale

    def __getitem__(self, index: Any) -> Any:
        if self._scale is not None:
            return self._given[index].numpy() / np.float32(self._scale)
        flat = tf.reshape(self._given[index], [-1])
        return flat[:: result_judge.step(int(tf.size(flat)))].numpy()

    def __len__(self) -> int:
        return len(self._given)


class ValueCopies:
    """The copies of one function, all run on one batch.

    Args:
      context: TensorFlow's eager context.
      step: the step in float32, calls inlined.
      given: the step as the user made it.
      rule: of loss scaling.

    Attributes:
      batch: what the copies are called with, None before `first`.
      scale: the loss scale of the gradients that were computed last.

    Raises:
      NotRepeatable: its values cannot be computed a second time.
    """

    def __init__(
        self, context: Any, step: ir.Module, given: ir.Module, rule: LossScale
    ) -> None:
        self._context, self._step, self._given, self._rule = context, step, given, rule
        self._registered: list[str] = []
        self._numbers = itertools.count()
        takes = bool(inner_steps.ways(step))
        found = wanted_gradients.gradients if takes else wanted_results.results
        self._wanted = found(step)
        # A copy, registered, and the scale of its gradients.
        self._float32: tuple[ir.Module, bytes, float] | None = None
        self._kept_in = ""  # the variable that holds the rest of the batch,
        self._recorder = b""  # and the function that writes it
        self._gone: weakref.finalize[..., Any] | None = None  # called once
        self.batch: tuple[Any, ...] | None = None
        self.scale = 1.0

    @property
    def wanted(self) -> Wanted:
        """What the copies compute."""
        return self._wanted

    @property
    def labels(self) -> tuple[str, ...]:
        """For each gradient, its scaler and its variable."""
        return self._wanted.labels

    @property
    def names(self) -> tuple[str, ...]:
        """For each value, the node that makes it."""
        return self._wanted.names

    @property
    def weights(self) -> tuple[int, ...]:
        """The numbers of the step's arguments that hold what gradients depend on."""
        return wanted_gradients.weights(self._step, self._wanted)

    def computing_only(self, numbers: Sequence[int]) -> frozenset[str]:
        """The step's nodes from which none but these values are computed."""
        return copies.computing_only(self._step, self._wanted, numbers)

    @property
    def has_step(self) -> bool:
        """Whether a step was recorded; the branch that takes it may have been none."""
        return self.batch is not None and (not self._kept_in or _holds(self._kept_in))

    def begin_with(self, recorded: Recorded) -> None:
        """Takes what an earlier step recorded, so that `first` need not be called."""
        if recorded.taken == tuple(edge for edge, _ in self._wanted.taken):
            self.batch = recorded.batch

    def first(self, call: Step) -> Any:
        """Makes the job's first step, in float32, and keeps what it was computed from.

        Args:
          call: the call that the user made.

        Returns:
          The step's results.
        """
        taken = self._wanted.taken
        own = self._wanted.own(call.inputs)
        if taken:
            if self._wanted.kept is not None:
                if not self._recorder:
                    self._keep(self._recording())
                outputs, self.batch = call.record(self._recorder, 0), own
                return outputs
            with self._added(self._recording()) as recorder:
                outputs = call.record(recorder, len(taken))
            given, outputs = outputs[-len(taken) :], outputs[: -len(taken)] or None
        else:
            given, outputs = [], call.run(self._given.main.name.encode())
        self.batch = (*own, *given)
        return outputs

    def _recording(self) -> ir.Module:
        name = f"{self._step.main.name}_recorded"
        return copies.recorded(self._step, self._wanted, name)

    def _keep(self, recorder: ir.Module) -> None:
        """Registers a function until a call of it takes a step.

        Both it and its variable go with this object: the variable at the next check, as
        no finalizer runs an operation.
        """
        _let_go()
        name, registered = recorder.main.name, self._registered
        self._gone = weakref.finalize(self, _leave, self._context, registered, name)
        self._gone.atexit = False
        self._kept_in, self._recorder = name, self._add(recorder)

    def values(self, step: ir.Module) -> Computed:
        """The values of a step, gradients divided by the loss scale.

        These are scaled as a dynamic scaler would after some steps: by the largest
        scale at which they are finite.

        Args:
          step: in float32 or rewritten.

        Raises:
          NotRepeatable: it depends on more than the step in float32 does, or TensorFlow
        cannot run it.
        """
        with self._added(self._copy(step)) as function:
            return self._scaled(function)

    def exact(self) -> list[Value]:
        """The values in float32, as `values` gives them, but copied.

        Raises:
          NotRepeatable: TensorFlow cannot run it, or the recorded call took none
            (`NoneTaken`).
        """
        if self._kept_in:
            assert self.batch is not None
            self._remove(0)
            types = [number for _, number in self._wanted.taken]
            self.batch += _kept(self._kept_in, types)
        copy = self._copy(self._step)
        function = self._add(copy)
        found = list(self._scaled(function))
        self._float32 = copy, function, self.scale
        return found

    def again(self) -> Computed:
        """The values in float32 once more, after `exact` and as it gave them.

        They differ where the variables have changed meanwhile.

        Raises:
          NotRepeatable: TensorFlow cannot run it.
        """
        assert self._float32 is not None
        return self._repeated(self._float32[2])

    def plain(self) -> Computed | None:
        """The gradients in float32 without a scale, after `exact`.

        None where a dynamic scale is no part of the step, or where the step reads it by
        itself. Otherwise they are the same but for rounding, as gradients are linear in
        the scale, unless a custom one is not.

        Raises:
          NotRepeatable: TensorFlow cannot run it.
        """
        assert self._float32 is not None
        copy = self._float32[0]
        dynamic = self._wanted.scaled and isinstance(self._rule, DynamicLossScale)
        at = holder(self._step, self._wanted)
        if not dynamic or scale_reads.outside_seeds(at, copy.main):
            return None
        return self._repeated(1.0)

    def _repeated(self, scale: float) -> Computed:
        assert self._float32 is not None
        copy, function, _ = self._float32
        if copies.is_random(copy):  # a new function draws the same numbers
            return self.exact_at(scale)
        return self._run(function, scale)

    def exact_at(self, scale: float) -> Computed:
        """The gradients in float32 with a loss scale, divided by it."""
        with self._added(self._copy(self._step)) as function:
            return self._run(function, scale)

    def _copy(self, step: ir.Module) -> ir.Module:
        name = f"{step.main.name}_copy_{next(self._numbers)}"
        return copies.computing(step, self._wanted, name)

    def _scaled(self, function: bytes) -> Computed:
        if not self._wanted.scaled:
            return self._run(function, 1.0)
        found = Computed((), 1.0)
        for scale in scales(self._rule):
            self.scale, found = scale, self._run(function, scale)
            if all(np.isfinite(gradient).all() for gradient in found):
                break
        return found

    def _run(self, function: bytes, scale: float) -> Computed:
        assert self.batch is not None
        inputs = [*self.batch]
        if self._wanted.scaled:
            inputs.append(tf.constant(scale, tf.float32))
        try:
            outputs = execute.execute(
                function.decode(),
                num_outputs=len(self._wanted.reads),
                inputs=inputs,
                attrs=as_written.options(),
                ctx=self._context,
            )
        except tf.errors.OpError as e:  # no memory, or no kernel where XLA needs none
            raise NotRepeatable(f"a copy does not run: {e.message}") from e
        return Computed(outputs, scale if self._wanted.gradients else None)

    def _add(self, module: ir.Module) -> bytes:
        """Registers a main function, and of what it calls what TensorFlow lacks."""
        self._registered += definitions.register(self._context, module)
        return module.main.name.encode()

    @contextlib.contextmanager
    def _added(self, module: ir.Module) -> Iterator[bytes]:
        """Has a copy registered as long as it is needed: each has an executor."""
        before = len(self._registered)
        try:
            yield self._add(module)
        finally:
            self._remove(before)

    def _remove(self, since: int) -> None:
        """Removes functions from TensorFlow's runtime, and gives their memory back."""
        definitions.unregister(self._context, self._registered[since:])
        del self._registered[since:]
        heap.trim()
        tensor_pool.trim()

    def drop(self) -> None:
        """Forgets the batch and removes the functions from TensorFlow's runtime."""
        self.batch = None
        if self._gone is not None:
            self._gone()
        _let_go()
        self._remove(0)


def _leave(context: Any, registered: list[str], name: str) -> None:
    definitions.unregister(context, registered)
    PROCESS.left.append(name)


def _holds(name: str) -> bool:
    return bool(tf.raw_ops.VarIsInitializedOp(resource=_variable(name)))


def _kept(name: str, types: Sequence[int]) -> tuple[tf.Tensor, ...]:
    """What the variable of a name holds (`inner_steps.keeping`).

    Raises:
      NoneTaken: nothing, as no trip of the loop was made, or not that branch.
    """
    if not _holds(name):
        raise NoneTaken("nothing was computed at the calls that were recorded")
    held = tf.raw_ops.ReadVariableOp(resource=_variable(name), dtype=tf.variant)
    found = tf.raw_ops.OptionalGetValue(
        optional=held,
        output_types=[tf.as_dtype(number) for number in types],
        output_shapes=[tf.TensorShape(None)] * len(types),
    )
    return (*found,)


def _let_go() -> None:
    """Destroys the variables of checks that are gone."""
    while PROCESS.left:
        tf.raw_ops.DestroyResourceOp(resource=_variable(PROCESS.left.popleft()))


def _variable(name: str) -> Any:
    with tf.device("/device:CPU:0"):
        return tf.raw_ops.VarHandleOp(dtype=tf.variant, shape=[], shared_name=name)
