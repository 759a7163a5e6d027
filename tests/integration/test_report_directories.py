"""`report_directories`: the newest jobs' are kept, nothing of the user's is touched."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest

from amp.graph_rewrite.report import Report
from amp.integration import atomic_files, report_directories, reports
from amp.integration.process import PROCESS
from amp.integration.report_directories import JOBS, MARK

GONE = 2**22 + 1  # above all numbers that Linux gives to processes


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "cache/reports"
    place.mkdir(parents=True)
    return place


def job(place: Path, number: int) -> Path:
    """A directory as a job leaves it; of an earlier day the smaller `number` is."""
    made = place / f"202001{number:02d}-000000-{GONE}"
    report_directories.mark(made)
    (made / "7_0001_f.json").write_text("{}")
    return made


def test_the_oldest_jobs_make_way(place: Path) -> None:
    made = [job(place, number) for number in range(1, JOBS + 5)]
    new = report_directories.of_job()
    assert new is not None
    assert sorted(place.iterdir()) == made[-JOBS + 1 :]
    assert new.parent == place
    assert not new.exists()


def test_the_reports_of_a_job_that_may_still_run_stay(place: Path) -> None:
    """On this host its process says so; on another, with the same cache, its start."""
    hour_ago = time.strftime("%Y%m%d-%H%M%S", time.localtime(time.time() - 3600))
    here = place / f"20200101-000000-{os.getpid()}"
    elsewhere = [place / f"{hour_ago}-{GONE + n}" for n in range(JOBS)]
    for directory in (here, *elsewhere):
        report_directories.mark(directory)
    old = job(place, 2)
    report_directories.of_job()
    assert not old.exists()
    assert all(directory.exists() for directory in (here, *elsewhere))


def test_what_does_not_bear_our_mark_stays(place: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in (MARK, "7_0001_f.json"):
        (outside / name).touch()
    users = [place / "20190101-000000-7", place / "mine", place / "0"]
    for directory in users:
        directory.mkdir()
        (directory / "7_0001_f.json").write_text("mine")
    (place / "mine" / MARK).touch()  # our mark under a name that is not ours
    (place / "20180101-000000-7").symlink_to(outside)
    (place / "20170101-000000-7").mkdir()
    (place / "20170101-000000-7" / MARK).symlink_to(outside / MARK)
    (place / "20160101-000000-7").write_text("a file")
    before = set(tmp_path.rglob("*"))
    jobs = [job(place, number) for number in range(1, JOBS + 5)]
    report_directories.of_job()
    assert before <= set(tmp_path.rglob("*"))
    assert [made.exists() for made in jobs] == [False] * 5 + [True] * (JOBS - 1)


def test_a_directory_that_may_not_be_searched_is_passed_over(
    place: Path, monkeypatch: Any
) -> None:
    """Another user's, in a cache that several share."""
    closed, stat = job(place, 1), os.stat

    def refused(path: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(path, int) and Path(path).parent == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refused)
    assert report_directories.of_job() is not None
    assert closed.is_dir()


def test_what_a_user_put_into_a_jobs_directory_stays(
    place: Path, tmp_path: Path
) -> None:
    for number in range(2, JOBS + 3):
        job(place, number)
    old = job(place, 1)
    (tmp_path / "notes").write_text("mine")
    (old / "8_0001_f.json").symlink_to(tmp_path / "notes")
    (old / "notes.txt").write_text("mine")
    (old / "7_0002_f.json").mkdir()
    report_directories.of_job()
    kept = {"8_0001_f.json", "notes.txt", "7_0002_f.json"}
    assert {path.name for path in old.iterdir()} == kept
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_report_marks_the_directory_that_was_made_for_its_job(place: Path) -> None:
    directory = report_directories.of_job()
    reports.add(_report(), str(directory))
    assert directory is not None
    (written,) = directory.glob("*.json")
    assert f"_{os.getpid()}_" in written.name
    assert (directory / MARK).exists()
    assert not list(directory.glob("*.html"))  # which nobody asked for


def test_the_directory_of_a_job_is_known_however_the_cache_is_named(
    place: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("AMP_CACHE_DIR", f"{place}/../../cache")
    directory = report_directories.of_job()
    assert directory is not None
    for name in (str(directory), os.path.abspath(directory)):
        assert report_directories.is_of_job(Path(name))


def test_files_that_a_job_wrote_are_removed_with_its_directory(
    place: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "web-1.example (a)")
    old = job(place, 1)
    reports.add(_report(), str(old))
    assert len(list(old.glob("web-1.example-a-_*.json"))) == 1
    for number in range(2, JOBS + 3):
        job(place, number)
    report_directories.of_job()
    assert not old.exists()


def test_the_directory_of_a_job_that_was_killed_while_it_wrote_goes_too(
    place: Path,
) -> None:
    for number in range(2, JOBS + 3):
        job(place, number)
    old, users = job(place, 1), job(place, 2)
    gone = contextlib.suppress(FileNotFoundError)
    with gone, atomic_files.beside(old / "7_0002_f.json") as part:
        part.write_text("{")
        mine = users / part.parent.name / "notes.txt"
        mine.parent.mkdir()
        mine.write_text("mine")
        report_directories.of_job()
        assert not old.exists()
        assert mine.read_text() == "mine"


def test_no_two_hosts_processes_or_starts_have_the_same_file(monkeypatch: Any) -> None:
    def name() -> str:
        return report_directories.file_name("f", 1)

    names = [name()]
    monkeypatch.setattr(platform, "node", lambda: "other")
    names.append(name())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    names.append(name())
    monkeypatch.setattr(PROCESS, "started", PROCESS.started + 0.002)
    names.append(name())
    monkeypatch.setattr(PROCESS, "started", PROCESS.started + 86_400.0)
    names.append(name())
    assert len(set(names)) == len(names)


def test_a_directory_that_the_user_named_is_not_marked(
    place: Path, tmp_path: Path
) -> None:
    (place / "20190101-000000-7").mkdir()
    for users in (place / "mine", tmp_path / "mine", place / "20190101-000000-7"):
        reports.add(_report(), str(users))
        assert {path.suffix for path in users.iterdir()} <= {".json", ".html"}


def _report() -> Report:
    numbers = {"nodes_total": 1, "nodes_low": 0, "casts": 0}
    times = {"seconds32": 1.0, "seconds16": 1.0}
    texts = dict.fromkeys(("function", "dtype", "device", "loss_scale", "verdict"), "f")
    return Report(emulated=False, decisions=(), **texts, **numbers, **times)
