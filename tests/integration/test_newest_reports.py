"""`NewestReports`: a later report takes the place of the one before."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tensorflow as tf

import amp
from amp.graph_rewrite.outcomes import AccuracyOutcome
from amp.graph_rewrite.report import Report
from amp.integration import atomic_files, reports
from amp.integration.newest_reports import NewestReports
from amp.integration.process import PROCESS
from amp.policy import Policy

REPORT = Report("f", "bfloat16", False, "CPU", "none", 9, 3, 1, 2.0, 1.0, (), "done")
OUTCOME = AccuracyOutcome("gradients off by 0.01")


def test_one_report_is_kept_of_a_function_the_newest() -> None:
    newest = NewestReports(Policy())
    newest.put(b"f", REPORT)
    newest.put(b"f", dataclasses.replace(REPORT, casts=7))
    newest.change(b"f", lambda report: dataclasses.replace(report, nodes_low=4))
    (found,) = reports.reports()
    assert (found.casts, found.nodes_low) == (7, 4)


def test_the_report_on_a_winner_tells_of_the_accuracy_that_was_found_before() -> None:
    newest = NewestReports(Policy())
    newest.put(b"f", dataclasses.replace(REPORT, accuracy=OUTCOME))
    newest.put(b"f", dataclasses.replace(REPORT, casts=7))
    (found,) = reports.reports()
    assert (found.accuracy, found.casts) == (OUTCOME, 7)


def test_what_is_forgotten_is_not_changed_any_more() -> None:
    newest = NewestReports(Policy())
    newest.put(b"f", REPORT)
    newest.forget(b"f")
    newest.change(b"f", lambda report: dataclasses.replace(report, casts=9))
    assert reports.reports() == [REPORT]


def test_nothing_is_kept_of_functions_that_stay_as_they_are() -> None:
    """The process keeps a bounded number; those with a twin are kept besides."""
    weights = tf.Variable(tf.ones([8, 8]))
    small = tf.function(lambda x: tf.matmul(x, weights))
    with amp.mixed_precision_scope(dtype="bfloat16", trial=False):
        small(tf.ones([2, 8]))
    (found,) = amp.reports()
    assert not found.rewritten
    (kept,) = [twins._shared.reports._newest for twins in PROCESS.twins]
    assert not kept


def test_a_report_whose_writing_was_interrupted_is_replaced_by_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    newest = NewestReports(Policy(report=str(tmp_path)))
    with monkeypatch.context() as now:
        now.setattr(atomic_files, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            newest.put(b"f", REPORT)
    newest.put(b"f", dataclasses.replace(REPORT, casts=7))
    (found,) = reports.reports()
    assert found.casts == 7
    assert len(list(tmp_path.glob("*.json"))) == 1
