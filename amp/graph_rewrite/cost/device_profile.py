"""A device profile: times measured on a device, their JSON form, and their use.

No measuring, no files, no TensorFlow: `calibration` and `profiles` in
`amp.integration.measuring` do that.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping

from amp.errors import ProfileError
from amp.graph_rewrite import figures
from amp.graph_rewrite.cost.device import ITEM, LEAST_GAIN, Device

# Increased when the meaning of the points changes; older files are then not used.
SCHEMA = 2  # products measured with cold operands
EXECUTORS = ("kernels", "xla")
# What most of a point's time is spent on, and so which figure it measures.
BOUNDS = ("start", "bytes", "arithmetic")

_Figures = dict[str, dict[str, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One operation measured in one type.

    Attributes:
      work: the op's `work` in the op table, "cast", or "call" for the call of a
        function that XLA compiled.
      bound: what most of its time is spent on, one of `BOUNDS`.
      case: op and shapes, for people.
      dtype: float32 or a 16-bit type; for a cast, the 16-bit one.
      moved: elements of that type read and written; for a cast, elements cast.
      operations: arithmetic operations of a product, else 0.
      seconds: of one operation, the median over the rounds.
      hopeless: whether it was so slow that it was run once only, and that further
        cases of this work and type were skipped.
    """

    work: str
    bound: str
    case: str
    dtype: str
    moved: int
    operations: float
    seconds: float
    hopeless: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """The times measured on one device.

    `Profile.parse(profile.to_json()) == profile`.

    Attributes:
      device: model of the device; the profile is applied to this model only.
      tensorflow: the version that was measured.
      executor: "kernels", or "xla" for functions that XLA compiles.
      points: in the order in which they were measured.
    """

    device: str
    tensorflow: str
    executor: str
    points: tuple[Point, ...]

    def to_json(self) -> str:
        """The profile as JSON, one point per line."""
        head = {"schema": SCHEMA}
        head |= {f: getattr(self, f) for f in ("device", "tensorflow", "executor")}
        lines = ",\n  ".join(json.dumps(dataclasses.asdict(p)) for p in self.points)
        return f'{json.dumps(head)[:-1]}, "points": [\n  {lines}\n]}}\n'

    def updated(self, newer: Profile) -> Profile:
        """This profile with another's points, which replace those of the same case."""
        every = {(p.bound, p.case, p.dtype): p for p in (*self.points, *newer.points)}
        return dataclasses.replace(newer, points=tuple(every.values()))

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """A table for people: float32's times, and the speed-up of the 16-bit types.

        Args:
          width: columns of the terminal, None for any.
        """
        rows: list[tuple[str, ...]] = [("case", "bound by", "float32", *_LOW)]
        rows += _rows(self.points)
        title = f"{self.device}, TensorFlow {self.tensorflow}, {self.executor}"
        return f"{title}\n{figures.table(rows, left=2, width=width)}"

    @classmethod
    def parse(cls, text: str, where: str = "profile") -> Profile:
        """Parses the JSON form of a profile.

        Args:
          text: the result of `to_json`.
          where: the file it was read from, for the error.

        Raises:
          ProfileError: no JSON, another schema, or impossible values.
        """
        try:
            found = json.loads(text)
            schema = found.pop("schema")
            if schema == SCHEMA:
                points = tuple(Point(**point) for point in found.pop("points"))
                return _checked(cls(points=points, **found))
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise _error(f"this is no device profile: {e}", where) from e
        raise _error(f"a device profile of schema {schema}", where)


def _error(found: str, where: str) -> ProfileError:
    return ProfileError(
        found,
        where=where,
        allowed=f"a profile of schema {SCHEMA}, as `amp tune` writes it",
        remedy="run `amp tune` again",
    )


def _checked(profile: Profile) -> Profile:
    texts = (profile.device, profile.tensorflow)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError("device and tensorflow are to be names")
    if profile.executor not in EXECUTORS:
        raise ValueError(f"executor is to be one of {EXECUTORS}")
    for point in profile.points:
        if point.bound not in BOUNDS or point.dtype not in ITEM:
            raise ValueError(f"unknown bound or dtype in {point.case!r}")
        if (
            not 0 < point.seconds < float("inf")
            or min(point.moved, point.operations) < 0
        ):
            raise ValueError(f"a time or size of {point.case!r} cannot be")
    return profile


def apply(profile: Profile, device: Device) -> Device:
    """Replaces a device's figures by those that a profile measured.

    1. `launch` is the time of the smallest elementwise ops, `start` that of the
       smallest ops of other work, `call` that of a function with one small op.
    2. `bandwidth` is the rate of large float32 elementwise ops, `flops` that of float32
       matrix products. All other figures are ratios to these two: the geometric mean
       over the cases of a kind of work, with the time to start subtracted. Under XLA
       `bandwidth` is that of casts, the only loops that are measured alone; the others
       are measured in chains, of which XLA makes one loop.
    3. A 16-bit type whose matrix products pay (`Device.paying`) is `native`.

    A profile of XLA replaces the figures in `compiled` only. Figures that the profile
    does not measure stay as they are.
    """
    if profile.executor == "xla":
        compiled = _measured(profile, device.under(True))
        return dataclasses.replace(
            device, name=f"{device.name}, XLA calibrated", compiled=compiled
        )
    measured = _measured(profile, device)
    return dataclasses.replace(measured, compiled=device.under(True))


def _measured(profile: Profile, device: Device) -> Device:
    points = profile.points
    start = _start(points)
    call = start.get("float32", {}).pop("call", device.call)
    launch = start.get("float32", {}).get("elementwise", device.launch)

    def net(point: Point) -> float:
        # If starting takes most of the time, the difference is too inexact to use.
        first = start.get(point.dtype, {}).get(point.work, launch)
        return max(point.seconds - first, point.seconds / 4)

    moving = _by_work(points, "bytes", lambda p: p.moved * ITEM["float32"] / net(p))
    rates = _by_work(points, "arithmetic", lambda p: p.operations / net(p))
    bandwidth = moving.get("float32", {}).get("elementwise", device.bandwidth)
    flops = rates.get("float32", {}).get("matmul", device.flops)
    casts = {
        dtype: works.pop("cast") * (1 + ITEM[dtype] / ITEM["float32"])
        for dtype, works in moving.items()
        if "cast" in works
    }
    if profile.executor == "xla" and casts:
        bandwidth = statistics.geometric_mean(casts.values())
    speed = {
        dtype: {work: rate / flops for work, rate in works.items()}
        for dtype, works in rates.items()
    }
    slowdown = {
        dtype: {work: bandwidth / rate for work, rate in works.items()}
        for dtype, works in moving.items()
    }
    for dtype in speed.keys() - {"float32"}:
        if "matmul" in speed[dtype]:
            speed[dtype]["product"] = speed[dtype]["matmul"]
    fast = sorted(
        (d for d, s in speed.items() if s.get("product", 0.0) >= LEAST_GAIN),
        reverse=True,
    )
    return dataclasses.replace(
        device,
        name=f"{device.name}, calibrated",
        native=(*device.native, *(d for d in fast if d not in device.native)),
        bandwidth=bandwidth,
        flops=flops,
        call=call,
        speed=_over(device.speed, speed),
        slowdown=_over(device.slowdown, slowdown),
        launch=launch,
        start=_over(device.start, start),
        casts={**device.casts, **casts},
        source=(
            f"{len(points)} points measured here by `amp tune` "
            f"(TensorFlow {profile.tensorflow}, {profile.executor})"
        ),
    )


def _start(points: Iterable[Point]) -> _Figures:
    found: _Figures = {}
    for point in points:
        if point.bound == "start":
            works = found.setdefault(point.dtype, {})
            works[point.work] = min(point.seconds, works.get(point.work, 1.0))
    return found


def _by_work(
    points: Iterable[Point], bound: str, rate: Callable[[Point], float]
) -> _Figures:
    found: dict[str, dict[str, list[float]]] = {}
    for point in points:
        if point.bound == bound:
            works = found.setdefault(point.dtype, {})
            works.setdefault(point.work, []).append(rate(point))
    return {
        dtype: {work: statistics.geometric_mean(r) for work, r in works.items()}
        for dtype, works in found.items()
    }


def _over(
    shipped: Mapping[str, Mapping[str, float]], measured: _Figures
) -> dict[str, Mapping[str, float]]:
    dtypes = {**shipped, **measured}
    return {d: {**shipped.get(d, {}), **measured.get(d, {})} for d in dtypes}


_LOW = ("bfloat16", "float16")


def _rows(points: Iterable[Point]) -> Iterator[tuple[str, ...]]:
    cases: dict[tuple[str, str], dict[str, Point]] = {}
    for point in points:
        cases.setdefault((point.bound, point.case), {})[point.dtype] = point
    for (bound, case), found in cases.items():
        single = found.get("float32")
        cells = [_gain(found.get(dtype), single) for dtype in _LOW]
        first = "" if single is None else figures.time(single.seconds)
        yield case, bound, first, *cells


def _gain(point: Point | None, single: Point | None) -> str:
    if point is None:
        return "not run"
    if single is None:
        return figures.time(point.seconds)
    gain = f"{single.seconds / point.seconds:.2f}x"
    return f"{gain} (hopeless)" if point.hopeless else gain
