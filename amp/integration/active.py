"""Whether mixed precision is on here and now: the stack of scopes, the process switch.

Read by every hook, at every call; `api` enters scopes and settles policies. No hook
lives here, and how a policy is carried out is not known.

The stack is a context variable: each thread, and each asyncio task, has its own, and a
new thread's is empty. A generator shares that of its caller, so a scope is left by what
entered it, and not by its place on the stack.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from amp.graph_rewrite.cost.resolution import Resolution
from amp.integration.nesting import Nesting
from amp.integration.process import PROCESS
from amp.loss_scaling.scale import LossScale, NoLossScale
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Active:
    """What holds for a thread or task now.

    Attributes:
      settled: the policy as settled on this machine.
      twins: what makes and calls the twins of functions (a `functions.twins.Twins`),
        None where functions run as they are.
      kept: whether `keep_float32` was entered. Functions in whose trace a scope was
        entered then run in float32 too.
    """

    settled: Resolution
    twins: Any
    kept: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """A policy that is on, but settled only at the first use.

    Attributes:
      policy: as the user has given it.
      settle: settles it and puts the result in the place of this.
    """

    policy: Policy
    settle: Callable[[Waiting], None]

    def __call__(self) -> None:
        self.settle(self)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    active: Active
    owner: object


Scopes: TypeAlias = tuple[_Entry, ...]
_SCOPES: contextvars.ContextVar[Scopes] = contextvars.ContextVar("amp", default=())


# Forward accumulators that record; TensorFlow has them by thread.
FORWARD = Nesting()

# Loops that this thread is building in vectorised form.
VECTORISED = Nesting()

_scopes = _SCOPES.get


def active() -> Active | None:
    """The innermost scope, else what `enable` switched on, else None."""
    scopes = _scopes()
    if scopes:
        return scopes[-1].active
    waiting = PROCESS.waiting  # another thread may settle it
    if waiting is not None:
        waiting()
    on: Active | None = PROCESS.on
    return on


# The next two do what `active` does without calling it: they are part of every call.


def active_twins() -> Any:
    """The twins to call through, None where functions run as they are."""
    scopes = _scopes()
    if scopes:
        return scopes[-1].active.twins
    waiting = PROCESS.waiting  # another thread may settle it
    if waiting is not None:
        waiting()
    on = PROCESS.on
    return None if on is None else on.twins


def is_kept() -> bool:
    """Whether `keep_float32` is what was entered last."""
    scopes = _scopes()
    return bool(scopes) and scopes[-1].active.kept


def active_loss_scale() -> LossScale | None:
    """The loss-scaling rule that gradients are taken with, None where it is off.

    While a forward accumulator records there is no scale: see `forward_mode`. Nor is
    there in a vectorised loop, where the state of a scaler cannot change. Functions
    that are called in one have traces of their own for that.
    """
    scopes = _scopes()
    waiting = PROCESS.waiting
    if waiting is not None and not scopes:
        waiting()
    policy = _policy()
    if policy is None:
        return None
    return NoLossScale() if FORWARD or VECTORISED else policy.loss_scale


def active_dtype() -> str:
    """The 16-bit type of the policy that holds now, "" where it is off."""
    policy = _policy()
    return "" if policy is None else policy.dtype


def is_strict() -> bool:
    """Whether the policy that holds now is `strict`: failures are raised.

    Settles nothing: it is asked while Keras is imported, before the job has chosen its
    devices.
    """
    scopes = _scopes()
    waiting = PROCESS.waiting
    if waiting is not None and not scopes:
        waits: bool = waiting.policy.strict
        return waits
    policy = _policy()
    return policy is not None and policy.strict


def _policy() -> Policy | None:
    """The policy that holds now, None where mixed precision is off."""
    scopes = _scopes()
    now = scopes[-1].active if scopes else PROCESS.on
    policy: Policy | None = None if now is None else now.settled.policy
    return policy


def push(now: Active, owner: object) -> None:
    """Begins a scope.

    Args:
      now: what holds inside.
      owner: what ends the scope.
    """
    _SCOPES.set((*_SCOPES.get(), _Entry(now, owner)))


def pop(owner: object) -> Active | None:
    """Ends the innermost scope that `owner` began here; None if there is none.

    There is none where a generator is closed by another thread or task than ran it.
    """
    scopes = _SCOPES.get()
    for index in range(len(scopes) - 1, -1, -1):
        if scopes[index].owner is owner:
            _SCOPES.set(scopes[:index] + scopes[index + 1 :])
            return scopes[index].active
    return None


def scopes() -> Scopes:
    """The scopes that hold now, to be carried to another thread."""
    return _SCOPES.get()


def restore(scopes: Scopes) -> None:
    """Makes scopes that `scopes` returned in another thread hold here."""
    _SCOPES.set(scopes)
