"""Curves and bars as SVG, drawn with the colours of the page that they stand in.

Used by `demo_page`. Takes numbers and gives text; reads no file, knows no run, and has
no script and no colour of its own: classes name them.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 408, 12, 214  # the edges of the plot


@dataclasses.dataclass(frozen=True)
class Curve:
    """Values over 1, 2, 3, ...

    Attributes:
      name: for the legend.
      style: class of the line, which says its colour and dashes.
      values: the values.
    """

    name: str
    style: str
    values: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Axis:
    """The vertical axis.

    Attributes:
      low, high: the ends.
      log: whether equal distances are equal ratios.
      shown: a value as text.
    """

    low: float
    high: float
    log: bool = False
    shown: Callable[[float], str] = "{:g}".format

    def place(self, value: float) -> float:
        """The vertical place of a value, inside the plot whatever it is."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return BOTTOM - (BOTTOM - TOP) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values between the ends."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low)), 9)
            return [10.0**p for p in powers if 10.0**p <= self.high]
        span = self.high - self.low
        unit = 10.0 ** math.floor(math.log10(span))
        step = next(unit * n for n in (0.1, 0.2, 0.5, 1, 2) if span / (unit * n) <= 5)
        first = math.ceil(self.low / step)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return [step * (first + n) for n in range(count)]


def over_log(curves: Iterable[Curve]) -> Axis:
    """An axis of ratios that has room for all values of some curves."""
    values = [value for curve in curves for value in curve.values if value > 0]
    low, high = min(values), max(values)
    return Axis(low / 1.3, high * 1.3 if high > low else low * 2, log=True)


def curves(title: str, over: str, axis: Axis, lines: Sequence[Curve]) -> str:
    """A chart of curves.

    Args:
      title: what is shown, for a reader who does not see it.
      over: what the horizontal axis counts.
      axis: the vertical axis.
      lines: the curves; the last lies on top.
    """
    count = max(len(line.values) for line in lines)
    parts = [*_grid(axis), *_numbers(count, over)]
    parts += [_line(line, axis, count) for line in lines]
    return _svg(title, parts) + _legend(lines)


def bars(title: str, unit: str, rows: Sequence[Curve]) -> str:
    """Bars, one below the other, from 0; a second value is where the first part ends.

    Args:
      title: what is shown, for a reader who does not see it.
      unit: of the values.
      rows: a bar each, with one value or two: the whole, and the part that was there
        before.
    """
    most = max(row.values[0] for row in rows)
    each = (BOTTOM - TOP) / len(rows)
    parts = []
    for number, row in enumerate(rows):
        top = TOP + each * number
        width = (RIGHT - 8) * row.values[0] / most
        parts.append(_rectangle(row.style, 4, top + 26, width, each - 40))
        if len(row.values) > 1:
            before = (RIGHT - 8) * row.values[1] / most
            parts.append(_rectangle("before", 4, top + 26, before, each - 40))
        text = f"{row.name}: {row.values[0]:,.0f} {unit}"
        parts.append(_text(4, top + 19, text, "name"))
    return _svg(title, parts)


def _grid(axis: Axis) -> Iterator[str]:
    for tick in axis.ticks():
        y = axis.place(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 6, y + 4, axis.shown(tick), "end")


def _numbers(count: int, over: str) -> Iterator[str]:
    """The horizontal axis: what it counts, and some of the numbers."""
    step = max(1, math.ceil(count / 8))
    for number in range(step if step > 1 else 1, count + 1, step):
        yield _text(_across(number, count), BOTTOM + 16, str(number), "middle")
    yield _text((LEFT + RIGHT) / 2, BOTTOM + 33, over, "middle")


def _across(number: int, count: int) -> float:
    return LEFT + (RIGHT - LEFT) * (number - 1) / max(1, count - 1)


def _line(line: Curve, axis: Axis, count: int) -> str:
    places = (
        f"{_across(number, count):.1f},{axis.place(value):.1f}"
        for number, value in enumerate(line.values, 1)
    )
    return f'<polyline class="{line.style}" points="{" ".join(places)}"/>'


def _rectangle(style: str, x: float, y: float, width: float, height: float) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" {size} rx="3"/>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{html.escape(text)}</text>'


def _svg(title: str, parts: Iterable[str]) -> str:
    named = f'role="img" aria-label="{html.escape(title)}"'
    drawn = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" {named}>\n{drawn}\n</svg>\n'


def _legend(lines: Sequence[Curve]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 26 8"><line class="{line.style}" x1="1" x2="25" '
        f'y1="4" y2="4"/></svg>{html.escape(line.name)}</li>'
        for line in lines
    )
    return f'<ul class="keys">{items}</ul>'
