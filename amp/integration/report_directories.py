"""The names of reports' files, and where those of `amp run` go: a directory each job.

That is in the cache. Of earlier jobs' directories the oldest are removed: only those
with the mark file, of jobs that do not run any more, and in them only the files that
the plugin writes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path

from amp.integration import atomic_files
from amp.integration.measuring import profiles
from amp.integration.process import PROCESS

JOBS = 20  # how many jobs' directories stay, the newest
DAY = 86_400.0  # seconds from its start that a job elsewhere may run
# A file in every directory that `of_job` named. Earlier versions made none: their
# directories stay until the user removes them.
MARK = ".amp_reports"
_NAME = re.compile(r"\d{8}-\d{6}-\d+")  # date, time, process
_OURS = re.compile(  # as `file_name` has it, and as earlier versions had it
    r"([\w.-]+_\d{8}-\d{6}\.\d{3}_)?\d+_\d{4,}_\w+\.json|[\w.]*\.part|"
    + re.escape(MARK)
)


def of_job() -> Path | None:
    """A directory in the cache for the reports of this job, None if it cannot be made.

    It is not there yet: the first report makes it. The oldest of earlier jobs' go.
    """
    place = profiles.cache() / "reports"
    try:
        place.mkdir(parents=True, exist_ok=True)
        for old in sorted(_marked(place))[: 1 - JOBS]:
            if not _may_run(old.name):
                with contextlib.suppress(OSError):
                    _remove(old)
    except OSError:
        return None
    name = f"{_start(time.time())}-{os.getpid()}"
    return place / name if os.access(place, os.W_OK) else None


def _may_run(name: str) -> bool:
    """Whether the job of a directory may still run.

    On this host it does if its process does. Of other hosts, which may share the cache,
    only the start is known.
    """
    if name >= _start(time.time() - DAY):
        return True
    if os.name != "posix":  # where to ask for a process may end it
        return False
    try:
        os.kill(int(name.rpartition("-")[2]), 0)
    except PermissionError:  # of another user
        return True
    except (OSError, OverflowError):
        return False
    return True


def _start(moment: float) -> str:
    """A time as names of directories begin with it."""
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(moment))


def file_name(function: str, number: int) -> str:
    """The name of a report's files, without ending: of no other process or run.

    It has the host, the start and the number of the process, because in containers
    processes have the same numbers, and so have reruns.

    Args:
      function: the name of the function or graph.
      number: of the report in this process.
    """
    host = re.sub(r"[^\w.-]+", "-", platform.node())[:60] or "localhost"
    what = re.sub(r"\W+", "_", function)[:80].strip("_") or "graph"
    return f"{host}_{_text(PROCESS.started)}_{os.getpid()}_{number:04d}_{what}"


def _text(moment: float) -> str:
    """A time to the millisecond, as names of files have it."""
    return f"{_start(moment)}.{int(moment % 1 * 1000):03d}"


def is_of_job(directory: Path) -> bool:
    """Whether a directory is one that `of_job` names; users name others."""
    named = _NAME.fullmatch(directory.name) is not None
    # The start of a job may have made one of them absolute, without "..".
    places = (directory.parent, profiles.cache() / "reports")
    return named and len(set(map(os.path.abspath, places))) == 1


def mark(directory: Path) -> None:
    """Makes a directory for reports if there is none; one named by `of_job`, with MARK.

    One that was there already, or lies anywhere else, is the user's: it gets no mark.

    Raises:
      OSError: it cannot be made or written.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return
    if is_of_job(directory):
        (directory / MARK).touch()


def _marked(place: Path) -> Iterator[Path]:
    """The directories in `place` that bear our name and our mark; never a link."""
    for entry in os.scandir(place):
        if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            found = Path(entry.path, MARK)  # in another user's it cannot be looked for
            if os.path.isfile(found) and not os.path.islink(found):
                yield Path(entry.path)


def _remove(directory: Path) -> None:
    """Removes our files, then the directory; one with anything else in it stays.

    The mark goes last, so that what is left half way is found again. Of a job that was
    killed while it wrote a report a directory is in it, which goes by these rules.
    """
    for part in list(atomic_files.left_over(directory)):
        with contextlib.suppress(OSError):
            _remove(part)
    files = [
        entry.name
        for entry in os.scandir(directory)
        if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
    ]
    for name in sorted(files, key=lambda name: name == MARK):
        os.unlink(directory / name)
    directory.rmdir()
