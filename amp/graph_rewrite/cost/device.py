"""What a device can do, as one frozen `Device`: the figures that costs are made of.

What a figure means only; the figures are in `shipped_devices` and in profiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes per element
# 16 bits pay where their matrix products are at least so many times as fast.
LEAST_GAIN = 1.1


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """The figures of a device that the cost model uses. Only their ratios matter.

    Attributes:
      name: for people.
      kind: TensorFlow's device type, "CPU" or "GPU".
      native: the 16-bit types that its hardware computes in, the preferred one first.
      bandwidth: memory bandwidth in bytes per second.
      flops: operations per second that float32 products reach; a multiply-add counts
        as two.
      speed: by dtype and work, the rate of products as a multiple of `flops`. The entry
        "product" is used for work without an entry, and 1 if that is missing too.
      slowdown: by dtype and work, the time of an operation divided by the time of
        moving the same number of float32 elements at full bandwidth. Without an entry,
        the time is in proportion to the bytes of the type. Above 1/2 for 16-bit kernels
        that convert to float32 and back internally.
      launch: seconds that every operation takes to start.
      source: where the figures come from.
      compiled: the figures for code compiled by XLA, None where they are the same.
      start: by dtype and work, seconds that the smallest operation takes; `launch`
        without an entry.
      casts: by 16-bit dtype, bytes per second that a cast reads and writes; `bandwidth`
        without an entry.
      call: used in `compiled`: seconds of calling an XLA-compiled function from a graph
        that XLA does not compile. Infinite by default, so that no such call is made.
      widens: used in `compiled`: whether XLA has no products of 16-bit operands, and
        converts these to float32 and the result back.
      inside: used in `compiled`: by dtype and work, seconds that a loop takes for each
        element that one of its nodes reads or makes, whichever are more, besides moving
        tensors; 0 where an entry is missing.
    """

    name: str
    kind: str
    native: tuple[str, ...]
    bandwidth: float
    flops: float
    speed: Mapping[str, Mapping[str, float]]
    slowdown: Mapping[str, Mapping[str, float]]
    launch: float
    source: str
    compiled: Device | None = None
    start: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    casts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    call: float = math.inf
    widens: bool = False
    inside: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    @property
    def paying(self) -> tuple[str, ...]:
        """Those of the native types in which products are faster than in float32."""
        return tuple(d for d in self.native if self.product_speed(d) >= LEAST_GAIN)

    def product_speed(self, dtype: str) -> float:
        """The rate of matrix products as a multiple of float32's."""
        return self.speed.get(dtype, {}).get("product", 1.0)

    def under(self, xla: bool) -> Device:
        """The figures for kernels, or for code compiled by XLA."""
        return self.compiled if xla and self.compiled is not None else self

    def without_clusters(self) -> Device:
        """The device with infinite `call`, so that fusion makes no clusters."""
        compiled = dataclasses.replace(self.under(True), call=math.inf)
        return dataclasses.replace(self, compiled=compiled)

    def describe(self) -> str:
        """One line for people: name, kind and 16-bit types."""
        types = " and ".join(self.native) or "no 16-bit type"
        return f"{self.name} ({self.kind}; arithmetic in {types})"
