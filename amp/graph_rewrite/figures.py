"""Formats times and tables as text, for reports and measurements.

Nothing is printed here, and nothing is known of where the figures come from.
"""

from __future__ import annotations

from collections.abc import Sequence


def time(seconds: float) -> str:
    """A time as text in microseconds, or in milliseconds from one millisecond on."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Formats rows as a table with aligned columns; the first row is the head.

    Args:
      rows: the cells, the same number in each row.
      left: number of columns that are aligned left; the others are aligned right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths, left) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    cells = list(zip(row, widths, strict=True))
    words = [cell.ljust(width) for cell, width in cells[:left]]
    numbers = [cell.rjust(width) for cell, width in cells[left:]]
    return "  ".join((*words, *numbers)).rstrip()
