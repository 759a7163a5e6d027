"""`skipped_counts`: what sessions skipped is known at the end, closed or open."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp.integration.process import PROCESS
from amp.integration.sessions import skipped_counts

v1 = tf.compat.v1
POLICY = amp.Policy(dtype="float16", emulate=True, loss_scale="dynamic", trial=False)
FINITE, HUGE = np.ones([4, 8], np.float32), np.full([4, 8], 1e30, np.float32)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a job that will have a last line."""
    monkeypatch.setattr(PROCESS, "begun_in", os.getpid())


def train(session: Any, *, overflows: int) -> None:
    x = v1.placeholder(tf.float32, [None, 8])
    weights = v1.get_variable("w", [8, 8], initializer=v1.ones_initializer())
    loss = tf.reduce_mean(tf.square(x @ weights))
    step = v1.train.GradientDescentOptimizer(1e-6).minimize(loss)
    session.run(v1.global_variables_initializer())
    for value in [FINITE, *[HUGE] * overflows, FINITE]:
        session.run(step, {x: value})


def test_a_session_that_is_closed_is_read_before() -> None:
    with amp.mixed_precision_scope(POLICY), tf.Graph().as_default():
        for overflows in (2, 3):  # each session has variables of its own
            with tf.Graph().as_default(), v1.Session() as session:
                train(session, overflows=overflows)
    assert skipped_counts.total() == (5, True)
    session.close()  # a second time changes nothing
    assert skipped_counts.total() == (5, True)
    assert not PROCESS.session_counts.skipped  # nothing is kept of either session


def test_a_session_that_is_open_at_the_end_is_read_then() -> None:
    with amp.mixed_precision_scope(POLICY), tf.Graph().as_default():
        session = v1.Session()
        train(session, overflows=2)
    assert skipped_counts.total() == (2, True)
    session.close()


def test_what_cannot_be_read_is_told_and_the_session_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with amp.mixed_precision_scope(POLICY), tf.Graph().as_default():
        session = v1.Session()
        train(session, overflows=1)
    with monkeypatch.context() as patch:
        patch.setattr(v1.Session, "run", lambda *args, **kwargs: 1 / 0)
        session.close()
    assert skipped_counts.total() == (0, False)


def test_readings_are_no_runs_of_the_program() -> None:
    """It may count its runs, or do more in each, in a method of its own."""

    class Counting(v1.Session):  # type: ignore[misc]
        calls = 0

        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super().run(*args, **kwargs)

    with amp.mixed_precision_scope(POLICY), tf.Graph().as_default():
        session = Counting()
        train(session, overflows=39)  # counts are read before the runs from the 20th on
        session.close()
    assert session.calls == 42
    assert skipped_counts.total() == (39, True)


def test_a_session_without_a_step_has_skipped_none() -> None:
    scope = amp.mixed_precision_scope(POLICY)
    with scope, tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("w", [8, 8], initializer=v1.ones_initializer())
        v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(x @ x))
        session.run(x.initializer)
    assert skipped_counts.total() == (0, True)


def test_nobody_asked_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROCESS, "begun_in", None)
    scope = amp.mixed_precision_scope(POLICY)
    with scope, tf.Graph().as_default(), v1.Session() as session:
        train(session, overflows=1)
        monkeypatch.setattr(session, "run", None)  # calling it would fail
    assert PROCESS.session_counts.read == 0
