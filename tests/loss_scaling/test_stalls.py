"""A job that skips for good says so, once; one that only begins too high does not."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp import messages
from amp.integration import active
from amp.integration.install import install
from amp.loss_scaling import (
    ConstantLossScale,
    DynamicLossScale,
    advice,
    stalls,
    state,
)
from amp.loss_scaling.process import SCALING

LIMIT = stalls.LIMIT


def counted(rule, flags, scale=1.0):
    stalled = 0
    for finite in flags:
        stalled = int(stalls.count(rule, scale, stalled, (finite, _where)))
    return stalled


def _where(flag, yes, no):
    return yes if flag else no


def test_overflows_in_a_row_count_and_a_good_step_begins_anew():
    rule = DynamicLossScale()
    assert counted(rule, [False] * 7) == 7
    assert counted(rule, [False] * (LIMIT - 1) + [True]) == 0
    assert counted(rule, [False] * LIMIT + [True] * 3) == LIMIT
    assert counted(ConstantLossScale(8.0), [False] * 3 + [True]) == 0


def test_at_the_floor_a_good_step_does_not_hide_the_others():
    flags = [False, False, True] * LIMIT
    assert counted(DynamicLossScale(minimum=1.0), flags) == LIMIT
    assert counted(DynamicLossScale(minimum=0.5), flags) == 0


@pytest.fixture
def scope(monkeypatch):
    install()
    rule = DynamicLossScale()
    monkeypatch.setattr(active, "active_loss_scale", lambda: rule)


@pytest.fixture
def said(monkeypatch):
    """What is logged; the event is set by each line."""
    lines, came = [], threading.Event()

    def log(form, *values):
        lines.append(form % values)
        came.set()

    monkeypatch.setattr(messages, "log", log)
    return lines, came


class Answer:
    """What a step observed, with or without a finding."""

    def __init__(self, finding=None):
        self.found = finding

    def finding(self, number):
        return self.found


FOUND = advice.Finding(
    "stuck", "tensor", "MatMul", "float16", True, "NaN", False, False
)


def test_a_warning_waits_for_the_answer_of_a_step(scope, said, monkeypatch):
    monkeypatch.setattr(SCALING, "ask", lambda: True)
    w = stepped("function", np.inf, LIMIT)
    stalls.look()
    stalls.look()
    assert said[0] == []
    (asked,) = SCALING.asked.values()
    asked.samples += [Answer(), Answer(FOUND)]
    stalls.look()
    stalls.look()
    assert ["tensor (MatMul, float16): NaN" in line for line in said[0]] == [True]
    assert SCALING.asked == {}
    assert w.numpy() == 1.0


def test_a_warning_is_logged_while_no_lock_is_held(scope, monkeypatch):
    """A program's handler may wait for a thread that pauses the watching."""
    held = []
    monkeypatch.setattr(
        messages, "log", lambda *_: held.append(stalls._LOOKING.locked())
    )
    w = stepped("function", np.inf, LIMIT)
    stalls.look(last=True)
    assert held == [False]
    assert w.numpy() == 1.0


def test_ctrl_c_as_watching_is_paused_ends_the_pause(monkeypatch):
    class Interrupted:
        def __enter__(self):
            pass

        def __exit__(self, *_):
            raise KeyboardInterrupt

    monkeypatch.setattr(stalls, "_LOOKING", Interrupted())
    with pytest.raises(KeyboardInterrupt), stalls.paused():
        pass
    assert not SCALING.paused


@pytest.mark.parametrize("over", ["time", "answers", "end"])
def test_a_warning_waits_no_longer_than_it_may(scope, said, monkeypatch, over):
    monkeypatch.setattr(SCALING, "ask", lambda: True)
    now = [0.0]
    monkeypatch.setattr(stalls.time, "monotonic", lambda: now[0])
    w = stepped("function", np.inf, LIMIT)
    stalls.look()
    (asked,) = SCALING.asked.values()
    asked.samples += [Answer()] * (stalls.ANSWERS - 1)
    stalls.look()
    assert (said[0], asked.open) == ([], True)
    if over == "time":
        now[0] = stalls.PATIENCE
    elif over == "answers":
        asked.samples.append(Answer())
        assert not asked.open
    stalls.look(last=over == "end")
    assert ["gradients of stuck" in line for line in said[0]] == [True]
    assert w.numpy() == 1.0


def test_a_gradient_that_is_only_looked_at_is_no_update(scope, said):
    """The job trains by another gradient, and its optimizer skips nothing."""
    keras = pytest.importorskip("keras")
    w, optimizer = tf.Variable([1.0], name="looked"), keras.optimizers.SGD(0.125)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w**2)
        optimizer.apply(tape.gradient(loss, [w]), [w])
        with tf.GradientTape() as tape:
            shown = tf.reduce_sum(w * np.nan)
        return tape.gradient(shown, w)

    for _ in range(LIMIT):
        step()
    stalls.look()
    (line,) = said[0]
    assert f"not finite in {LIMIT} calls, and no optimizer skipped an update" in line
    assert "were skipped" not in line
    assert w.numpy() == pytest.approx(0.75**LIMIT)


@pytest.mark.parametrize(("initial", "told"), [(4.0, [True]), (1.0, [False])])
def test_a_scale_that_came_down_to_its_floor_is_said_once(
    said, monkeypatch, initial, told
):
    """Of one that began there it is only said that no gradient was finite."""
    install()
    rule = DynamicLossScale(initial=initial, minimum=1.0)
    monkeypatch.setattr(active, "active_loss_scale", lambda: rule)
    w = stepped("function", np.inf, 2)
    stalls.look()
    stalls.look(last=True)
    assert ["its floor" in line for line in said[0]] == told
    assert w.numpy() == 1.0


@pytest.mark.parametrize(("finite", "told"), [(0, 1), (1, 0)])
def test_a_job_without_one_finite_gradient_says_so_when_it_ends(
    scope, said, finite, told
):
    step = taking_factors()
    for factor in [0.0] * finite + [np.inf] * 3:
        step(tf.constant(factor, tf.float32))
    stalls.look()
    assert said[0] == []
    stalls.look(last=True)
    assert ["any of 3 calls" in line for line in said[0]] == [True] * told


def test_steps_are_asked_before_the_warning_is_due(scope, said, monkeypatch):
    """So that the cause is known of a job that ends soon after."""
    monkeypatch.setattr(SCALING, "ask", lambda: True)
    step = taking_factors()
    taken(step, np.inf, stalls.EARLY - 1)
    assert stalls.look()
    assert SCALING.asked == {}
    taken(step, np.inf, 1)
    assert stalls.look()
    (asked,) = SCALING.asked.values()
    asked.samples.append(Answer(FOUND))
    taken(step, np.inf, LIMIT - stalls.EARLY - 1)
    assert said[0] == []
    taken(step, np.inf, 1)  # from here on the thread may be the first to warn
    assert not stalls.look(last=True)
    assert ["tensor (MatMul, float16): NaN" in line for line in said[0]] == [True]
    assert SCALING.asked == {}


def test_what_was_asked_early_is_dropped_if_the_job_goes_on(scope, said, monkeypatch):
    monkeypatch.setattr(SCALING, "ask", lambda: True)
    step = taking_factors()
    taken(step, np.inf, stalls.EARLY)
    assert stalls.look()
    assert SCALING.asked
    taken(step, 1.0, 1)
    assert not stalls.look()
    assert SCALING.asked == {}
    assert said[0] == []


@pytest.fixture
def clock(monkeypatch):
    """The time, which passes only where a test says so.

    It begins long after the real one: the thread may be among the scalers of other
    tests, and is to find that none of these takes steps any more.
    """
    now = [1e9]
    monkeypatch.setattr(stalls.time, "monotonic", lambda: now[0])
    for kept in ("watched", "asked"):
        monkeypatch.setattr(SCALING, kept, {})
    return now


def test_nobody_hurries_for_a_step_that_is_not_taken_any_more(scope, clock):
    step = taking_factors()
    taken(step, np.inf, 1)
    assert stalls.look()
    assert stalls.look()  # the next step may be under way
    clock[0] += stalls.PERIOD
    assert not stalls.look()
    taken(step, np.inf, 1)
    assert stalls.look()


@pytest.mark.parametrize("samples", [0, 1])
def test_steps_are_asked_no_longer_where_none_is_taken(
    scope, said, monkeypatch, clock, samples
):
    """While one is asked, every function of the process is called the slow way."""
    monkeypatch.setattr(SCALING, "ask", lambda: True)
    step = taking_factors()
    taken(step, np.inf, stalls.EARLY)
    stalls.look()
    (asked,) = SCALING.asked.values()
    asked.samples += [Answer()] * samples
    asked.begun = True
    clock[0] += stalls.PATIENCE
    stalls.look()
    assert SCALING.asked  # XLA compiles the step that is to answer
    asked.begun = False
    stalls.look()
    stalls.look()
    assert SCALING.asked == {}
    taken(step, np.inf, 1)
    stalls.look()
    assert SCALING.asked
    assert said[0] == []


def test_what_is_asked_of_a_scaler_goes_with_it(scope, monkeypatch):
    monkeypatch.setattr(SCALING, "ask", lambda: True)
    step = taking_factors()
    taken(step, np.inf, stalls.EARLY)
    stalls.look()
    assert SCALING.asked
    with stalls._LOOKING:  # else the thread that reads it may hold it just now
        del step
        gc.collect()
        state.skipped_steps()  # lets go of scalers whose variables are deleted
        gc.collect()
        assert SCALING.watched == {}
        assert SCALING.asked == {}


@pytest.mark.parametrize(("skips", "wait"), [(True, stalls.HURRY), (False, None)])
def test_counts_are_read_more_often_while_updates_are_skipped(monkeypatch, skips, wait):
    watcher, waits = stalls._Watcher(), []

    def ends(period):
        waits.append(period)
        return len(waits) == 3

    monkeypatch.setattr(watcher.ends, "wait", ends)
    monkeypatch.setattr(stalls, "look", lambda: skips)
    watcher._run()
    assert waits == [stalls.PERIOD, *[wait or stalls.PERIOD] * 2]


def taking_factors():
    """A step whose gradient is a number times the factor that it is given."""
    w = tf.Variable([1.0], name="stuck")

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w**2) * factor
        w.assign_sub(tape.gradient(loss, w))
        return w.value()

    return step


def taken(step, factor, times):
    for _ in range(times):
        step(tf.constant(factor, tf.float32))


def stepped(mode, factor, times):
    w = tf.Variable([1.0], name="stuck")

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w**2) * factor
        w.assign_sub(tape.gradient(loss, w))

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "xla")
    for _ in range(times):
        step()
    return w


@pytest.mark.parametrize("mode", ["eager", "function", "xla"])
def test_a_stall_is_said_once_by_the_thread(scope, said, monkeypatch, mode):
    lines, came = said
    fast = stalls._Watcher()
    monkeypatch.setattr(stalls, "PERIOD", 0.01)
    monkeypatch.setattr(stalls, "_WATCHER", fast)
    monkeypatch.setattr(stalls.atexit, "register", lambda call: None)
    w = stepped(mode, np.inf, LIMIT)
    assert came.wait(60)
    fast.stop()
    stalls.look()
    assert ["stuck" in line for line in lines] == [True]
    assert w.numpy() == 1.0


def test_the_end_of_a_process_waits_for_the_answer_of_a_step(monkeypatch):
    """The thread reads what a step observed, which may still be being computed."""
    ending, seen = stalls._Watcher(), []
    begun = threading.Event()

    def look(*, last=False):
        if not last and threading.current_thread() is not ending.thread:
            return  # the thread that earlier tests have started
        begun.set()
        if not last:
            ending.ends.wait()
            threading.Event().wait(20 * stalls.PERIOD)  # the step's last kernels
        seen.append(last)

    monkeypatch.setattr(stalls, "PERIOD", 0.001)
    monkeypatch.setattr(stalls, "look", look)
    monkeypatch.setattr(stalls.atexit, "register", lambda call: None)
    ending.start()
    assert begun.wait(60)
    ending.stop()
    assert seen == [False, True]


def test_a_job_that_only_begins_too_high_is_not_a_stall(scope, said):
    w = stepped("function", np.inf, LIMIT - 1)
    stalls.look()
    assert said[0] == []
    assert w.numpy() == 1.0


def test_without_a_scaler_no_thread_is_started(monkeypatch):
    fresh = stalls._Watcher()
    monkeypatch.setattr(stalls, "_WATCHER", fresh)
    install()
    with amp.mixed_precision_scope(dtype="bfloat16", emulate=True):
        stepped("function", 1.0, 1)
    assert fresh.thread is None


def test_where_no_thread_can_be_started_the_job_trains(scope, monkeypatch):
    """Containers limit how many threads there are; a later scaler finds one maybe."""

    def no_thread(thread):
        raise RuntimeError("can't start new thread")

    fresh = stalls._Watcher()
    monkeypatch.setattr(stalls, "_WATCHER", fresh)
    monkeypatch.setattr(stalls.atexit, "register", lambda call: None)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        w = stepped("eager", 1.0, 1)
    assert w.numpy() == -1.0
    assert fresh.thread is None
    fresh.stop()
    stepped("eager", 1.0, 1)
    assert fresh.thread is not None
    fresh.stop()


def test_a_large_sum_finds_its_scale_in_float16():
    """A sum over 16,384 examples needs a scale below 1."""
    keras = pytest.importorskip("keras")
    x = tf.ones([16384, 2])
    w = tf.Variable(tf.zeros([2, 1]))
    # The mean's rate, 0.25, for a sum: the first step that is made hits the minimum.
    optimizer = keras.optimizers.SGD(0.25 / 16384)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.matmul(x, w) - 16.0))
        optimizer.apply(tape.gradient(loss, [w]), [w])

    with amp.mixed_precision_scope(
        dtype="float16", emulate=True, assignment="all", strict=True, trial=False
    ):
        for _ in range(30):
            step()
    (scaler,) = (found for found, _ in state.serving([w]))
    # The first gradient is 2 * 16 * 16384; 2**-4 of it is the first below 65504.
    assert scaler.scale.numpy() == 2.0**-4
    assert scaler.skipped_steps.numpy() == 19
    np.testing.assert_array_equal(w.numpy(), [[8.0]] * 2)  # powers of two all along


@pytest.mark.parametrize("begun", [False, True])
def test_a_fork_watches_by_a_thread_of_its_own(begun, monkeypatch):
    """Whether its parent had one, or had none yet; and it alone looks a last time."""
    monkeypatch.setattr(stalls.atexit, "register", lambda call: None)
    looks = []
    monkeypatch.setattr(stalls, "look", lambda *, last=False: looks.append(last))
    fresh = stalls._Watcher()
    if begun:
        fresh.start()
        parent = fresh.thread
        monkeypatch.setattr(stalls.os, "getpid", lambda: -1)  # as in a fork of it
        fresh.stop()
        assert looks.count(True) == 0, "the thread is the parent's"
        assert not fresh.ends.is_set()
    fresh.start()
    assert fresh.thread is not None
    if begun:
        assert fresh.thread is not parent
    assert fresh.thread.is_alive()
    fresh.stop()
    assert looks.count(True) == 1
