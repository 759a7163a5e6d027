"""Formats facts, shares and long names for lines of 80 columns, or of fewer.

Nothing is known here of what they are about.
"""

from __future__ import annotations

import re
import textwrap

WIDTH = 80
_LABEL = 12


def fact(label: str, text: str, width: int = WIDTH) -> list[str]:
    """A labelled fact as lines, indented under one another.

    Args:
      label: its name.
      text: what it says.
      width: columns of a line; in few, the lines after the first begin further left,
        and words that are longer than a line are broken.
    """
    first, narrow = f"  {label:<{_LABEL}} ", width < WIDTH
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * (4 if narrow else len(first)),
        break_long_words=narrow,
        break_on_hyphens=False,
    )


def broken(line: str, width: int) -> list[str]:
    """A line as it is, or in a narrow terminal as lines of at most so many columns."""
    if width >= WIDTH:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False)


def short(name: str, most: int) -> str:
    """A name of at most so many characters; the end of it says most."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def share(part: float) -> str:
    """A share in percent, "" for none; a small one is not rounded to none."""
    if part <= 0:
        return ""
    return "<1%" if part < 0.01 else f"{part:.0%}"


def function(name: str) -> str:
    """A function's name without what TensorFlow puts around it at tracing."""
    return re.sub(r"^__(?:inference|forward|backward)_(.+?)_\d+$", r"\1", name)
