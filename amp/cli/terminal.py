"""How wide the terminal is that a command prints to; nothing is printed here."""

from __future__ import annotations

import os
import shutil
import sys


def width() -> int | None:
    """The columns of the terminal, None where the output is no terminal.

    A file or pipe gets lines of any length; the variable COLUMNS says otherwise.
    """
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(20, shutil.get_terminal_size().columns)
    return None
