"""No thread waits for ever: functions that go, threads, and handlers that collect."""

from __future__ import annotations

import ast
import contextlib
import gc
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp import messages
from amp.graph_rewrite.rewrite import Begun
from amp.integration import active, api, install, reports, tensor_pool
from amp.integration.contests import plan_store
from amp.integration.functions import twins as twins_lib
from amp.integration.measuring import job_timer
from amp.loss_scaling import group, stalls

pytestmark = pytest.mark.kernels

ON = {"dtype": "bfloat16", "emulate": True, "assignment": "all", "strict": True}
PACKAGE = pathlib.Path(amp.__file__).parent
PATIENCE = 60.0  # seconds, after which a thread counts as stuck
SOAKED = 15.0  # seconds
FUNCTIONS = 1000


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    amp.enable(**ON)
    yield
    amp.disable()


def function() -> Any:
    """A function of its own, with a product to convert."""
    return tf.function(lambda x: tf.matmul(x, x), autograph=False)


def called(fn: Any) -> tf.Tensor:
    return fn(tf.ones([2, 2]))


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def twins_of(fn: Any) -> list[str]:
    name = fn.get_concrete_function(tf.ones([2, 2])).name
    made: list[str] = [n for each in twins_lib.every() for n in each.made_for(name)]
    assert made
    return made


def test_a_function_may_go_while_another_thread_holds_every_lock() -> None:
    kept = [function()]
    called(kept[0])
    made = twins_of(kept[0])
    twins = active.active_twins()

    def lets_go() -> None:
        kept.clear()
        gc.collect()

    (function_twins,) = twins._functions.values()
    with function_twins._lock, twins._once._lock, reports._LOCK:
        thread = started(lets_go)
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not any(context_lib.context().has_function(name) for name in made)


# The files with locks that a finalizer of functions could come by, each held below.
HELD = {
    "integration/api.py",
    "integration/contests/contest.py",
    "integration/functions/function_twins.py",
    "integration/contests/plan_store.py",
    "integration/racing/race.py",
    "integration/install.py",
    "integration/measuring/job_timer.py",
    "integration/reports.py",
    "integration/tensor_pool.py",
    "loss_scaling/group.py",
    "once.py",
    "loss_scaling/stalls.py",
}
# Those of a session, and those that nobody waits for.
NOT_HELD = {
    "integration/functions/later_plan.py",
    "integration/observing/step_probes.py",
    "integration/sessions/graph_views.py",
    "integration/sessions/plan_checks.py",
    "integration/sessions/run_twins.py",
    "integration/sessions/session_stalls.py",
}


def test_every_lock_of_the_package_is_in_one_of_the_lists() -> None:
    made = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.glob("**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("Lock", "Condition", "Semaphore"))
    }
    assert made == HELD | NOT_HELD


def test_a_function_may_go_in_a_race_while_another_thread_holds_every_lock(
    only_amx: None,
) -> None:
    weights = tf.Variable(tf.ones([256, 256]) / 256)

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ weights) @ weights)
        weights.assign_sub(0.0 * tape.gradient(loss, weights))

    kept = [tf.function(step, autograph=False)]
    with amp.mixed_precision_scope(dtype="bfloat16", trial=True, check=False):
        for _ in range(3):
            kept[0](tf.ones([256, 256]))
        twins = active.active_twins()
    (function_twins,) = twins._functions.values()
    contest = function_twins._contest
    assert contest.under_way
    made = [each for name in twins._functions for each in twins.made_for(name)]
    assert made
    locks = [
        *(api._SWITCHING, contest._lock, contest._race._lock, function_twins._lock),
        *(group.LOCK, install._LOCK, job_timer.MEASURING, plan_store._LOCK),
        *(reports._LOCK, stalls._LOOKING, stalls._WATCHER._starting),
        *(tensor_pool._LOCK, twins._once._lock),
    ]

    def lets_go() -> None:
        kept.clear()
        gc.collect()

    with contextlib.ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        thread = started(lets_go)
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not any(context_lib.context().has_function(name) for name in made)


def test_a_function_may_go_while_its_thread_makes_the_twin_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = [function()]
    called(kept[0])
    made, rewrite = twins_of(kept[0]), Begun.prepared

    def collects(*args: Any, **kwargs: Any) -> Any:
        kept.clear()
        gc.collect()
        return rewrite(*args, **kwargs)

    monkeypatch.setattr(Begun, "prepared", collects)
    fn = function()
    called(fn)
    assert not any(context_lib.context().has_function(name) for name in made)
    assert twins_of(fn)


def test_a_rewrite_that_takes_long_holds_up_no_other_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on, rewrite = threading.Event(), threading.Event(), Begun.prepared
    held: list[int] = []

    def slow(*args: Any, **kwargs: Any) -> Any:
        if not held:
            held.append(1)
            begun.set()
            assert go_on.wait(PATIENCE)
        return rewrite(*args, **kwargs)

    monkeypatch.setattr(Begun, "prepared", slow)
    first, second = function(), function()
    waiting = started(lambda: called(first))
    assert begun.wait(PATIENCE)
    other = started(lambda: called(second))
    other.join(PATIENCE)
    assert not other.is_alive()
    assert len(amp.reports()) == 1
    go_on.set()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert len(amp.reports()) == 2


def test_who_is_told_of_a_rewrite_may_call_the_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fn, seen, rewrite = function(), [], Begun.prepared

    def tells(*args: Any, **kwargs: Any) -> Any:
        seen.append(called(fn).numpy().tolist())
        return rewrite(*args, **kwargs)

    monkeypatch.setattr(Begun, "prepared", tells)
    assert called(fn).numpy().tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert seen == [[[2.0, 2.0], [2.0, 2.0]]]
    assert len(amp.reports()) == 1


class Collects(logging.Handler):
    """A handler that lets go of functions and collects, under its own lock."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.clear()
        gc.collect()


@pytest.mark.thorough
@pytest.mark.slow
def test_threads_short_lived_functions_and_a_handler_that_collects_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler, rewrite = Collects(), Begun.prepared
    end = time.monotonic() + SOAKED
    done: list[int] = []
    failed: list[Exception] = []

    def tells(*args: Any, **kwargs: Any) -> Any:
        messages.log("a rewrite")
        return rewrite(*args, **kwargs)

    def work() -> None:
        try:
            while len(done) < FUNCTIONS and time.monotonic() < end:
                fn = function()
                assert called(fn).numpy().tolist() == [[2.0, 2.0], [2.0, 2.0]]
                handler.kept.append(fn)
                messages.log("a step")
                done.append(1)
        except Exception as e:
            failed.append(e)

    monkeypatch.setattr(Begun, "prepared", tells)
    logging.getLogger("amp").addHandler(handler)
    try:
        threads = [started(work) for _ in range(4)]
        for thread in threads:
            thread.join(SOAKED + PATIENCE)
    finally:
        logging.getLogger("amp").removeHandler(handler)
    assert not any(thread.is_alive() for thread in threads)
    assert not failed
    assert len(done) >= len(threads)
