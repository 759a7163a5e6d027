"""The reports of the process: in order, written whole, never in a job's way."""

from __future__ import annotations

import dataclasses
import errno
import json

import pytest
import tensorflow as tf

import amp
from amp.integration import atomic_files, reports
from amp.integration.process import PROCESS

ALL = {"dtype": "bfloat16", "assignment": "all", "strict": True}


def run(**fields):
    fn = tf.function(lambda x: tf.matmul(x, x))
    with amp.mixed_precision_scope(**{**ALL, **fields}):
        return fn(tf.ones([8, 8]))


def test_a_report_is_written_whole_and_says_what_the_object_says(tmp_path):
    run(report=str(tmp_path / "new" / "folder"))
    page, path = sorted((tmp_path / "new" / "folder").iterdir())
    (report,) = amp.reports()
    assert (page.suffix, path.suffix) == (".html", ".json")
    assert page.stem == path.stem
    assert json.loads(path.read_text()) == json.loads(report.to_json())
    assert page.read_text() == report.to_html()


def test_a_relative_directory_is_where_the_job_started(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(PROCESS, "started_in", str(tmp_path))
    monkeypatch.chdir(tmp_path / "elsewhere")
    run(report="reports")
    assert len(list((tmp_path / "reports").glob("*.json"))) == 1
    assert not list((tmp_path / "elsewhere").iterdir())
    assert reports.summary("reports", 0).endswith(f"; reports: {tmp_path / 'reports'}")


def test_a_full_disk_is_told_once_and_later_reports_are_written(tmp_path, monkeypatch):
    run()
    (report,) = amp.reports()
    write, full = atomic_files.write, [True]

    def written(target, text):
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(target, text)

    monkeypatch.setattr(atomic_files, "write", written)
    with pytest.warns(UserWarning, match="No space left"):
        reports.add(report, str(tmp_path))
    reports.add(report, str(tmp_path))  # a second warning would be an error
    full[0] = False
    number = reports.add(report, str(tmp_path))
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".html", ".json"]
    assert all(f"_{number:04d}_" in path.name for path in tmp_path.iterdir())


def test_reports_come_oldest_first():
    run()
    run(dtype="float16", loss_scale="none")
    assert [report.dtype for report in amp.reports()] == ["bfloat16", "float16"]


def test_a_directory_that_cannot_be_written_keeps_the_twin_and_warns(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match=r"AMP_REPORT[\s\S]*do now"):
        run(report=str(tmp_path / "file"))
    (report,) = amp.reports()
    assert report.nodes_low > 0


def test_a_later_state_replaces_the_report_and_its_file(tmp_path):
    run(report=str(tmp_path))
    (first,) = amp.reports()
    number = reports.add(first, str(tmp_path))
    later = dataclasses.replace(first, verdict="later")
    reports.replace(number, later, str(tmp_path))
    assert [report.verdict for report in amp.reports()] == [first.verdict, "later"]
    texts = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [text["verdict"] for text in texts] == [first.verdict, "later"]


def test_a_report_that_is_no_longer_kept_does_not_come_back(monkeypatch):
    monkeypatch.setattr(reports, "_KEPT", 2)
    run()
    (report,) = amp.reports()
    first = reports.add(report, None)
    for _ in range(2):
        reports.add(report, None)
    reports.replace(first, dataclasses.replace(report, verdict="later"), None)
    assert [kept.verdict for kept in amp.reports()] == [report.verdict] * 2


def test_steps_that_could_not_be_counted_are_not_told_as_none():
    run()
    assert "7 steps skipped" in reports.summary(None, 7)
    assert "1 step skipped (not counting" in reports.summary(None, 1, complete=False)


def test_the_decisions_of_old_reports_do_not_fill_the_memory(monkeypatch, tmp_path):
    run()
    (report,) = amp.reports()
    size = len(report.decisions)
    monkeypatch.setattr(reports, "_DECISIONS", 2 * size)
    numbers = [reports.add(report, str(tmp_path)) for _ in range(3)]
    kept = [len(r.decisions) for r in amp.reports()]
    assert kept == [0, 0, size, size]
    assert all(r.nodes_low == report.nodes_low for r in amp.reports())
    reports.replace(numbers[0], report, None)
    assert [len(r.decisions) for r in amp.reports()] == kept
    for path in tmp_path.glob("*.json"):
        assert len(json.loads(path.read_text())["decisions"]) == size


def test_the_newest_report_is_whole_however_large(monkeypatch):
    monkeypatch.setattr(reports, "_DECISIONS", 0)
    run()
    run()
    old, new = amp.reports()
    assert not old.decisions
    assert new.decisions


def test_the_summary_says_why_nothing_was_rewritten():
    tf.function(lambda x: x)(tf.ones([2]))
    run(assignment="cost", min_gain=0.99)
    (report,) = amp.reports()
    assert report.verdict.startswith("left in float32: ")
    assert f" ({report.verdict}), 0 steps skipped" in reports.summary(None, 0)


def test_the_summary_says_why_the_longest_was_not_rewritten():
    """Most time is left in float32 then, whatever became of the others."""
    run()
    run(assignment="cost", min_gain=0.99)
    first, second = PROCESS.reports
    for longest in (first, second):
        for number, report in PROCESS.reports.items():
            seconds = 2.0 if number == longest else 1.0
            PROCESS.reports[number] = dataclasses.replace(report, seconds32=seconds)
        told = " (the longest: left in float32: "
        assert (told in reports.summary(None, 0)) == (longest == second)


def test_the_summary_says_that_emulation_is_planned_for_another_device():
    run(dtype="float16", emulate=True)
    said = reports.summary(None, 0)
    assert "nodes in float16 as on a large GPU (reference), emulated" in said


def test_emulation_that_rounds_nothing_says_so_once(capfd):
    """Its values are float32's, and prove nothing."""
    for _ in range(2):
        run(dtype="float16", assignment="cost", emulate=True)
    said = capfd.readouterr().err
    assert said.count("amp: emulation rounds nothing of a function") == 1
    assert amp.reports()[-1].verdict.startswith("nothing is rounded")
    run(dtype="float16", emulate=True)
    assert amp.reports()[-1].nodes_low


@pytest.mark.parametrize(
    ("after", "trial", "says"),
    [
        (
            2e-3,
            "under way",
            "2.00x faster (not measured: the job ended before the race did)",
        ),
        (2e-3, "off: AMP_TRIAL=0", "2.00x faster (not measured: AMP_TRIAL=0)"),
        (8e-3, "off: AMP_TRIAL=0", "2.00x slower (not measured: AMP_TRIAL=0)"),
        (2e-3, "ended: float32 is out of memory", "2.00x faster"),
    ],
)
def test_the_summary_says_why_a_gain_is_only_predicted(after, trial, says):
    run()
    ((number, report),) = PROCESS.reports.items()
    changed = {"seconds32": 4e-3, "seconds16": after, "trial": trial}
    PROCESS.reports[number] = dataclasses.replace(report, **changed)
    assert f"in bfloat16 on {report.device}, predicted {says}," in reports.summary(
        None, 0
    )


def test_the_summary_tells_no_predicted_loss_of_plans_that_still_race():
    run()
    ((number, report),) = PROCESS.reports.items()
    changed = {"seconds32": 4e-3, "seconds16": 8e-3, "trial": "under way"}
    PROCESS.reports[number] = dataclasses.replace(report, **changed)
    said = reports.summary(None, 0)
    assert " (the job ended before their race did), 0 steps" in said
    assert "slower" not in said


def test_the_summary_says_that_it_is_of_the_newest_reports_only(monkeypatch):
    for _ in range(2):
        run()
    assert reports.summary(None, 0).startswith("2 of 2 functions rewritten")
    monkeypatch.setattr(reports, "_KEPT", 2)
    said = reports.summary(None, 0)
    assert said.startswith("of the newest 2: 2 of 2 functions rewritten")


def test_a_function_that_is_traced_again_and_again_is_named():
    run()
    (report,) = amp.reports()
    names = [f"__inference_step_{number}" for number in range(30)]
    names += ["__inference_other_7", "a session's run (step)"]
    made = [dataclasses.replace(report, function=name) for name in names]
    assert "of 32 functions (30 are traces of step) rewritten, " in reports.total(made)
    few = reports.total(made[30 - reports._OFTEN + 1 :])
    assert "traces" not in few
