"""Copies of a SavedModel's directory: every file in it, and links that stay inside.

Nothing outside the directory is read, whatever a link in it points to.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from amp.errors import GraphError


def copy(model: Path, target: Path, leave_out: Collection[str]) -> None:
    """Copies a directory; a link in it becomes a relative one to the copy.

    Its owner may write to every directory of the copy, however the model is protected.

    Args:
      model: the directory; it may itself be reached by a link.
      target: the directory to make.
      leave_out: names in `model` itself, not deeper, that are not copied.

    Raises:
      GraphError: a link leads out of the directory.
      OSError, shutil.Error: a file cannot be read or written.
    """
    root = Path(os.path.realpath(model))
    links = dict(_links(root))

    def ignored(directory: str, names: list[str]) -> set[str]:
        return set(names) & set(leave_out) if Path(directory) == root else set()

    shutil.copytree(root, target, symlinks=True, ignore=ignored)
    for directory, _, _ in os.walk(target):  # the rights too are copied
        os.chmod(directory, os.stat(directory).st_mode | stat.S_IRWXU)
    for link, pointed in links.items():
        copied = target / link
        if copied.is_symlink():
            copied.unlink()
            copied.symlink_to(os.path.relpath(pointed, link.parent))


def _links(root: Path) -> Iterator[tuple[Path, Path]]:
    """The symbolic links in a directory and what they lead to, both relative to it."""
    for directory, folders, files in os.walk(root):
        for name in (*folders, *files):
            link = Path(directory, name)
            if not link.is_symlink():
                continue
            pointed = Path(os.path.realpath(link))
            if not pointed.is_relative_to(root):
                raise GraphError(
                    f"a symbolic link leads out of the SavedModel, to {pointed}",
                    where=str(link),
                    allowed="files, directories, and links to what is inside",
                    remedy="if it belongs to the model, rewrite a copy with the file "
                    "itself in its place (cp -RL makes one)",
                )
            yield link.relative_to(root), pointed.relative_to(root)
