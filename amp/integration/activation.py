"""Whether mixed precision is on: scopes, the process switch, `keep_float32`.

Per thread and nested; decides nothing about graphs and holds no hook of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from amp.errors import TensorFlowError
from amp.graph_rewrite.cost.device import Resolution, resolve
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_names import check_op_names
from amp.integration.distributed import strategy_threads, workers
from amp.integration.functions import function_hooks
from amp.integration.functions.twins import Twins
from amp.integration.measuring import hardware
from amp.integration.sessions import session_hooks
from amp.integration.training import (
    gradient_hooks,
    keras_weights,
    markers,
    optimizer_hooks,
)
from amp.loss_scaling.scale import LossScale
from amp.policy import Policy

OLDEST = (2, 18)


@dataclasses.dataclass(frozen=True, slots=True)
class Active:
    """What holds for a thread now: a settled policy's twins, None where it is off."""

    settled: Resolution
    twins: Twins | None


class _Stack(threading.local):
    def __init__(self) -> None:
        self.entries: list[Active] = []


_STACK = _Stack()
_LOCK = threading.Lock()
_SETTLED: dict[Policy, Active] = {}
_process: Active | None = None
_waiting: Policy | None = None
_installed = False


def active() -> Active | None:
    """The innermost scope of this thread, else what `enable` switched on, else None."""
    entries = _STACK.entries
    if entries:
        return entries[-1]
    waiting = _waiting
    if waiting is not None:
        enable(waiting)
    return _process


def active_twins() -> Twins | None:
    """The twins to call through, None where functions run as they are."""
    now = active()
    return None if now is None else now.twins


def active_loss_scale() -> LossScale | None:
    """The loss-scaling rule that gradients are taken with, None where it is off."""
    now = active()
    if now is None or now.settled.policy is None:
        return None
    rule: LossScale = now.settled.policy.loss_scale
    return rule


def settle(policy: Policy) -> Active:
    """Settles a policy on this machine; the same policy gives the same twins."""
    with _LOCK:
        if policy not in _SETTLED:
            _install()
            settled = resolve(policy, hardware.device())
            twins = None
            if settled.policy is None:
                logging.warning("amp: %s", settled.reason)
            else:
                check_op_names(settled.policy)
                logging.info("amp: %s", settled.reason)
                twins = Twins(settled)
            _SETTLED[policy] = Active(settled, twins)
        return _SETTLED[policy]


class mixed_precision_scope(contextlib.ContextDecorator):
    """Runs what is called and what is built inside in mixed precision.

    Around eager calls of functions, around graph building, or inside a function being
    traced, whose whole graph it then covers whenever the function runs. Single eager
    operations are left alone. Nests, works per thread, may be entered again, and
    decorates a function as well.

    Args:
      policy: the policy, `Policy()` by default.
      **fields: fields of the policy to replace.

    Raises:
      PolicyError: a field that cannot be understood.
      TensorFlowError: a TensorFlow that the plugin cannot work with.
    """

    def __init__(self, policy: Policy | None = None, **fields: Any) -> None:
        self.policy = Policy.make(policy, **fields)

    def __enter__(self) -> Policy:
        """Returns the policy in force."""
        now = settle(self.policy)
        if not tf.executing_eagerly() and now.twins is not None:
            function_hooks.mark(tf.compat.v1.get_default_graph(), now.twins)
        _STACK.entries.append(now)
        return self.policy

    def __exit__(self, *error: object) -> None:
        now = _STACK.entries.pop()
        if now.twins is not None:
            now.twins.warn_unmatched()


def enable(policy: Policy | None = None, **fields: Any) -> Policy:
    """Switches mixed precision on for the process, in every thread.

    Args:
      policy: the policy, `Policy()` by default.
      **fields: fields of the policy to replace.

    Returns:
      The policy in force.

    Raises:
      PolicyError: a field that cannot be understood.
      TensorFlowError: a TensorFlow that the plugin cannot work with.
    """
    global _process, _waiting
    policy = Policy.make(policy, **fields)
    _process, _waiting = settle(policy), None
    return policy


def enable_at_first_use(policy: Policy) -> None:
    """`enable`, but the device is asked for only when a function runs.

    A job chooses its devices after importing TensorFlow; what it chose then counts.

    Raises:
      PolicyError: an op type that TensorFlow does not know.
      TensorFlowError: a TensorFlow that the plugin cannot work with.
    """
    global _waiting
    _install()
    check_op_names(policy)
    _waiting = policy


def disable() -> None:
    """Switches off what `enable` switched on, from the next call of a function."""
    global _process, _waiting
    was, _process, _waiting = _process, None, None
    if was is not None and was.twins is not None:
        was.twins.warn_unmatched()


@contextlib.contextmanager
def keep_float32() -> Iterator[None]:
    """Keeps in float32 what is built inside, and functions called eagerly inside.

    Works in any graph, whether or not mixed precision is on yet.
    """
    now = active()
    if now is not None:
        _STACK.entries.append(dataclasses.replace(now, twins=None))
    try:
        with markers.attribute_scope(ir.KEEP):
            yield
    finally:
        if now is not None:
            _STACK.entries.pop()


def _install() -> None:
    """Checks TensorFlow's version and installs every hook, once."""
    global _installed
    if _installed:
        return
    check_version(tf.__version__)
    function_hooks.install(active_twins, active_loss_scale)
    gradient_hooks.install()
    optimizer_hooks.install()
    session_hooks.install(active_twins)
    strategy_threads.install(lambda: list(_STACK.entries), _restore)
    workers.install()
    keras_weights.install()
    _installed = True


def _restore(entries: list[Active]) -> None:
    _STACK.entries = list(entries)


def check_version(version: str) -> None:
    """Raises for a TensorFlow that is too old.

    Raises:
      TensorFlowError: naming the version found and the oldest supported.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST:
        raise TensorFlowError(
            f"TensorFlow {version} is too old",
            where="tensorflow.__version__",
            allowed="TensorFlow 2.18 or newer",
            remedy="pip install --upgrade tensorflow",
        )
