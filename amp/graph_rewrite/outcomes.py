"""What was found out about a plan after it was made: times, its race, its gradients.

Frozen data only: races and checks are run in `integration`, never here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amp.graph_rewrite import figures


class PlanSize(NamedTuple):
    """What a plan makes of a function, besides its time.

    Attributes:
      low, casts: number of nodes in 16 bits, and of casts.
      bytes: of the results of all nodes with floating results, of one run of each.
    """

    low: int
    casts: int
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Prices:
    """What a plan that was made costs by other prices than it was made by.

    Attributes:
      seconds32, seconds16: predicted time of a step before and after, the latter
        without what clusters save.
      measured_share: as of `Report`.
      nodes: predicted seconds a step in float32 and in 16 bits, by the name of the
        node in a report; several where a function has several uses, in their order.
    """

    seconds32: float
    seconds16: float
    measured_share: float
    nodes: Mapping[str, Sequence[tuple[float, float]]]


@dataclasses.dataclass(frozen=True, slots=True)
class RacedPlan:
    """What a race found about one plan of a function.

    Attributes:
      name: of the plan; "float32" is the function as it was given.
      predicted: seconds of a call, by the cost model; None if the plan was not made.
      seconds: median time of a call, None if it was never timed.
      timed: number of its timed calls.
      fate: "won", or why it is not called any more.
      low, casts, bytes: as of `PlanSize`; None if the plan was not made.
    """

    name: str
    predicted: float | None
    seconds: float | None
    timed: int
    fate: str
    low: int | None = None
    casts: int | None = None
    bytes: int | None = None

    def __str__(self) -> str:
        measured = "not timed"
        if self.seconds is not None:
            measured = f"{figures.time(self.seconds)} over {self.timed} calls"
        parts = [self.fate, measured]
        if self.predicted is not None:
            parts.append(f"predicted {figures.time(self.predicted)}")
        if self.low is not None:
            parts.append(f"{self.low} nodes in 16 bits")
        if self.casts is not None:
            parts.append(f"{self.casts} casts")
        if self.bytes is not None:
            parts.append(f"results of {figures.size(self.bytes)}")
        return f"{self.name}: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of a race, in which plans and the original are timed in turn.

    Attributes:
      twin: whether a plan's function runs from now on, and not the original.
      seconds32, seconds16: median time of a call of the original, and of the winner (of
        the fastest plan, if the original won); None for what was never timed.
      timed: number of timed calls of all together.
      text: how it ended, for the report.
      plans: each one that raced, the original among them.
    """

    twin: bool
    seconds32: float | None
    seconds16: float | None
    timed: int
    text: str
    plans: tuple[RacedPlan, ...] = ()

    def with_sizes(self, sizes: Mapping[str, PlanSize]) -> TrialOutcome:
        """The same outcome with the sizes of its plans, as far as they are known."""
        plans = tuple(
            dataclasses.replace(plan, **sizes[plan.name]._asdict())
            if plan.name in sizes
            else plan
            for plan in self.plans
        )
        return dataclasses.replace(self, plans=plans)


@dataclasses.dataclass(frozen=True, slots=True)
class GradientError:
    """The error of one gradient in 16 bits, in units of its norm in float32.

    Attributes:
      name: the node that makes the gradient.
      error: as planned.
      products: with products only in 16 bits.
    """

    name: str
    error: float
    products: float


@dataclasses.dataclass(frozen=True, slots=True)
class AccuracyOutcome:
    """What a comparison of gradients, or results, in the job found.

    Attributes:
      text: in one line.
      kept: number of nodes that were at fault and stay float32.
      error, products: the error of all gradients together, as planned and with products
        only in 16 bits; of results the largest, and None. None where nothing was
        compared.
      worst: the gradients with the largest errors, the worst first; without those of
        which products only lose half.
    """

    text: str
    kept: int = 0
    error: float | None = None
    products: float | None = None
    worst: tuple[GradientError, ...] = ()
