"""`Judge`: what a plan is worth by what it computes; `GradientJudge`: by gradients.

Used by `accuracy_check` and `run_checks`, which compute them. The bounds are in
`accuracy`; here are the yardstick, and what a report says. Nothing is made or run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from amp.graph_rewrite.normalize.wanted import NotRepeatable
from amp.graph_rewrite.ops.op_table import Role
from amp.graph_rewrite.outcomes import AccuracyOutcome, GradientError
from amp.integration.observing import accuracy
from amp.integration.observing.accuracy import Errors, Value

NONE_FINITE = (
    "gradients are finite in float32, and with products in 16 bits they are not"
)
MOVES = "float32 gives something else each time; variables may change meanwhile"
_SHOWN = 5  # gradients in a report


class Judge(Protocol):
    """Judges what a plan computes by what float32 does."""

    @property
    def roles(self) -> frozenset[Role]:
        """The roles of the nodes that may be at fault."""

    @property
    def least(self) -> Errors:
        """The errors of a plan that has all these nodes in float32."""

    def errors(self, found: Sequence[Value]) -> Errors:
        """The errors of what a plan has computed."""

    def moved(self, again: Sequence[Value]) -> bool:
        """Whether what float32 computes, once more, is something else."""

    def lost(self, again: Callable[[], Sequence[Value]]) -> bool:
        """Whether products in 16 bits lose every gradient that float32 tells.

        Args:
          again: computes those in float32 once more.
        """

    def faults(self, found: Errors) -> list[int]:
        """The numbers of the values at fault, the worst first."""

    def is_fine(self, found: Errors) -> bool:
        """Whether none is."""

    def loses(self, found: Errors, other: Errors) -> bool:
        """Whether a plan makes noise of what another one tells."""

    def cause(self, found: Errors) -> str:
        """The worst fault in one line."""

    def outcome(
        self, found: Errors, kept: int, before: tuple[Errors, int] | None = None
    ) -> AccuracyOutcome:
        """The figures of a plan, for the report.

        Args:
          found: the plan's errors.
          kept: number of nodes that it keeps in float32.
          before: the errors before some of these were kept, and how many.
        """


class GradientJudge:
    """Judges gradients by those in float32 and with products only.

    Args:
      exact: the gradients in float32.
      unit: the unit roundoff of the 16-bit type.
      names: of the nodes that make the gradients.

    Raises:
      NotRepeatable: they are not finite.
    """

    def __init__(
        self, exact: Sequence[Value], unit: float, names: Sequence[str]
    ) -> None:
        self._exact, self._unit, self._names = exact, unit, names
        self.products = self.errors(exact)
        if not self.products.finite:
            raise NotRepeatable("its gradients are not finite in float32 either")

    @property
    def roles(self) -> frozenset[Role]:
        """No products: they are the yardstick."""
        return frozenset({Role.FOLLOW})

    @property
    def least(self) -> Errors:
        return self.products

    def yardstick(self, found: Sequence[Value]) -> bool:
        """Sets the errors with products only, by which others are judged.

        Returns:
          Whether these gradients are finite.
        """
        self.products = self.errors(found)
        return self.products.finite

    def errors(self, found: Sequence[Value]) -> Errors:
        return accuracy.errors(found, self._exact)

    def moved(self, again: Sequence[Value]) -> bool:
        """Those that are noise may be others, if sums are added up in another order."""
        off, products = self.errors(again).each, self.products.each
        return any(
            one > self._unit and not accuracy.NOISE < least < math.inf
            for one, least in zip(off, products, strict=True)
        )

    def lost(self, again: Callable[[], Sequence[Value]]) -> bool:
        sizes = self.products.sizes
        told = [number for number, size in enumerate(sizes) if size]
        if not told or min(self.products.each[i] for i in told) <= accuracy.NOISE:
            return False
        return max(self.errors(again()).each) <= accuracy.NOISE

    def faults(self, found: Errors) -> list[int]:
        return accuracy.faults(found, self.products, self._unit)

    def is_fine(self, found: Errors) -> bool:
        return not self.faults(found)

    def loses(self, found: Errors, other: Errors) -> bool:
        return accuracy.loses(found, other, self._unit)

    def cause(self, found: Errors) -> str:
        number = self.faults(found)[0]
        off, least = found.each[number], self.products.each[number]
        return (
            f"gradient {self._names[number]} off by {off:.2g}, {least:.2g} by products"
        )

    def outcome(
        self, found: Errors, kept: int, before: tuple[Errors, int] | None = None
    ) -> AccuracyOutcome:
        judged = [
            index
            for index, error in enumerate(self.products.each)
            if error <= accuracy.NOISE
        ]
        worst = sorted(judged, key=lambda i: -found.each[i])
        text = f"off by {found.all:.2g}, {self.products.all:.2g} by products only"
        if len(judged) < len(found.each):
            lost = len(found.each) - len(judged)
            text += f" ({lost} of {len(found.each)} are noise in any 16 bits)"
        if before is not None:
            errors, more = before
            text += f"; {errors.all:.2g} before {more} nodes were kept in float32"
        return AccuracyOutcome(
            text=f"gradients {text}",
            kept=kept,
            error=found.all,
            products=self.products.all,
            worst=tuple(
                GradientError(self._names[i], found.each[i], self.products.each[i])
                for i in worst[:_SHOWN]
            ),
        )
