"""What users call: scopes, `enable` and `disable`, `keep_float32`.

Settles policies on this machine. What is on is kept by `active`; no hook and nothing of
how a policy is carried out is known here.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from amp import messages
from amp.errors import AmpError, PolicyError
from amp.graph_rewrite.cost import resolution, shipped_devices
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_names import check_op_names
from amp.integration import active, fallback
from amp.integration.active import Active
from amp.integration.functions import function_hooks
from amp.integration.functions.twins import Twins
from amp.integration.install import install
from amp.integration.measuring import hardware
from amp.integration.process import PROCESS
from amp.integration.training import markers
from amp.once import Once
from amp.policy import Policy

_SETTLING = Once()
_SWITCHING = threading.RLock()  # held for a line: who switches last has the say
# What holds inside `keep_float32` where no scope was entered before it.
_NOTHING = resolution.Resolution(None, shipped_devices.REFERENCE, "keep_float32")


class mixed_precision_scope(contextlib.ContextDecorator):
    """Runs what is called and what is built inside in mixed precision.

    Around eager calls of functions, around graph building, or inside a function being
    traced, whose whole graph it then covers whenever the function runs. Single eager
    operations are left alone. Nests, works per thread and per asyncio task, may be
    entered again, and decorates a function or a coroutine function as well.

    Args:
      policy: the policy; by default that of the `AMP_*` variables.
      **fields: fields of the policy to replace.

    Raises:
      PolicyError: a field that cannot be understood, or a generator is decorated.
      TensorFlowError: a TensorFlow that the plugin cannot work with.
    """

    def __init__(self, policy: Policy | None = None, **fields: Any) -> None:
        self.policy = Policy.make(policy, **fields)

    def __enter__(self) -> Policy:
        """Returns the policy in force."""
        now = settle(self.policy)
        if not tf.executing_eagerly() and now.twins is not None:
            function_hooks.mark(tf.compat.v1.get_default_graph(), now.twins)
        active.push(now, self)
        return self.policy

    def __call__(self, function: Any) -> Any:
        """Decorates a function; of a coroutine function, what is awaited runs inside.

        Raises:
          PolicyError: a generator, whose body runs by parts in the code of who takes
            its elements.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(
            function
        ):
            raise PolicyError(
                "a scope decorates a generator",
                where=getattr(function, "__qualname__", repr(function)),
                allowed="functions and coroutine functions",
                remedy="write `with amp.mixed_precision_scope():` in its body, around "
                "what is computed and not around a `yield`",
            )
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)

        @functools.wraps(function)
        async def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return inside

    def __exit__(self, *error: object) -> None:
        was = active.pop(self)
        if was is not None and was.twins is not None:
            was.twins.keep_patterns.warn()


def enable(policy: Policy | None = None, **fields: Any) -> Policy:
    """Switches mixed precision on for the process, in every thread.

    Args:
      policy: the policy; by default that of the `AMP_*` variables.
      **fields: fields of the policy to replace.

    Returns:
      The policy in force.

    Raises:
      PolicyError: a field that cannot be understood.
      TensorFlowError: a TensorFlow that the plugin cannot work with.
    """
    policy = Policy.make(policy, **fields)
    now = settle(policy)
    with _SWITCHING:
        PROCESS.on, PROCESS.waiting = now, None
    return policy


def enable_at_first_use(policy: Policy) -> None:
    """`enable`, but the policy is settled only when a function runs.

    A job chooses its devices, and loads libraries of ops that the policy may name,
    after importing TensorFlow; what there is then counts.

    Raises:
      TensorFlowError: a TensorFlow that the plugin cannot work with.
    """
    install()
    PROCESS.waiting = active.Waiting(policy, _begin)


def _begin(waiting: active.Waiting) -> None:
    """Settles what waited for the first call; a failure leaves the job as it was.

    What another thread has switched on or off meanwhile stays.
    """
    policy = waiting.policy
    says = "mixed precision is off"
    part = fallback.Part(says, policy.strict)
    on = fallback.attempt(part, lambda: settle(policy), lambda: None)
    with _SWITCHING:
        if PROCESS.waiting is waiting:
            PROCESS.on, PROCESS.waiting = on, None


def disable() -> None:
    """Switches off what `enable` switched on, from the next call of a function."""
    with _SWITCHING:
        was, PROCESS.on, PROCESS.waiting = PROCESS.on, None, None
    if was is not None and was.twins is not None:
        was.twins.keep_patterns.warn()


@contextlib.contextmanager
def keep_float32() -> Iterator[None]:
    """Keeps in float32 what is built inside, and functions called eagerly inside.

    Works in any graph, whether or not mixed precision is on yet.
    """
    now, owner = active.active(), object()
    settled = _NOTHING if now is None else now.settled
    active.push(Active(settled, twins=None, kept=True), owner)
    try:
        with markers.attribute_scope(ir.KEEP):
            yield
    finally:
        active.pop(owner)


def settle(policy: Policy) -> Active:
    """Settles a policy on this machine; the same policy gives the same twins.

    Where the machine cannot be asked what it is, mixed precision is off, with a
    warning; under `strict` that is an error.

    Raises:
      PolicyError: an op type that TensorFlow does not know, or cannot be 16-bit.
      TensorFlowError: a TensorFlow that the plugin cannot work with.
    """
    find = functools.partial(PROCESS.settled.get, policy)
    now: Active | None = _SETTLING.get(policy, find, lambda: _settle(policy))
    return _off(policy) if now is None else now


def _settle(policy: Policy) -> Active:
    install()
    part = fallback.Part("mixed precision is off", policy.strict, raises=(AmpError,))
    off = functools.partial(_off, policy)
    with fallback.strictly(policy.strict):
        settled = fallback.attempt(part, lambda: _settled(policy), off)
    PROCESS.settled[policy] = settled
    return settled


def _settled(policy: Policy) -> Active:
    settled = hardware.resolve(policy)
    if settled.policy is None:
        messages.log("%s", settled.reason)
        return Active(settled, None)
    check_op_names(settled.policy)
    if PROCESS.begins is None:  # else the job's first line says so
        messages.info("%s", settled.reason)
    return Active(settled, Twins(settled, policy))


def _off(policy: Policy) -> Active:
    """What holds under a policy that could not be settled."""
    reason = "mixed precision is off: this machine could not be asked what it is"
    return Active(resolution.Resolution(None, shipped_devices.CPU_PLAIN, reason), None)
