"""A progress bar on stderr for the measurements of `amp tune`.

What is measured is not known here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich import console, progress


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a callback: the next case, how many are done, the total.

    The bar appears at its first call, so that no empty one stands above an error.
    """
    columns = (progress.BarColumn(), progress.MofNCompleteColumn())
    text = progress.TextColumn("{task.description}")
    elapsed = progress.TimeElapsedColumn()
    errors = console.Console(stderr=True)
    bar = progress.Progress(*columns, elapsed, text, console=errors)
    task = bar.add_task("")
    with contextlib.ExitStack() as shown:

        def show(case: str, done: int, total: int) -> None:
            if not bar.live.is_started:
                shown.enter_context(bar)
            bar.update(task, description=case, completed=done, total=total)

        yield show
