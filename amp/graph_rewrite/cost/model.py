"""The cost model: seconds of a node in float32 and in 16 bits, and of a cast.

A roofline over bytes moved and arithmetic done, from static shapes. No choice is made
here and no graph is walked.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.graph import ir, shapes

ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}


# How often a byte might be moved instead of being held until the gradient needs it. A
# tensor read in float32 on both sides of a graph's fullest point is cast up twice
# (2 bytes read and 4 written per element) to hold 2 bytes instead of 4, from 3 on.
# A choice, not a measurement: memory has no price in seconds.
HOLD = 4.0

# No more is made of a measured ratio, and of an operation that fails.
MOST_RATIO = 1000.0


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was measured of a job's own operations.

    Attributes:
      times: seconds in (float32, 16 bits), by the key of an instance.
      points: of each its work, the seconds that the model gives, and those measured.
      keys: of nodes met so far; grows. It spares making a key for every look.
    """

    times: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    points: Sequence[tuple[str, tuple[float, float], tuple[float, float]]] = ()
    keys: dict[ir.Node, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def ops(self) -> frozenset[str]:
        """The ops that any was measured of."""
        return frozenset(key.partition(" ")[0] for key in self.times)

    def ratios(self, work: str, predicted: float) -> tuple[float, float]:
        """Measured over predicted, of what is nearest in size among the same work.

        What was not measured is then priced on the scale of what was, so that the two
        may be compared. (1, 1) where nothing of this work was measured.
        """
        same = [(p, seen) for kind, p, seen in self.points if kind == work]
        if not same or predicted <= 0:
            return 1.0, 1.0
        nearest, seen = min(same, key=lambda s: abs(math.log(s[0][0] / predicted)))
        high, low = (
            min(max(s / p, 1 / MOST_RATIO), MOST_RATIO)
            for s, p in zip(seen, nearest, strict=True)
        )
        return high, low


class CostModel:
    """Times on one device, in one 16-bit type.

    Args:
      device: whose figures the model takes.
      dtype: the 16-bit type.
      measured: what is known better than the model tells.
    """

    def __init__(
        self, device: Device, dtype: str, measured: Measured | None = None
    ) -> None:
        self._device = device
        self._dtype = dtype
        self.measured = measured or Measured()
        self._ratios: dict[tuple[str, float], tuple[float, float]] = {}

    def with_measured(self, measured: Measured) -> CostModel:
        """The same cost_model, knowing what was measured."""
        return CostModel(self._device, self._dtype, measured)

    @property
    def start(self) -> float:
        """Seconds that any operation costs."""
        return self._device.launch

    def node(
        self, work: str, elements_moved: int, operations: float
    ) -> tuple[float, float]:
        """Seconds of a node in float32 and in the 16-bit type, launch included."""
        if work == "free":
            return 0.0, 0.0
        high = self._seconds("float32", work, elements_moved, operations)
        low = self._seconds(self._dtype, work, elements_moved, operations)
        scale = self._scale(work, high)
        return high * scale[0], low * scale[1]

    def _scale(self, work: str, predicted: float) -> tuple[float, float]:
        if not self.measured.points:
            return 1.0, 1.0
        size = (work, predicted)
        if size not in self._ratios:
            self._ratios[size] = self.measured.ratios(*size)
        return self._ratios[size]

    def held(self, shape: ir.Shape) -> tuple[float, float]:
        """Seconds that holding a tensor counts as, in float32 and in 16 bits."""
        rate = HOLD * shapes.elements(shape) / self._device.bandwidth
        return rate * ITEM["float32"], rate * ITEM[self._dtype]

    def _seconds(
        self, dtype: str, work: str, elements_moved: int, operations: float
    ) -> float:
        device = self._device
        start = device.start.get(dtype, {}).get(work, device.launch)
        slowdown = device.slowdown.get(dtype, {}).get(work)
        size = ITEM[dtype] if slowdown is None else ITEM["float32"] * slowdown
        speeds = device.speed.get(dtype, {})
        speed = speeds.get(work, speeds.get("product", 1.0))
        moving = elements_moved * size / device.bandwidth
        return start + max(moving, operations / device.flops / speed)

    def cast(self, shape: ir.Shape) -> float:
        """Seconds of one cast: one read and one write, the mean of both directions."""
        size = ITEM["float32"] + ITEM[self._dtype]
        rate = self._device.casts.get(self._dtype, self._device.bandwidth)
        predicted = self._device.launch + shapes.elements(shape) * size / rate
        return predicted * sum(self._scale("cast", predicted)) / 2
