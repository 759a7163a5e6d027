"""Writes a file or a directory so that it is there whole or not at all.

Errors are not caught here: callers know what a failure means to the user.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

_REPEATED = 40  # characters
_PART = re.compile(rf"\..{{1,{_REPEATED}}}\.[a-z0-9_]{{8}}")  # as `tempfile` names it


@contextlib.contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A path on the same file system, to write to; it becomes the target at the end.

    A file that was there is replaced: a reader sees the old one or the new one, however
    many processes write. After an error nothing of the attempt is left. Directories
    above the target are made.

    Args:
      target: a file or directory. A directory that is there is replaced in two steps,
        so that a reader may find none for a moment; it comes back after an error.

    Raises:
      OSError: the target cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # A name may have as many bytes as the system allows: only some of it is repeated.
    prefix = f".{target.name[:_REPEATED]}."
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as place:
        part = Path(place, target.name)  # made by its writer, with the usual rights
        yield part
        if target.is_dir() and not target.is_symlink():
            # A directory of its own: `part` may have any name, also this one.
            before = Path(tempfile.mkdtemp(dir=place), "before")
            _replace_directory(part, target, before)
        else:
            os.replace(part, target)


def left_over(directory: Path) -> Iterator[Path]:
    """What `beside` left in a directory: those of processes that were killed in it.

    They are directories, and of a process that runs it may be one that it writes to.
    """
    for entry in os.scandir(directory):
        if _PART.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def _replace_directory(part: Path, target: Path, before: Path) -> None:
    try:
        os.replace(target, before)
        os.replace(part, target)
    except BaseException:  # Control-C between the two, too
        if os.path.lexists(before) and not os.path.lexists(target):
            os.replace(before, target)
        raise


def write(target: Path, text: str, *, sync: bool = False) -> None:
    """Writes a text as UTF-8.

    Args:
      target: the file.
      text: what it is to hold.
      sync: whether it must be on the disk before it replaces an earlier file, so that
        not even a crash of the machine leaves an empty one.

    Raises:
      OSError: the file cannot be written.
    """
    with beside(target) as part, open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if sync:
            os.fsync(file.fileno())
