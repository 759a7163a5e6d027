"""A stopwatch of phases that lie in one another; which there are is not known here."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

# Inside of these, calls of TensorFlow are their own.
OPAQUE = ("measure", "compare gradients")


class Phases:
    """The seconds of each phase, without those of the phases in it.

    Args:
      clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._inside: list[list[Any]] = []  # [phase, seconds of phases in it]

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times what is inside as a phase."""
        if self._inside and self._inside[-1][0] in OPAQUE:
            yield
            return
        self._inside.append([name, 0.0])
        start = self._clock()
        try:
            yield
        finally:
            took = self._clock() - start
            _, inner = self._inside.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + took - inner
            if self._inside:
                self._inside[-1][1] += took

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed as a phase."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return call

    def watch(self, name: str, owner: Any, attribute: str) -> None:
        """Has a function timed as a phase wherever its owner is asked for it."""
        setattr(owner, attribute, self.timed(name, getattr(owner, attribute)))

    def watch_collector(self, name: str) -> None:
        """Has the garbage collector timed as a phase."""
        under_way: list[AbstractContextManager[None]] = []

        def told(event: str, _info: Mapping[str, int]) -> None:
            if event == "start":
                under_way.append(self.phase(name))
                under_way[-1].__enter__()
            elif under_way:
                under_way.pop().__exit__(None, None, None)

        gc.callbacks.append(told)
