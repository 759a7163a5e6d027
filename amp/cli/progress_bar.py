"""A progress bar on stderr for the measurements of `amp tune`.

What is measured is not known here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich import console, progress


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar; yields a callback: the next case, how many are done, the total."""
    columns = (progress.BarColumn(), progress.MofNCompleteColumn())
    text = progress.TextColumn("{task.description}")
    elapsed = progress.TimeElapsedColumn()
    errors = console.Console(stderr=True)
    with progress.Progress(*columns, elapsed, text, console=errors) as bar:
        task = bar.add_task("")
        yield lambda case, done, total: bar.update(
            task, description=case, completed=done, total=total
        )
