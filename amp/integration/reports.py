"""The reports of this process, and their files in the directory that a policy names."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from pathlib import Path

from amp.graph_rewrite.report import Report

_LOCK = threading.Lock()
_REPORTS: list[Report] = []


def add(report: Report, directory: str | None) -> None:
    """Keeps a report and writes it to `directory`, if any, whole or not at all."""
    with _LOCK:
        _REPORTS.append(report)
        number = len(_REPORTS)
    if directory is None:
        return
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "_", report.function)[:80].strip("_") or "graph"
    target = folder / f"{os.getpid()}_{number:04d}_{name}.json"
    with tempfile.NamedTemporaryFile(
        "w", dir=folder, suffix=".part", delete=False
    ) as file:
        file.write(report.to_json())
    os.replace(file.name, target)


def reports() -> list[Report]:
    """The report of every rewrite of this process, oldest first."""
    with _LOCK:
        return list(_REPORTS)


def clear() -> None:
    """Forgets the reports so far; the files written stay."""
    with _LOCK:
        _REPORTS.clear()
