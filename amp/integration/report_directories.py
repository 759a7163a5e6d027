"""Where the reports of `amp run` go by default: in the cache, a directory for each job.

Of earlier jobs' directories the oldest are removed: only those with the mark file, and
in them only the files that the plugin writes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from amp.integration.measuring import profiles

JOBS = 20  # how many jobs' directories stay, the newest
# A file in every directory that `of_job` named. Earlier versions made none: their
# directories stay until the user removes them.
MARK = ".amp_reports"
_NAME = re.compile(r"\d{8}-\d{6}-\d+")  # date, time, process
_OURS = re.compile(r"\d+_\d{4,}_\w+\.json|[\w.]*\.part|" + re.escape(MARK))


def of_job() -> Path | None:
    """A directory in the cache for the reports of this job, None if it cannot be made.

    It is not there yet: the first report makes it. The oldest of earlier jobs' go.
    """
    place = profiles.cache() / "reports"
    try:
        place.mkdir(parents=True, exist_ok=True)
        for old in sorted(_marked(place))[: 1 - JOBS]:
            with contextlib.suppress(OSError):
                _remove(old)
    except OSError:
        return None
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return place / name if os.access(place, os.W_OK) else None


def mark(directory: Path) -> None:
    """Makes a directory for reports if there is none; one named by `of_job`, with MARK.

    One that was there already, or lies anywhere else, is the user's: it gets no mark.

    Raises:
      OSError: it cannot be made or written.
    """
    named = _NAME.fullmatch(directory.name) is not None
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return
    if named and directory.parent == profiles.cache() / "reports":
        (directory / MARK).touch()


def _marked(place: Path) -> Iterator[Path]:
    """The directories in `place` that bear our name and our mark; never a link."""
    for entry in os.scandir(place):
        if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            found = Path(entry.path, MARK)
            if found.is_file() and not found.is_symlink():
                yield Path(entry.path)


def _remove(directory: Path) -> None:
    """Removes our files, then the directory; one with anything else in it stays.

    The mark goes last, so that what is left half way is found again.
    """
    files = [
        entry.name
        for entry in os.scandir(directory)
        if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
    ]
    for name in sorted(files, key=lambda name: name == MARK):
        os.unlink(directory / name)
    directory.rmdir()
