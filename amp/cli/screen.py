"""Prints text so that it fits the terminal, also that of a phone.

Used by sub-commands that print tables and reports; what is printed is not known here.
"""

from __future__ import annotations

import io
import re
import sys

from amp.cli import terminal


def show(text: object) -> None:
    """Prints text, with lines broken that are longer than the terminal is wide."""
    width = terminal.width()
    print(text if width is None else fitted(str(text), width))


def show_page(html: str) -> None:
    """Prints a page in UTF-8, as it says of itself, whatever the terminal has."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    print(html)


def fitted(text: str, width: int) -> str:
    """Breaks lines that are longer than a screen is wide.

    The rest of a line is indented as far as its text begins: after the indent, and
    after the words that two or more spaces set apart. A name that is longer than a line
    is broken after a "/", or else left as it is.

    Args:
      text: the lines.
      width: characters in a line.
    """
    return "\n".join(_fitted(line, width) for line in text.split("\n"))


def _fitted(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    column = min(max(m.end() for m in re.finditer(r"^ *|(?<=\S)  +", line)), width // 3)
    lines = [line[:column]]
    for word in re.findall(r"\S[^\s/]*/?|\s+", line[column:]):
        if len(lines[-1]) + len(word.rstrip()) > width and lines[-1].strip():
            lines.append(" " * column)
            word = word.lstrip()
        lines[-1] += word
    return "\n".join(each.rstrip() for each in lines)
