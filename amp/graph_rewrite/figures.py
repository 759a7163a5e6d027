"""Times and tables as text, for reports and measurements.

Which figures there are is not known here; nothing is printed.
"""

from __future__ import annotations

from collections.abc import Sequence


def time(seconds: float) -> str:
    """A time in microseconds, or from a millisecond on in milliseconds."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows as lines of equally wide columns; the first row is the head.

    Args:
      rows: cells, as many in each row.
      left: how many columns are words and stand to the left; figures to the right.
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
