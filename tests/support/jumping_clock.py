"""A clock that jumps where a test would wait, for tests about how long calls take."""

from __future__ import annotations

import time

import pytest


class Clock:
    """Takes the place of `time.perf_counter`: real time, and what was jumped over."""

    def __init__(self) -> None:
        self._real, self._jumped = time.perf_counter, 0.0

    def __call__(self) -> float:
        return self._real() + self._jumped

    def jump(self, seconds: float) -> None:
        """So much time passes at once."""
        self._jumped += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the process, until the test ends."""
    found = Clock()
    monkeypatch.setattr(time, "perf_counter", found)
    return found
