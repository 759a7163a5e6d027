"""The reports of this process, and their files in the directory that a policy names.

What a report says is not known here, and nothing that goes wrong here stops a job.
"""

from __future__ import annotations

import collections
import itertools
import os
import re
import tempfile
import threading
import warnings
from pathlib import Path

from amp.graph_rewrite.report import Report

_LOCK = threading.Lock()
_KEPT = 1000  # a job that keeps making functions must not fill the memory
_REPORTS: collections.OrderedDict[int, Report] = collections.OrderedDict()
_NUMBERS = itertools.count(1)
_UNWRITABLE: set[str] = set()  # directories that were warned of


def add(report: Report, directory: str | None) -> int:
    """Keeps a report and writes it to `directory`, if any, whole or not at all.

    A directory that cannot be written to is warned of; the report is kept.

    Returns:
      The report's number in this process, by which it may be replaced.
    """
    with _LOCK:
        number = next(_NUMBERS)
        _REPORTS[number] = report
        if len(_REPORTS) > _KEPT:
            _REPORTS.popitem(last=False)
    _save(report, number, directory)
    return number


def replace(number: int, report: Report, directory: str | None) -> None:
    """Puts a later state of a report in its place, where it is kept and in its file."""
    with _LOCK:
        if number in _REPORTS:  # not one of too long ago
            _REPORTS[number] = report
    _save(report, number, directory)


def _save(report: Report, number: int, directory: str | None) -> None:
    if directory is None or directory in _UNWRITABLE:
        return
    name = re.sub(r"\W+", "_", report.function)[:80].strip("_") or "graph"
    target = Path(directory) / f"{os.getpid()}_{number:04d}_{name}.json"
    try:
        _write(report.to_json(), target)
    except OSError as e:
        _UNWRITABLE.add(directory)
        warnings.warn(
            f"amp: reports are not written: {e}\n"
            "  where:   Policy(report=...), AMP_REPORT\n"
            "  allowed: a directory that can be made or written to\n"
            "  do now:  name another; amp.reports() has the report meanwhile",
            stacklevel=2,
        )


def _write(text: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, suffix=".part", delete=False
    ) as file:
        file.write(text)
    os.replace(file.name, target)


def reports() -> list[Report]:
    """The reports of the last 1000 rewrites of this process, oldest first."""
    with _LOCK:
        return list(_REPORTS.values())


def clear() -> None:
    """Forgets the reports so far; the files written stay."""
    with _LOCK:
        _REPORTS.clear()
