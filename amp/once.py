"""`Once`: each thing is made once, whichever thread asks for it first.

Knows nothing of what is made. A lock is held only to see who is making what; what is
made is made without one, so two threads make two things at once.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable
from typing import TypeVar

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class _Maker:
    """A thread that is making something, and what it sets when it is done."""

    thread: int
    done: threading.Event


class Once:
    """Who is making what. Finalizers may not ask: they would wait for their thread."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may run a program's `__del__` at any line.
        self._lock = threading.RLock()
        self._makers: dict[Hashable, _Maker] = {}

    def get(
        self,
        key: Hashable,
        find: Callable[[], _T | None],
        make: Callable[[], _T],
    ) -> _T | None:
        """Returns what there is; makes it if this thread is the first to ask.

        The other threads that ask for the same wait. If making it raises, the thread
        that made it sees the error, and one of those that wait tries again.

        Args:
          key: what is asked for.
          find: gives what there is, None if there is nothing; quick.
          make: makes it, and keeps it where `find` looks.

        Returns:
          None where this very thread is making it already and has come by again.
        """
        found = find()  # as a rule; under the lock it is asked again
        if found is not None:
            return found
        while True:
            mine = _Maker(threading.get_ident(), threading.Event())
            try:  # from before the claim: an interrupt may come at any line
                with self._lock:
                    found = find()
                    if found is not None:
                        return found
                    maker = self._makers.setdefault(key, mine)
                if maker is mine:
                    return make()
            finally:
                with self._lock:
                    if self._makers.get(key) is mine:
                        del self._makers[key]
                mine.done.set()
            if maker.thread == mine.thread:
                return None
            maker.done.wait()
