"""Formats facts, shares and long names for lines of 80 columns.

Nothing is known here of what they are about.
"""

from __future__ import annotations

import re
import textwrap

WIDTH = 80
_LABEL = 12


def fact(label: str, text: str) -> list[str]:
    """A labelled fact as lines, indented under one another."""
    first = f"  {label:<{_LABEL}} "
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


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
