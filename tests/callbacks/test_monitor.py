"""A loop that calls `monitor_loss_scale` sees its loss scale, and is not changed."""

from __future__ import annotations

import gc
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import amp
from amp import messages
from amp.callbacks import monitor
from amp.integration.process import PROCESS

POLICY = {"dtype": "float16", "emulate": True, "assignment": "all", "strict": True}


def job():
    weights = tf.Variable(tf.ones([4, 2]), name="weights")

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(tf.ones([3, 4]), weights)) * factor
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    return step, weights


def test_scale_overflows_and_underflow_are_read_by_name(tmp_path, capsys):
    step, weights = job()
    found = []
    with amp.mixed_precision_scope(**POLICY):
        for number, factor in enumerate([1.0, np.inf, 1.0, 1e-12, 1.0]):
            step(tf.constant(factor, tf.float32))
            made = amp.callbacks.monitor_loss_scale(number, str(tmp_path), every=3)
            found.append(made)
    assert [len(each) for each in found] == [1, 0, 0, 1, 0]
    first, second = found[0][0], found[3][0]
    assert (first.scale, second.scale) == (2.0**15, 2.0**14)
    assert (first.first_not_finite, second.first_not_finite) == ("", "weights")
    assert second.since.calls == 3
    # 1e-12 / 2 * 2**14 is 8e-9, which float16 rounds to 0.
    assert first.underflow == {}, "nobody had asked before the first step"
    assert second.underflow["weights"].zero == 1.0
    assert "loss scale 16384 (weights)" in capsys.readouterr().err
    graphs = [
        event
        for file in tmp_path.glob("events.*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        if event.HasField("graph_def")
    ]
    assert b"amp_" in graphs[0].graph_def, "the twin, not the original"


@pytest.mark.parametrize("kind", [pathlib.Path, str, None])
def test_a_directory_may_be_a_path(kind, tmp_path):
    step, _weights = job()
    place = kind and kind(tmp_path / "logs")
    with amp.mixed_precision_scope(**POLICY):
        step(tf.constant(1.0))
        assert len(amp.callbacks.monitor_loss_scale(0, place, every=3)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["logs"] * bool(kind)


@pytest.mark.parametrize("name", ["LossScaleMonitor", "LossScaleHook"])
def test_no_directory_is_none_called_none(name):
    assert getattr(amp.callbacks, name)(None)._log_dir == ""


def test_a_step_may_be_counted_by_a_variable(capsys):
    """A reading is of the number that it held then."""
    step, _weights = job()
    count = tf.Variable(6, dtype=tf.int64)
    with amp.mixed_precision_scope(**POLICY):
        step(tf.constant(1.0))
        (reading,) = amp.callbacks.monitor_loss_scale(count, every=3)
        count.assign(7)
        assert amp.callbacks.monitor_loss_scale(count, every=3) == []
    assert reading.step == 6
    assert "step 6: loss scale" in capsys.readouterr().err


def test_a_scaler_with_the_name_of_one_that_is_gone_is_counted_from_0():
    watched = monitor.Monitor(every=1)
    for calls in (3, 2):
        step, weights = job()
        with amp.mixed_precision_scope(**POLICY):
            for _ in range(calls):
                step(tf.constant(np.inf))
            (reading,) = watched.read(calls)
        assert (reading.scaler, reading.since.calls) == ("weights", calls)
        assert reading.since.overflows == {"weights": calls}
        del step, weights
        gc.collect()


def test_scalers_of_variables_with_one_name_are_read_apart(tmp_path):
    (first, _w), (second, _v) = job(), job()
    watched = monitor.Monitor(str(tmp_path), every=1)
    with amp.mixed_precision_scope(**POLICY):
        for step, factor in ((first, np.inf), (second, 1.0), (first, np.inf)):
            step(tf.constant(factor, tf.float32))
        one, other = watched.read(3)
        first(tf.constant(np.inf))
        again, _ = watched.read(4)
    assert one.scaler != other.scaler
    assert (one.since.calls, other.since.calls, again.since.calls) == (2, 1, 1)
    assert (one.skipped, other.skipped) == (0, 0)  # assign_sub skips nothing
    assert (one.scale, other.scale) == (2.0**13, 2.0**15)
    tags = {
        value.tag
        for file in tmp_path.glob("events.*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    assert {f"amp/{each.scaler}/loss_scale" for each in (one, other)} <= tags


def test_each_reading_is_logged_though_an_earlier_run_had_one_like_it(capsys):
    step, weights = job()
    for _ in range(2):
        run = monitor.Monitor()
        run.start()
        weights.assign(tf.ones([4, 2]))
        with amp.mixed_precision_scope(**POLICY):
            step(tf.constant(1.0))
        run.read(0)
        run.stop()
    said = capsys.readouterr().err
    assert said.count("step 0: loss scale 32768 (weights)") == 2
    assert not [text for text in messages._SHOWN if text.startswith("step ")]


def test_of_loops_only_the_newest_are_watched(tmp_path, monkeypatch):
    """A search has a directory for each trial, and an open file in each."""
    monkeypatch.setattr(monitor, "MOST", 2)
    closed, close = [], monitor.Monitor.stop

    def stop(self):
        closed.append(self)
        close(self)
        assert self._writer is None

    monkeypatch.setattr(monitor.Monitor, "stop", stop)
    for trial in range(4):
        amp.callbacks.monitor_loss_scale(0, str(tmp_path / str(trial)))
    assert len(closed) == 2
    assert len(PROCESS.monitors) == len(PROCESS.loops) == 2


def test_what_is_not_read_is_not_observed():
    step, _ = job()
    watcher = monitor.Monitor(every=4)
    with amp.mixed_precision_scope(**POLICY):
        watcher.start()
        for _ in range(5):
            step(tf.constant(1.0))
        assert len(watcher._samples) == 2
        watcher.stop()
        for _ in range(5):
            step(tf.constant(1.0))
        assert len(watcher._samples) == 2
    assert not PROCESS.monitors


def test_an_eager_loop_has_a_scale_too():
    weights = tf.Variable(2.0, name="weights")
    with amp.mixed_precision_scope(**POLICY):
        with tf.GradientTape() as tape:
            loss = weights**2
        tape.gradient(loss, weights)
        (reading,) = amp.callbacks.monitor_loss_scale(0)
    assert (reading.scaler, reading.underflow) == ("weights", {})
