"""A function with the tensors of one call of it, and the state that a run may change.

`paired_runs` makes the runs. No tensor is looked at here, and the function is never
run: its call is caught before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp.errors import GraphError
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import ir
from amp.integration import active, api
from amp.integration.active import Active
from amp.integration.files import given_functions
from amp.integration.measuring import hardware
from amp.integration.runtime.unasked import Unasked
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A function, traced and with the arguments of a call.

    Attributes:
      concrete: the ConcreteFunction.
      module: its graph.
      settled: policy and device.
      inputs: the tensors that it is called with, captured ones too.
      notes: what the user should know of how the policy was settled.
    """

    concrete: Any
    module: ir.Module
    settled: Resolution
    inputs: tuple[Any, ...]
    notes: tuple[str, ...]

    @property
    def policy(self) -> Policy:
        """The policy without "auto"."""
        assert self.settled.policy is not None
        return self.settled.policy


def traced(
    fn: Any,
    args: Sequence[Any],
    named: Mapping[str, Any],
    policy: Policy | None,
) -> Traced:
    """Traces a function under a policy, and catches the tensors of a call.

    Args:
      fn: a tf.function or callable, or a ConcreteFunction.
      args: the positional arguments of the call.
      named: those by keyword (of a signature).
      policy: the policy; by default that of the `AMP_*` variables. Emulated where the
        device has no 16-bit arithmetic.

    Raises:
      GraphError: the call does not reach the function.
      PolicyError: a pattern that matches nothing, an unknown target.
    """
    policy, notes = computable(Policy.make(policy))
    (concrete, module), settled = given_functions.read(fn, tuple(args), policy)
    inputs = _caught(concrete, args, named)
    return Traced(concrete, module, settled, inputs, notes)


def computable(policy: Policy) -> tuple[Policy, tuple[str, ...]]:
    """The policy, emulated if the device has no arithmetic in its type; and says so."""
    native = hardware.device().native
    if policy.emulate or policy.dtype in native or (policy.dtype == "auto" and native):
        notes = ("emulated: float32 kernels, 16-bit values",) if policy.emulate else ()
        return policy, notes
    dtype = "float16" if policy.dtype == "auto" else policy.dtype
    note = (
        f"emulated: this {hardware.device().name} has no {dtype} arithmetic, so values "
        "are rounded in float32 kernels"
    )
    return Policy.make(policy, dtype=dtype, emulate=True), (note,)


class _CaughtError(Exception):
    """Not an error: ends the call whose arguments were wanted."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.inputs = tuple(inputs)


class _Catcher:
    """Stands where the twins of a policy stand, and catches a call."""

    def __init__(self) -> None:
        self.proven: Unasked[bytes, bytes] = Unasked()

    def on(self, device: str, context: Any, name: bytes) -> _Catcher:
        return self

    def call(self, call: Any, context: Any, name: bytes) -> Any:
        raise _CaughtError(call.inputs)


def _caught(
    concrete: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Any, ...]:
    owner = object()
    settled = api.settle(Policy(dtype="bfloat16", emulate=True)).settled
    active.push(Active(settled, _Catcher()), owner)
    try:
        concrete(*args, **named)
    except _CaughtError as caught:
        return caught.inputs
    finally:
        active.pop(owner)
    raise GraphError(
        "no call of a function was seen",
        where="amp.compare(fn, *inputs)",
        allowed="a function that TensorFlow runs as a graph, called eagerly",
        remedy="call amp.compare outside of tf.function and of tf.Graph",
    )


class State:
    """The variables that a function may change, as they were, to be restored.

    Args:
      inputs: the tensors that it is called with; those that are handles of variables
        with a value are kept.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._kept = {
            index: (tensor, _value(tensor))
            for index, tensor in enumerate(inputs)
            if tensor.dtype == tf.resource and _is_variable(tensor)
        }

        self._held: dict[int, Any] = {}

    @property
    def places(self) -> frozenset[int]:
        """Which of the inputs are handles of variables."""
        return frozenset(self._kept)

    def hold(self, variable: Any, value: float) -> bool:
        """Has runs begin with another value of a variable, until `release`.

        Returns:
          Whether the function uses that variable.
        """
        for place, (handle, _) in self._kept.items():
            if handle is variable.handle:
                self._held[place] = tf.constant(value, variable.dtype)
                self.restore()
                return True
        return False

    def restore(self) -> None:
        """Gives every variable the value that runs begin with."""
        for place, (handle, value) in self._kept.items():
            value = self._held.get(place, value)
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def release(self) -> None:
        """Gives every variable the value that it had at first."""
        self._held.clear()
        self.restore()


def _is_variable(handle: Any) -> bool:
    if not handle._handle_data or not handle._handle_data.shape_and_type:
        return False
    return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def _value(handle: Any) -> Any:
    dtype = tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
