"""Threads of strategies: what holds for the thread that starts them holds in them too.

Knows how MirroredStrategy runs replicas, and a coordinator what it scheduled; agreeing
on overflows is not its work.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import mirrored_run
from tensorflow.python.distribute.coordinator import cluster_coordinator

from amp.errors import TensorFlowError


def install(state: Callable[[], Any], restore: Callable[[Any], None]) -> None:
    """Decorates MirroredStrategy's threads and what coordinators schedule, once.

    Args:
      state: what holds for the current thread.
      restore: makes it hold for the current thread.

    Raises:
      TensorFlowError: a private name is missing.
    """
    thread = getattr(mirrored_run, "_MirroredReplicaThread", None)
    closure = getattr(cluster_coordinator, "Closure", None)
    _check(thread, "__init__", "fn", "mirrored_run._MirroredReplicaThread")
    _check(closure, "__init__", "function", "cluster_coordinator.Closure")
    _check(closure, "execute_on", "worker", "cluster_coordinator.Closure")
    if getattr(thread.run, "_amp_original", None) is None:  # type: ignore[union-attr]
        _carry(thread, "run", state, restore)
        _carry(closure, "execute_on", state, restore)


def _carry(
    owner: Any, name: str, state: Callable[[], Any], restore: Callable[[Any], None]
) -> None:
    """Has what held where an object was made hold in one of its methods."""
    begin, run = owner.__init__, getattr(owner, name)

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._amp_state = state()

    @functools.wraps(run)
    def run_inside(self: Any, *args: Any) -> None:
        before = state()
        restore(self._amp_state)
        try:
            run(self, *args)
        finally:
            restore(before)  # a coordinator's thread goes on with something else

    run_inside._amp_original = run  # type: ignore[attr-defined]
    owner.__init__ = __init__
    setattr(owner, name, run_inside)


def _check(owner: Any, name: str, parameter: str, where: str) -> None:
    found: Any = getattr(owner, name, None)
    if (
        owner is None
        or found is None
        or parameter not in inspect.signature(found).parameters
    ):
        raise TensorFlowError(
            f"TensorFlow {tf.__version__} starts replicas in another way",
            where=f"{where}.{name}",
            allowed="TensorFlow 2.18 to 2.21",
            remedy="install a supported version, or a newer version of this package",
        )
