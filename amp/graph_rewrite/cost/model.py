"""The cost model: seconds of a node in float32 and in 16 bits, and of a cast.

A roofline model: the larger of the time to move the tensors and the time of the
arithmetic. No choice is made here and no graph is walked.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amp.graph_rewrite.cost.device import ITEM, Device
from amp.graph_rewrite.cost.loops import Moved
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.graph import ir, shapes
from amp.graph_rewrite.ops.row import KIND_OF

# The price of a byte stored until the backward pass, in bytes moved. An activation that
# is read in float32 both before and after the point of most stored bytes costs a second
# cast (2 bytes read and 4 written per element) if it is stored in 2 bytes instead of 4:
# from 3 on, storing 16 bits is cheaper. 4 is a choice, not a measurement, as memory
# has no price in seconds.
HOLD = 4.0

# Limit of measured ratios; also the ratio for an operation that fails.
MOST_RATIO = 1000.0
# Kernels of one op differ by about so many times: a standard deviation from the mean of
# their op is a factor of 1.46 over 1,132 operations of thirteen models (AVX512-BF16).
# So much of what was measured of one says nothing about another.
USUAL = 1.4


class Point(NamedTuple):
    """What was predicted of a measured instance, and what was seen.

    Attributes:
      op: of the instance.
      work: the op's `work` in the op table, or "cast".
      predicted, seen: seconds in (float32, 16 bits).
    """

    op: str
    work: str
    predicted: Times
    seen: Times


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measured times of a job's own operations.

    Attributes:
      times: seconds in (float32, 16 bits), by the key of an op instance.
      points: of each instance that has times.
      keys: a cache of the instance keys of nodes, which `priced.key_of` fills.
    """

    times: Mapping[str, Times] = dataclasses.field(default_factory=dict)
    points: Sequence[Point] = ()
    keys: dict[ir.Node, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def ops(self) -> frozenset[str]:
        """The ops of the measured instances."""
        return frozenset(point.op for point in self.points)

    def ratios(self, op: str, work: str, predicted: float, start: float) -> Times:
        """The ratios of measured to predicted time, by which predictions are corrected.

        They are those of the measured instance of the same op, or else of the same
        work, whose predicted time is nearest, so that measured and predicted times can
        be compared. Ops of one work have kernels of their own: in bfloat16 on a CPU
        with AMX, Relu takes 1.5 and AddV2 0.9 times as long as in float32. An instance
        that mostly starts says nothing about one that mostly works, nor the reverse:
        sums of [20, 650] start in a third of the time that is predicted, and those of
        [650, 1950] take what is predicted or longer.

        Args:
          op: of the node; "" if it is work of several.
          work: the op's `work` in the op table, or "cast".
          predicted: float32 seconds predicted for the node.
          start: seconds that an operation takes to start.

        Returns:
          The ratios in (float32, 16 bits); (1, 1) if no such work was measured.
        """

        def starts(seconds: float) -> bool:
            return seconds < 2 * start

        same = [point for point in self.points if point.work == work]
        same = [p for p in same if starts(p.predicted[0]) == starts(predicted)]
        same = [point for point in same if point.op == op] or same
        if not same or predicted <= 0:
            return 1.0, 1.0
        nearest = min(same, key=lambda p: abs(math.log(p.predicted[0] / predicted)))
        high, low = (
            min(max(s / p, 1 / MOST_RATIO), MOST_RATIO)
            for s, p in zip(nearest.seen, nearest.predicted, strict=True)
        )
        return high, low


def _figure(
    figures: Mapping[str, Mapping[str, float]], dtype: str, work: str
) -> float | None:
    """A work's figure in a type, or that of the work that it is a kind of."""
    found = figures.get(dtype, {})
    return found.get(work, found.get(KIND_OF.get(work, work)))


def _unusual(ratio: float) -> float:
    """What of a ratio is more than kernels of one work differ by."""
    return max(ratio / USUAL, 1.0) if ratio > 1 else min(ratio * USUAL, 1.0)


class CostModel:
    """Predicts times on one device for one 16-bit type.

    Args:
      device: the figures.
      dtype: the 16-bit type.
      measured: measured times, by which predictions are corrected.
      stores: whether storing a tensor for the backward pass has a price.
    """

    def __init__(
        self,
        device: Device,
        dtype: str,
        measured: Measured | None = None,
        *,
        stores: bool = True,
    ) -> None:
        self._device = device
        self._dtype = dtype
        self.stores = stores
        self.measured = measured or Measured()
        self._ratios: dict[tuple[str, str, float], Times] = {}
        # By work, elements, operations and op: most nodes do what another one does.
        self._nodes: dict[tuple[str, int, float, str], Times] = {}

    def with_measured(self, measured: Measured) -> CostModel:
        """The same model with measured times."""
        return CostModel(self._device, self._dtype, measured, stores=self.stores)

    def without_memory(self) -> CostModel:
        """The same model with no price for storing tensors."""
        model = self.with_measured(self.measured)
        model.stores = False
        return model

    @property
    def widens(self) -> bool:
        """Whether products of 16-bit operands are computed in float32."""
        return self._device.widens

    @property
    def start(self) -> float:
        """Seconds that every operation takes to start."""
        return self._device.launch

    def node(
        self, work: str, elements_moved: int, operations: float, op: str = ""
    ) -> Times:
        """Seconds of a node in (float32, 16 bits), its start included.

        Args:
          work: the op's `work` in the op table.
          elements_moved: elements read and written (`arithmetic.moved`).
          operations: arithmetic operations (`arithmetic.flops`).
          op: of the node, by which predictions are corrected if it was measured.
        """
        if work == "free":
            return 0.0, 0.0
        load = (work, elements_moved, operations, op)
        if load not in self._nodes:
            self._nodes[load] = self._node(*load)
        return self._nodes[load]

    def _node(
        self, work: str, elements_moved: int, operations: float, op: str
    ) -> Times:
        high = self._seconds("float32", work, elements_moved, operations)
        low = self._seconds(self._dtype, work, elements_moved, operations)
        scale = self._scale(op, work, high)
        return high * _unusual(scale[0]), low * _unusual(scale[1])

    def in_loop(self, work: str, elements: int, moved: Moved) -> Times:
        """Seconds in (float32, 16 bits) that a node adds to the loop that it is in.

        Args:
          work: the op's `work` in the op table.
          elements: of its largest operand or result.
          moved: what the loop moves because of it.
        """
        return (
            self._in_loop("float32", work, elements, moved),
            self._in_loop(self._dtype, work, elements, moved),
        )

    def _in_loop(self, dtype: str, work: str, elements: int, moved: Moved) -> float:
        device = self._device
        inside = (_figure(device.inside, dtype, work) or 0.0) * elements
        moving = moved.own * ITEM[dtype] + moved.given * ITEM["float32"]
        start = device.launch if moved.starts else 0.0
        return start + inside + moving / device.bandwidth

    def alone(self, product: Times, moved: Moved) -> Times:
        """Seconds of a node that is in no loop, with those of loops around it.

        Args:
          product: seconds of the node itself. Where XLA computes products in float32,
            those in 16 bits are not used.
          moved: what loops move because of it.
        """
        device, both = self._device, ITEM["float32"] + ITEM[self._dtype]
        read = moved.own / device.bandwidth
        high = product[0] + read * ITEM["float32"]
        if not device.widens:
            return high, product[1] + read * ITEM[self._dtype]
        starts = device.launch * ((moved.widened > 0) + (moved.narrowed > 0))
        converted = moved.widened + moved.narrowed
        return high, high + starts + converted * both / device.bandwidth

    def _scale(self, op: str, work: str, predicted: float) -> Times:
        if not self.measured.points:
            return 1.0, 1.0
        size = (op, work, predicted)
        if size not in self._ratios:
            self._ratios[size] = self.measured.ratios(*size, start=self.start)
        return self._ratios[size]

    def held(self, shape: ir.Shape) -> tuple[float, float]:
        """The price, in seconds, of storing a tensor in (float32, 16 bits)."""
        if not self.stores:
            return 0.0, 0.0
        rate = HOLD * shapes.elements(shape) / self._device.bandwidth
        return rate * ITEM["float32"], rate * ITEM[self._dtype]

    def _seconds(
        self, dtype: str, work: str, elements_moved: int, operations: float
    ) -> float:
        device = self._device
        start = device.start.get(dtype, {}).get(work, device.launch)
        slowdown = _figure(device.slowdown, dtype, work)
        size = ITEM[dtype] if slowdown is None else ITEM["float32"] * slowdown
        speeds = device.speed.get(dtype, {})
        speed = speeds.get(work, speeds.get("product", 1.0))
        moving = elements_moved * size / device.bandwidth
        return start + max(moving, operations / device.flops / speed)

    def cast(self, shape: ir.Shape, in_loop: bool = False) -> float:
        """Seconds of one cast, the mean of both directions.

        A cast reads one type and writes the other: 6 bytes per element. In a loop that
        is there without it, it only rounds.

        Args:
          shape: of the tensor.
          in_loop: whether XLA makes it part of such a loop.
        """
        elements = shapes.elements(shape)
        if in_loop:
            rounding = self._device.inside.get(self._dtype, {}).get("elementwise", 0.0)
            return rounding * elements
        return self._cast(elements) * self.moving(elements)

    def moving(self, elements: int) -> float:
        """How many times as long as by the device's figures moving tensors takes here.

        A cast does nothing else, so it is as for the measured cast nearest in size; 1
        if none was measured.

        Args:
          elements: of a tensor.
        """
        return sum(self._scale("Cast", "cast", self._cast(elements))) / 2

    def _cast(self, elements: int) -> float:
        """Seconds of a cast by the device's figures."""
        size = ITEM["float32"] + ITEM[self._dtype]
        rate = self._device.casts.get(self._dtype, self._device.bandwidth)
        return self._device.launch + elements * size / rate
