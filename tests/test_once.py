"""`Once`: one of each, whoever asks, and nobody waits for anything else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from amp.once import Once

PATIENCE = 30.0  # seconds, after which a thread counts as stuck


class Made(dict[str, int]):
    """What was made, and how many makers there were; a maker may be held up."""

    def __init__(self) -> None:
        self.once, self.makers = Once(), 0
        self.begun, self.go_on = threading.Event(), threading.Event()

    def get(self, key: str, make: Callable[[], int]) -> int | None:
        return self.once.get(key, lambda: super(Made, self).get(key), make)

    def slowly(self) -> int:
        self.makers += 1
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return self.setdefault("slow", 1)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_whoever_asks_meanwhile_waits_and_gets_the_same() -> None:
    made, got = Made(), []
    threads = [
        started(lambda: got.append(made.get("slow", made.slowly))) for _ in range(4)
    ]
    assert made.begun.wait(PATIENCE)
    made.go_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert (got, made.makers) == ([1] * 4, 1)


def test_another_thing_is_made_at_the_same_time() -> None:
    made = Made()
    thread = started(lambda: made.get("slow", made.slowly))
    assert made.begun.wait(PATIENCE)
    got: list[int | None] = []
    other = started(lambda: got.append(made.get("other", lambda: 2)))
    other.join(PATIENCE)
    assert got == [2]
    assert thread.is_alive()
    made.go_on.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_after_a_failure_the_next_one_tries() -> None:
    made = Made()

    def fails() -> int:
        raise ValueError("not this time")

    with pytest.raises(ValueError, match="not this time"):
        made.get("a", fails)
    assert made.get("a", lambda: 3) == 3


def test_a_thread_that_comes_by_again_does_not_wait_for_itself() -> None:
    made = Made()
    inner: list[int | None] = []

    def make() -> int:
        inner.append(made.get("a", lambda: 5))
        return made.setdefault("a", 4)

    assert made.get("a", make) == 4
    assert inner == [None]
    assert made.get("a", lambda: 6) == 4


class _Interrupted(dict[Any, Any]):
    """Who is making what; a Ctrl-C comes as soon as the first has claimed something."""

    interrupts = 1

    def setdefault(self, key: Any, default: Any = None) -> Any:
        found = super().setdefault(key, default)
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return found


def test_an_interrupt_before_the_making_leaves_nothing_claimed() -> None:
    made = Made()
    made.once._makers = _Interrupted()
    with pytest.raises(KeyboardInterrupt):
        made.get("a", lambda: 1)
    got: list[int | None] = []
    started(lambda: got.append(made.get("a", lambda: 2))).join(PATIENCE)
    assert got == [2]
