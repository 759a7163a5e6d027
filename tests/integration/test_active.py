"""The stack of scopes: each thread, task and generator leaves what it entered."""

from __future__ import annotations

import ast
import asyncio
import pathlib
import threading

import pytest

from amp.graph_rewrite.cost import resolution, shipped_devices
from amp.integration import active
from amp.integration.active import Active
from amp.integration.process import PROCESS
from amp.policy import Policy

FILE = pathlib.Path(active.__file__)


def scope(reason: str) -> Active:
    return Active(
        resolution.Resolution(Policy(), shipped_devices.CPU_PLAIN, reason), None
    )


A, B = scope("a"), scope("b")


def generator(now):
    owner = object()
    active.push(now, owner)
    try:
        while True:
            yield active.active()
    finally:
        active.pop(owner)


def test_it_imports_no_room_of_hooks():
    imported = {
        node.module
        for node in ast.walk(ast.parse(FILE.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    ours = {name for name in imported if name and name.startswith("amp.integration")}
    assert ours == {"amp.integration.process", "amp.integration.nesting"}


def test_generators_leave_their_own_scopes():
    first, second = generator(A), generator(B)
    assert next(first) is A
    assert next(second) is B
    first.close()
    assert active.active() is B
    second.close()
    assert active.active() is None


def test_tasks_do_not_see_each_others_scopes():
    seen = []

    async def task(now, mine, other):
        owner = object()
        active.push(now, owner)
        mine.set()
        await other.wait()
        seen.append(active.active() is now)
        assert active.pop(owner) is now
        seen.append(active.active() is None)

    async def both():
        events = asyncio.Event(), asyncio.Event()
        await asyncio.gather(task(A, *events), task(B, *reversed(events)))

    asyncio.run(both())
    assert seen == [True] * 4


def test_a_new_thread_begins_without_scopes():
    seen = []
    active.push(A, A)
    thread = threading.Thread(target=lambda: seen.append(active.active()))
    thread.start()
    thread.join()
    active.pop(A)
    assert seen == [None]


def test_one_object_may_be_entered_twice():
    active.push(A, A)
    active.push(B, A)
    assert active.pop(A) is B
    assert active.pop(A) is A
    assert active.pop(A) is None


def test_what_waits_is_settled_at_the_first_question(monkeypatch):
    def settle():
        PROCESS.on, PROCESS.waiting = A, None

    monkeypatch.setattr(PROCESS, "waiting", settle)
    monkeypatch.setattr(PROCESS, "on", None)
    assert active.active() is A
    assert PROCESS.waiting is None


@pytest.mark.parametrize(
    "ask", [active.active, active.active_twins, active.active_loss_scale]
)
def test_what_waits_may_be_settled_by_another_thread_meanwhile(monkeypatch, ask):
    class Settled:
        """Each question after the first finds that it was settled."""

        on, asked = None, 0

        @property
        def waiting(self):
            self.asked += 1
            return (lambda: None) if self.asked == 1 else None

    monkeypatch.setattr(active, "PROCESS", Settled())
    assert ask() is None


def test_whether_failures_are_raised_is_known_before_the_policy_is_settled():
    def settle(policy):
        raise AssertionError("settled too early")

    for strict in (True, False):
        PROCESS.waiting = active.Waiting(Policy(strict=strict), settle)
        assert active.is_strict() is strict
    PROCESS.waiting = None
