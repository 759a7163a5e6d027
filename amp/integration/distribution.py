"""Replica threads: what holds for the thread that starts them holds in them too.

Knows how MirroredStrategy runs replicas; agreeing on overflows is not its work.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import mirrored_run

from amp.errors import TensorFlowError


def install(state: Callable[[], Any], restore: Callable[[Any], None]) -> None:
    """Decorates MirroredStrategy's threads, once per process.

    Args:
      state: what holds for the current thread.
      restore: makes it hold for the current thread.

    Raises:
      TensorFlowError: a private name is missing.
    """
    thread = getattr(mirrored_run, "_MirroredReplicaThread", None)
    if thread is None or "fn" not in inspect.signature(thread.__init__).parameters:
        raise TensorFlowError(
            f"TensorFlow {tf.__version__} starts replicas in another way",
            where="mirrored_run._MirroredReplicaThread",
            allowed="TensorFlow 2.18 to 2.21",
            remedy="install a supported version, or a newer version of this package",
        )
    if getattr(thread.run, "_amp_original", None) is not None:
        return
    begin, run = thread.__init__, thread.run

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._amp_state = state()

    @functools.wraps(run)
    def run_inside(self: Any) -> None:
        restore(self._amp_state)
        run(self)

    run_inside._amp_original = run  # type: ignore[attr-defined]
    thread.__init__, thread.run = __init__, run_inside
