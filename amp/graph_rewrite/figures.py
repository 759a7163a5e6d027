"""Formats times, gains and tables as text, for reports and measurements.

Nothing is printed here, and nothing is known of where the figures come from.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence


def time(seconds: float) -> str:
    """A time as text in nano-, micro- or milliseconds, or from ten on in seconds."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    if 0 < seconds < 1e-6:
        nanoseconds = seconds * 1e9
        return f"{nanoseconds:.{'2g' if nanoseconds < 10 else '0f'}} ns"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def size(count: int) -> str:
    """A number of bytes as text, with at least two digits."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    digits = 1 if value < 10 and units[0] != "B" else 0
    return f"{value:.{digits}f} {units[0]}"


def gain(before: float, after: float) -> str:
    """How much faster something became, or slower: "1.26x slower", never "0.79x"."""
    ratio = before / after if after else 1.0
    text = f"{max(ratio, 1 / ratio):.2f}x" if ratio else "1.00x"
    if text == "1.00x":
        return "as fast"
    return f"{text} {'faster' if ratio > 1 else 'slower'}"


def change(before: float, after: float) -> str:
    """A difference of times as text, with its sign."""
    return f"{'-' if after < before else '+'}{time(abs(after - before))}"


def table(
    rows: Sequence[Sequence[str]], left: int = 1, width: int | None = None
) -> str:
    """Formats rows as a table with aligned columns; the first row is the head.

    Args:
      rows: the cells, the same number in each row.
      left: number of columns that are aligned left; the others are aligned right.
      width: columns of the terminal. Where the table is wider, each row is a paragraph
        instead: its first cell, then a line for each other cell with the head before.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        return "\n".join(
            line for row in rows[1:] for line in _tall(rows[0], row, width)
        )
    lines = [_line(row, widths, left) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    cells = list(zip(row, widths, strict=True))
    words = [cell.ljust(width) for cell, width in cells[:left]]
    numbers = [cell.rjust(width) for cell, width in cells[left:]]
    return "  ".join((*words, *numbers)).rstrip()


def _tall(head: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """A row as lines of at most `width` characters; empty cells are left out."""
    yield from textwrap.wrap(row[0], width) or [""]
    names = max(map(len, head[1:]), default=0)
    for name, cell in zip(head[1:], row[1:], strict=True):
        if cell:
            first = f"  {name.ljust(names)}  "
            yield from textwrap.wrap(
                cell, width, initial_indent=first, subsequent_indent=" " * 4
            )
