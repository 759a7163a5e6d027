"""`RangeReport`: what of a float32 function would leave a 16-bit type's range.

As data, as text and as JSON; nothing is run here.
"""

from __future__ import annotations

import dataclasses
import functools

from amp.graph_rewrite import figures, json_fields
from amp.graph_rewrite.comparison import wording
from amp.graph_rewrite.comparison.tensor_errors import RangeFigures

_ROWS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class RangedTensor:
    """A tensor of the function in float32.

    Attributes:
      name: the node, and the number of the output if that is not the first.
      op: the type of the node, "argument" for an argument.
      gradient: whether the loss scale is a factor of it.
      figures: what the 16-bit type would make of it.
      line: the user's source line, "" where it is not known; noted for those that
        leave the range.
      beside: whether it shows a variable that no gradient is computed from, as metrics
        do.
    """

    name: str
    op: str
    gradient: bool
    figures: RangeFigures
    line: str
    beside: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RangeReport:
    """What would leave the range of a 16-bit type, from one run in float32.

    Attributes:
      function: its name.
      dtype: the 16-bit type.
      limit: its largest finite number.
      tensors: all tensors that might be 16-bit, in the order of the graph.
      loss_scale: by which the gradients are multiplied in these figures.
      largest_scale: the largest power of two at which no gradient overflows, None where
        nothing is scaled, or all that is finite is 0.
      notes: what the figures hold for.
    """

    function: str
    dtype: str
    limit: float
    tensors: tuple[RangedTensor, ...]
    loss_scale: float
    largest_scale: float | None
    notes: tuple[str, ...] = ()

    @property
    def leaving(self) -> tuple[RangedTensor, ...]:
        """The tensors that leave the range, in the order of the graph, gradients last.

        Without those of metrics.
        """
        found = [t for t in self.tensors if t.figures.leaves and not t.beside]
        return tuple(sorted(found, key=lambda tensor: tensor.gradient))

    def within(self, bound: float | None = None) -> bool:
        """Whether no tensor overflows, however large an error is allowed."""
        return not any(tensor.figures.overflowed for tensor in self.leaving)

    def to_json(self) -> str:
        """The report as JSON, with the attributes as keys."""
        return json_fields.text(dataclasses.asdict(self))

    def __str__(self) -> str:
        return self.text()

    def text(self, columns: int | None = None) -> str:
        """What `str` gives, in lines that fit a terminal of so many columns."""
        width = min(columns or wording.WIDTH, wording.WIDTH)
        fact = functools.partial(wording.fact, width=width)
        leaving = self.leaving
        over = [t for t in leaving if t.figures.overflowed or t.figures.not_finite]
        name = wording.short(self.function, 40)
        count, more = len(self.tensors), len(leaving) - len(over)
        lines = [
            *wording.broken(
                f"{name}: {count} tensors in float32, of which in {self.dtype}", width
            ),
            *wording.broken(
                f"  {len(over)} pass {self.limit:g}, and {more} more lose values to 0",
                width,
            ),
        ]
        lost = [t for t in leaving if t not in over]
        for label, found in (("first over", over), ("first lost", lost)):
            for first in found[:1]:
                where = f"{first.name} ({first.op}), up to {first.figures.largest:.3g}"
                lines += fact(label, where)
                lines += fact("  where", first.line) if first.line else []
        lines += fact("loss scale", self._scale())
        for note in (*self.notes, *self._metrics()):
            lines += fact("note", note)
        return "\n".join([*lines, *self._table(leaving, width)])

    def _metrics(self) -> list[str]:
        """What is said of tensors of metrics that leave the range."""
        found = [t.name for t in self.tensors if t.figures.leaves and t.beside]
        if not found:
            return []
        named = f"{found[0]}{' and others' if found[1:] else ''}"
        return [f"{len(found)} more of metrics, which stay float32: {named}"]

    def _scale(self) -> str:
        gradients = [t.figures for t in self.tensors if t.gradient]
        if self.largest_scale is None and gradients:
            bad = any(figures.not_finite for figures in gradients)
            what = "no gradient is finite" if bad else "all gradients are 0"
            return f"{self.loss_scale:g}; {what}, which no scale changes"
        if self.largest_scale is None:
            return "none: no gradients of variables are scaled"
        most = self.largest_scale
        text = f"{self.loss_scale:g}; no gradient overflows up to {most:g}"
        if most < 1:
            text += ". That is under 1: the loss is large, as a sum over a batch is"
        return text

    def _table(self, leaving: tuple[RangedTensor, ...], width: int) -> list[str]:
        if not leaving:
            return []
        head = ("tensor, in graph order", "kind", "largest", "over", "zero", "denorm")
        rows = [head, *(_cells(tensor) for tensor in leaving[:_ROWS])]
        left = len(leaving) - _ROWS
        more = f"... and {left} more tensors; to_json() has all"
        rest = wording.broken(more, width) if left > 0 else []
        return ["", *figures.table(rows, width=width).splitlines(), *rest]


def _cells(tensor: RangedTensor) -> tuple[str, ...]:
    found = tensor.figures
    return (
        wording.short(tensor.name, 36),
        "grad" if tensor.gradient else "",
        f"{found.largest:.2e}",
        wording.share(max(found.overflowed, found.not_finite)),
        wording.share(found.underflowed),
        wording.share(found.denormal),
    )
