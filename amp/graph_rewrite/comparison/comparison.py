"""`Comparison`: what `amp.compare` found, as data, as text and as JSON.

Nothing is run, judged or searched for here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from amp.graph_rewrite import figures, json_fields
from amp.graph_rewrite.comparison import wording
from amp.graph_rewrite.comparison.alone import KernelError
from amp.graph_rewrite.comparison.suggestion import Suggestion

_ROWS = 20  # tensors in the table


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedTensor:
    """A tensor in float32 and in the twin.

    Attributes:
      name: the node, and the number of the output if that is not the first.
      op: the type of the node, "argument" for an argument.
      dtype: the type in the twin.
      role: "result", "gradient" or "".
      error: relative, of the elements that are finite on both sides.
      allowed: the relative error that rounding explains (see `rounding_bound`).
      overflowed: share of elements finite in float32 and not in the twin.
      underflowed: share of elements too small for the type, which became 0.
      denormal: share of elements below the smallest normal number of the type.
      small_error: the part of the error that these two make.
      largest: the largest absolute value in float32.
      not_finite: share of elements that are not finite in float32 already.
      noise: whether it is a sum that cancels to less than the rounding of its terms,
        of which no 16 bits keep a digit; nothing is judged by it.
    """

    name: str
    op: str
    dtype: str
    role: str
    error: float
    allowed: float
    overflowed: float
    underflowed: float
    denormal: float
    small_error: float
    largest: float
    not_finite: float = 0.0
    noise: bool = False

    @property
    def parted(self) -> bool:
        """Whether the twin has left float32: by more than rounding explains."""
        beyond = self.overflowed > 0 or not self.error <= self.allowed
        return beyond and not self.noise

    @property
    def excess(self) -> float:
        """How many times the error that rounding explains; infinite where not finite.

        By it the table is sorted, noise last.
        """
        if self.noise:
            return 0.0
        if self.overflowed or math.isnan(self.error):
            return math.inf
        return self.error / self.allowed


@dataclasses.dataclass(frozen=True, slots=True)
class Parting:
    """Where original and twin part, and why.

    Attributes:
      tensor: its place in the list of tensors.
      line: the user's source line, "" if it is not known.
      cause: "range", "kernel" or "sensitive".
      text: the cause in words.
    """

    tensor: int
    line: str
    cause: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What a function and its twin computed on the same inputs and state.

    Attributes:
      function: its name.
      dtype: the 16-bit type.
      tensors: those that exist on both sides, in the order of the graph.
      parting: where they part first, None if they do not.
      kernels: 16-bit nodes that are wrong by themselves: against their own float32
        result on the same inputs.
      kernels_checked: number of 16-bit nodes that were looked at so.
      loss_scale: that the gradients were taken with, None without a dynamic scale.
      loss_scale_note: what is to be said of it.
      suggestion: the nodes to keep in float32, if that was asked for.
      notes: what the figures do not show, or hold for.
    """

    function: str
    dtype: str
    tensors: tuple[ComparedTensor, ...]
    parting: Parting | None
    kernels: tuple[KernelError, ...]
    kernels_checked: int
    loss_scale: float | None = None
    loss_scale_note: str = ""
    suggestion: Suggestion | None = None
    notes: tuple[str, ...] = ()

    @property
    def judged(self) -> tuple[ComparedTensor, ...]:
        """The function's results and gradients, without noise."""
        return tuple(t for t in self.tensors if t.role and not t.noise)

    @property
    def _bounded(self) -> tuple[ComparedTensor, ...]:
        """What errors are about: all tensors where no result is a floating one."""
        results = any(tensor.role for tensor in self.tensors)
        return self.judged if results else self.tensors

    @property
    def error(self) -> float:
        """The largest relative error of a result or gradient, infinite if not finite.

        Where no result is a floating tensor, that of any tensor; 0 where all is noise.
        """
        return worst(self._bounded)

    def within(self, bound: float | None = None) -> bool:
        """Whether no result or gradient is off by more than a bound.

        Args:
          bound: of the relative error; None for what rounding explains of each.
        """
        if bound is None:
            return not any(t.parted for t in self._bounded) and not self.kernels
        return self.error <= bound

    def to_json(self) -> str:
        """The comparison as JSON, with the attributes as keys.

        An error that is not finite is null.
        """
        fields = dataclasses.asdict(self)
        fields["error"] = self.error
        for row, tensor in zip(fields["tensors"], self.tensors, strict=True):
            row["parted"] = tensor.parted
        return json_fields.text(fields)

    def __str__(self) -> str:
        return self.text()

    def text(self, columns: int | None = None) -> str:
        """What `str` gives, in lines that fit a terminal of so many columns."""
        width = min(columns or wording.WIDTH, wording.WIDTH)
        fact = functools.partial(wording.fact, width=width)
        lines = [p for line in self._first() for p in wording.broken(line, width)]
        if self.loss_scale is not None and self.loss_scale_note:
            lines += fact("loss scale", self._scale())
        if self.parting is not None:
            lines += fact(
                "where", self.parting.line or "no line of yours; see the name"
            )
            lines += fact("cause", self.parting.text)
        before = [t for t in self.tensors if t.not_finite]
        if before:
            text = (
                f"{len(before)} tensors are not finite in float32 either, of which "
                f"{before[0].name} ({before[0].op}) is the first: this is the model's"
            )
            lines += fact("float32", text)
        lines += fact("results", self._results())
        lines += fact("kernels", self._kernels())
        if self.loss_scale is not None and not self.loss_scale_note:
            lines += fact("loss scale", self._scale())
        lost = [tensor.name for tensor in self.tensors if tensor.noise]
        if lost:
            text = (
                f"{len(lost)} tensors, as {wording.short(lost[0], 50)}, are sums that "
                "cancel to less than the rounding of their terms: noise in any 16 "
                "bits, by which nothing is judged"
            )
            lines += fact("noise", text)
        for note in self.notes:
            lines += fact("note", note)
        if self.suggestion is not None:
            lines += self.suggestion.lines(width)
        return "\n".join([*lines, "", *self._table(width)])

    def _scale(self) -> str:
        return f"{self.loss_scale:g}{self.loss_scale_note}"

    def _first(self) -> list[str]:
        name, count = wording.short(self.function, 40), len(self.tensors)
        if self.parting is None:
            return [f"{name}: {count} tensors, none parts from float32"]
        first = self.tensors[self.parting.tensor]
        return [
            f"{name}: parts from float32 at",
            f"  {first.name} ({first.op}, {first.dtype})",
            wording.fact("error", _error_text(first))[0],
        ]

    def _results(self) -> str:
        judged = self.judged
        if not judged and any(tensor.role for tensor in self.tensors):
            return "all of them are noise, by which nothing is judged"
        if not judged:
            return "no floating tensor is a result"
        largest = max(judged, key=lambda tensor: tensor.excess)
        off = f"off by at most {self.error:.2g}"
        if math.isinf(self.error):
            off = "not all finite"
        many = (
            "1 result" if len(judged) == 1 else f"{len(judged)} results and gradients"
        )
        text = f"{many}, {off}"
        return f"{text}; worst: {largest.name}, {_error_text(largest)}"

    def _kernels(self) -> str:
        if not self.kernels_checked:
            return "none to check: there is no 16-bit kernel in the twin"
        alone = f"{self.kernels_checked} by themselves, on the same rounded inputs"
        if not self.kernels:
            return f"{alone}: all agree with float32; no conversion is at fault"
        wrong = "; ".join(
            f"{one.name} ({one.op}) is off by {one.error:.2g}, where rounding explains "
            f"{one.allowed:.2g}"
            for one in self.kernels[:5]
        )
        more = f" and {len(self.kernels) - 5} more" if len(self.kernels) > 5 else ""
        return f"{alone}: CONVERSION FAULT: {wrong}{more}"

    def _table(self, width: int) -> list[str]:
        order = sorted(self.tensors, key=lambda tensor: -tensor.excess)
        head = ("tensor, worst first", "type", "error", "explained")
        rows: list[tuple[str, ...]] = [(*head, "inf", "zero", "denorm")]
        rows += [_cells(tensor) for tensor in order[:_ROWS]]
        left = len(order) - _ROWS
        more = f"... and {left} more tensors; to_json() has all"
        rest = wording.broken(more, width) if left > 0 else []
        return [*figures.table(rows, width=width).splitlines(), *rest]


def worst(tensors: Sequence[ComparedTensor]) -> float:
    """The largest relative error of some tensors, infinite if not finite."""
    sound = (tensor for tensor in tensors if not tensor.noise)
    errors = (math.inf if t.overflowed else t.error for t in sound)
    return max(errors, default=0.0)


def _cells(tensor: ComparedTensor) -> tuple[str, ...]:
    short = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
    return (
        wording.short(tensor.name, 28),
        short.get(tensor.dtype, tensor.dtype),
        f"{tensor.error:.1e}",
        f"{tensor.allowed:.1e}",
        wording.share(tensor.overflowed),
        wording.share(tensor.underflowed),
        wording.share(tensor.denormal),
    )


def _error_text(tensor: ComparedTensor) -> str:
    text = f"{tensor.error:.2g}, where rounding explains {tensor.allowed:.2g}"
    for share, what in (
        (tensor.overflowed, "not finite"),
        (tensor.underflowed, "lost to 0"),
    ):
        if share:
            text += f"; {wording.share(share)} {what}"
    return text
