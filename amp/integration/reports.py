"""The reports of this process, their files, and what became of a job in one line.

`functions.twins`, `sessions` and `files` add to them. What a report says is decided in
`graph_rewrite`; nothing that goes wrong here stops a job.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from amp import messages
from amp.graph_rewrite import figures
from amp.graph_rewrite.report import Report
from amp.integration import atomic_files, fallback, report_directories
from amp.integration.process import PROCESS
from amp.policy import FIELDS

if TYPE_CHECKING:
    from amp.integration.source_lines import SourceLines

# Reentrant: the garbage collector may run a program's `__del__` while it is held.
_LOCK = threading.RLock()
# A job that keeps making functions must not fill the memory: the newest `_KEPT` reports
# stay, with up to `_DECISIONS` decisions in all, at some 530 bytes each.
_KEPT = 1000
_DECISIONS = 120_000
# The name that TensorFlow gives a trace of a function; so many may be told of.
_TRACE = re.compile(r"_*inference_(.+)_\d+")
_OFTEN = 10
_BY_PRICE = "cost"  # the rule of what might be 16-bit, and would gain nothing
_NOTHING_ROUNDED = (
    "emulation rounds nothing of a function, which 16 bits would not make faster, even "
    "on the A100 that is planned for: its values are float32's. "
    'assignment="all" (AMP_ASSIGNMENT=all) rounds all that may be rounded'
)
# Finds the source lines of what a report is on; called when somebody asks for it.
Lines: TypeAlias = "Callable[[], SourceLines]"


def add(report: Report, directory: str | None, lines: Lines | None = None) -> int:
    """Keeps a report and writes it to `directory`, if any, whole or not at all.

    A directory that cannot be written to is warned of; the report is kept.

    Args:
      report: the report.
      directory: to write it to, None for none.
      lines: as of `keep`.

    Returns:
      The report's number in this process, by which it may be replaced.
    """
    number = keep(report, lines)
    write(report, number, directory)
    return number


def keep(report: Report, lines: Lines | None = None) -> int:
    """Keeps a report and does not write it; it may be replaced from now on.

    Args:
      report: the report.
      lines: finds the source lines of its nodes; by default they are those of the
        function of the report's name, if that is registered when they are asked for.

    Returns:
      The report's number in this process.
    """
    with _LOCK:
        number = next(PROCESS.report_numbers)
        PROCESS.reports[number] = report
        if lines is not None:
            PROCESS.report_lines[number] = lines
        if len(PROCESS.reports) > _KEPT:
            oldest, _ = PROCESS.reports.popitem(last=False)
            PROCESS.report_lines.pop(oldest, None)
        _drop_decisions()
    if report.emulated and not report.nodes_low and _has_candidates(report):
        messages.note(_NOTHING_ROUNDED)
    return number


def _has_candidates(report: Report) -> bool:
    return any(decision.rule == _BY_PRICE for decision in report.decisions)


def replace(number: int, report: Report, directory: str | None) -> None:
    """Puts a later state of a report in its place, where it is kept and in its file."""
    with _LOCK:
        if number in PROCESS.reports:  # not one of too long ago
            PROCESS.reports[number] = report
            _drop_decisions()
    write(report, number, directory)


def _drop_decisions() -> None:
    """Removes decisions from the oldest reports until the limit holds.

    The newest report always keeps its own.
    """
    kept = 0
    for count, (number, report) in enumerate(reversed(PROCESS.reports.items())):
        kept += len(report.decisions)
        if count and report.decisions and kept > _DECISIONS:
            PROCESS.reports[number] = dataclasses.replace(report, decisions=())


def write(report: Report, number: int, directory: str | None) -> None:
    """Writes a report as JSON and as a page; warns once of a directory, and goes on.

    Later reports are tried again: a disk may have room again.

    Args:
      report: the report.
      number: that `keep` gave it.
      directory: to write it to, None for none.
    """
    if directory is None:
        return
    report = _with_lines(report, number, _of_runtime)
    with _LOCK:  # the function may be gone when the process's reports are asked for
        if number in PROCESS.reports and PROCESS.reports[number].decisions:
            PROCESS.reports[number] = report
    place = Path(PROCESS.started_in, directory)
    name = report_directories.file_name(report.function, number)
    try:
        report_directories.mark(place)
        atomic_files.write(place / f"{name}.json", report.to_json())
        if not report_directories.is_of_job(place):
            atomic_files.write(place / f"{name}.html", report.to_html())
    except OSError as e:
        if directory not in PROCESS.unwritable:
            PROCESS.unwritable.add(directory)
            _warn(e)


def failed(directory: str | None) -> bool:
    """Whether a report could not be written to a directory, of which a warning told."""
    return directory in PROCESS.unwritable


def _with_lines(report: Report, number: int, runtime: Lines) -> Report:
    """A report with the user's source lines, as far as TensorFlow still knows them."""
    own = PROCESS.report_lines.get(number)
    main = "" if own else report.function
    part = fallback.Part("a report has no source lines")

    def added() -> Report:
        with_lines: Report = _source_lines().added(report, (own or runtime)(), main)
        return with_lines

    return fallback.attempt(part, added, lambda: report)


def _of_runtime() -> SourceLines:
    lines: SourceLines = _source_lines().of_runtime()
    return lines


def _source_lines() -> Any:
    """The module, which imports TensorFlow; the end of an idle process does without."""
    return importlib.import_module("amp.integration.source_lines")


def _warn(error: OSError) -> None:
    messages.warn(
        f"a report was not written: {error}\n"
        f"  where:   {FIELDS['report'].places}\n"
        "  allowed: a directory that can be made or written to, on a disk with room\n"
        "  do now:  make room or name another; amp.reports() has the report meanwhile, "
        "and later ones are written where they can be",
        UserWarning,
    )


def reports() -> list[Report]:
    """The reports of the last 1000 rewrites of this process, oldest first.

    Older ones have no `decisions` left where all together had more than 120,000; a file
    (`Policy.report`) has them all. The source lines of nodes are looked up now, for
    functions and graphs that are still there.
    """
    runtime = functools.cache(_of_runtime)
    with _LOCK:
        known = list(PROCESS.reports.items())
    told = {number: _with_lines(each, number, runtime) for number, each in known}
    with _LOCK:
        for number, before in known:
            if PROCESS.reports.get(number) is before:
                PROCESS.reports[number] = told[number]
    return list(told.values())


def summary(directory: str | None, skipped: int, complete: bool = True) -> str:
    """What became of the functions of this process, in one line.

    Args:
      directory: where reports were written.
      skipped: updates that were skipped because gradients overflowed.
      complete: whether those of all sessions are among them.
    """
    with _LOCK:
        made = list(PROCESS.reports.values())
    if not made:
        return "no function ran in mixed precision"
    place = None if directory is None else Path(PROCESS.started_in, directory)
    there = place is not None and os.path.isdir(place)
    where = f"; reports: {place}" if there else ""
    steps = f"{skipped} step{'' if skipped == 1 else 's'} skipped"
    if not complete:
        steps += " (not counting sessions that were never closed)"
    newest = f"of the newest {_KEPT}: " if len(made) >= _KEPT else ""
    told = f"{newest}{total(made)}{_why_not(made)}"
    return f"{told}, {steps}{where}"


def total(made: Sequence[Report]) -> str:
    """What some rewrites, at least one, did in all, in one line.

    The gain is the measured one, of the functions that have one; else the predicted.
    """
    done = [report for report in made if report.rewritten]
    low, total = (
        sum(getattr(r, name) for r in made) for name in ("nodes_low", "nodes_total")
    )
    on = "as on" if made[0].emulated else "on"
    return (
        f"{len(done)} of {len(made)} functions{_often(made)} rewritten, "
        f"{low} of {total} nodes in {made[0].dtype} {on} {made[0].device}"
        f"{_gain(done)}{_left(made)}"
    )


def _often(made: Sequence[Report]) -> str:
    """Which function was traced again and again, each trace to be planned anew."""
    names = collections.Counter(
        found[1] for each in made if (found := _TRACE.fullmatch(each.function))
    )
    name, times = max(names.items(), key=lambda item: item[1], default=("", 0))
    return f" ({times} are traces of {name})" if times >= _OFTEN else ""


def _gain(done: Sequence[Report]) -> str:
    """The gain of the functions that were rewritten, "" if none was.

    One that is predicted to be a loss is not told of plans whose race has not ended.
    """
    if not done:
        return ""
    if done[0].emulated:
        return ", emulated"
    raced = [r for r in done if r.measured32 is not None and r.measured16 is not None]
    if raced:
        before = sum(r.measured32 or 0.0 for r in raced)
        after = sum(r.measured16 or 0.0 for r in raced)
        of = "" if len(raced) == len(done) else f" in {len(raced)} of them"
        return f", measured {figures.gain(before, after)}{of}"
    before, after = (sum(getattr(r, f"seconds{n}") for r in done) for n in (32, 16))
    off = next((r.trial[5:] for r in done if r.trial.startswith("off: ")), "")
    races = any(r.trial.startswith("under way") for r in done)
    if races and not off and after > before:
        return " (the job ended before their race did)"
    why = off or ("the job ended before the race did" if races else "")
    return f", predicted {figures.gain(before, after)}" + (
        f" (not measured: {why})" if why else ""
    )


def _left(made: Sequence[Report]) -> str:
    """How many functions run in float32 because that was measured to be faster."""
    beaten = [r for r in made if not r.rewritten and r.measured32 is not None]
    return f", float32 was the fastest in {len(beaten)}" if beaten else ""


def _why_not(made: Sequence[Report]) -> str:
    """Why the longest function was not rewritten, "" if it was or a race decided it."""
    longest = max(made, key=lambda report: report.seconds32)
    if longest.rewritten or longest.measured32 is not None:
        return ""
    of = "the longest: " if any(report.rewritten for report in made) else ""
    return f" ({of}{longest.verdict})"
