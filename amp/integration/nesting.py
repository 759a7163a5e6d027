"""`Nesting`: whether a thread is inside of something that may be entered again in it.

Hooks ask it that call what is hooked themselves. What is entered is not known here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Nesting(threading.local):
    """How often this thread has entered something that it has not left yet."""

    depth = 0

    def __bool__(self) -> bool:
        """Whether this thread is inside."""
        return self.depth > 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A scope that is inside."""
        before = self.depth
        try:
            self.enter()
            yield
        finally:  # also of what Ctrl-C interrupts as it is entered
            self.depth = before

    def enter(self) -> None:
        self.depth += 1

    def leave(self) -> None:
        """Leaves once; does nothing outside, as the first to leave may not have entered
        under a hook."""
        self.depth = max(self.depth - 1, 0)
