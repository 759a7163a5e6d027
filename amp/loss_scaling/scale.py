"""The rules of loss scaling: how the scale changes after each gradient call.

Each rule is a frozen class with a pure function `step`. `LossScale` says what a rule
has; `RULES` lists the rules, and all other code works with any of them.

Arithmetic only: no variables, no TensorFlow, no gradients. `Scaler` keeps the state in
variables and calls `step`. The same `step` computes with Python numbers, NumPy arrays
and tensors, because the caller passes the function `where` that selects between two.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from amp.errors import PolicyError

Where: TypeAlias = Callable[[Any, Any, Any], Any]

# Between these a scale and its inverse are both normal float32 numbers (IEEE 754:
# exponents -126 to 127); outside, 1/scale becomes 0 and every gradient with it.
SMALLEST = 2.0**-126
LARGEST = 2.0**126
LONGEST = 2**31 - 1  # a count of steps in files is int32


class ScaleState(NamedTuple):
    """What a scaler remembers between steps (scalars, arrays or tensors).

    Attributes:
      scale: the factor the next loss is multiplied by, float32, shape ().
      good_steps: finite steps since the scale last changed, int64, shape ().
      bad_steps: consecutive overflows not yet answered by a backoff, int64, shape ().
    """

    scale: Any
    good_steps: Any
    bad_steps: Any


class LossScale(Protocol):
    """What every rule has. Rules are frozen dataclasses of numbers and texts.

    A rule prints as the call that makes it, and `scale_text.parse` reads that again.
    """

    @property
    def initial(self) -> float:
        """The scale of the first gradient call."""

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The smallest and the largest scale; None if the scale never changes.

        A rule without bounds has no state: checkpoints do not change its scale.
        """

    @property
    def on_overflow(self) -> str:
        """What the program gets as gradients after an overflow: "zeros" or "nan"."""

    def step(self, state: ScaleState, finite: Any, where: Where) -> ScaleState:
        """Returns the state after one gradient call.

        Args:
          state: before the call.
          finite: whether all gradients of the call were finite, bool, shape ().
          where: `where(condition, yes, no)` for values like those in `state`.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class NoLossScale:
    """No loss scaling: gradients stay as they are, and there is no state."""

    @property
    def on_overflow(self) -> str:
        return "zeros"

    def __str__(self) -> str:
        return "none"

    @property
    def initial(self) -> float:
        return 1.0

    @property
    def bounds(self) -> None:
        return None

    def step(self, state: ScaleState, finite: Any, where: Where) -> ScaleState:
        return state


@dataclasses.dataclass(frozen=True, slots=True)
class ConstantLossScale:
    """A fixed factor. An overflow skips the update and does not change the factor.

    Args:
      value: the factor; a power of two keeps scaling and unscaling exact.
      on_overflow: what a program gets as gradients after an overflow, "zeros" or "nan".
    """

    value: float
    on_overflow: str = "zeros"

    def __post_init__(self) -> None:
        _require_choice(type(self).__name__, self.on_overflow)
        _require_positive(type(self).__name__, "value", self.value)
        _require_float32(type(self).__name__, "value", self.value)
        _make_plain(self)

    def __str__(self) -> str:
        return f"constant {self.value:g}"

    def __repr__(self) -> str:
        return _call(self)

    @property
    def initial(self) -> float:
        return self.value

    @property
    def bounds(self) -> None:
        return None

    def step(self, state: ScaleState, finite: Any, where: Where) -> ScaleState:
        return state


@dataclasses.dataclass(frozen=True, slots=True)
class DynamicLossScale:
    """Grows while gradients are finite, backs off when they overflow.

    ::

        step(state, finite):
          if finite:
            good += 1; bad = 0                                          # Case 1
            if good >= growth_interval:                                 # Case 2
              scale = min(scale * factor, maximum); good = 0
          else:
            bad += 1; good = 0                                          # Case 3
            if bad >= hysteresis:                                       # Case 4
              scale = max(scale * backoff, minimum); bad = 0

    Args:
      initial: first scale (2**15, as Keras and torch.amp's order of magnitude).
      growth_interval: finite steps before the scale grows, at least 1.
      factor: what growth multiplies by, over 1.
      backoff: what an overflow multiplies by, between 0 and 1.
      minimum: the smallest scale; a job that reaches it goes on. At 2**-14, float16's
        smallest normal number, a seed of 1 times the scale is exact in float16, and
        gradients up to 65504 * 2**14 = 1.07e9 fit. Below, seeds are rounded too.
      maximum: the largest scale (2**24: up to it a float32 loss keeps its precision).
      hysteresis: overflows in a row before the scale backs off, at least 1.
      on_overflow: what a program gets as gradients after an overflow, "zeros" or "nan".
    """

    initial: float = 2.0**15
    growth_interval: int = 2000
    factor: float = 2.0
    backoff: float = 0.5
    minimum: float = 2.0**-14
    maximum: float = 2.0**24
    hysteresis: int = 1
    on_overflow: str = "zeros"

    def __post_init__(self) -> None:
        name = type(self).__name__
        _require_choice(name, self.on_overflow)
        for field in dataclasses.fields(self):
            if field.name != "on_overflow":
                _require_positive(name, field.name, getattr(self, field.name))
        for field_name in ("growth_interval", "hysteresis"):
            count = getattr(self, field_name)
            if count != int(count) or count > LONGEST:
                allowed = "a whole number of steps from 1 to 2**31 - 1"
                raise _bad(name, field_name, count, allowed)
        for field_name in ("initial", "minimum", "maximum"):
            _require_float32(name, field_name, getattr(self, field_name))
        if not self.factor > 1:
            raise _bad(name, "factor", self.factor, "a number over 1")
        if not self.backoff < 1:
            raise _bad(name, "backoff", self.backoff, "a number between 0 and 1")
        if not self.minimum <= self.initial <= self.maximum:
            allowed = "minimum <= initial <= maximum"
            raise _bad(name, "initial", self.initial, allowed)
        _make_plain(self)

    def __str__(self) -> str:
        return f"dynamic, from {self.initial:g}"

    def __repr__(self) -> str:
        return _call(self)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.minimum, self.maximum

    def step(self, state: ScaleState, finite: Any, where: Where) -> ScaleState:
        good = where(finite, state.good_steps + 1, state.good_steps * 0)
        bad = where(finite, state.bad_steps * 0, state.bad_steps + 1)
        grown = state.scale * self.factor
        grown = where(grown > self.maximum, state.scale * 0 + self.maximum, grown)
        shrunk = state.scale * self.backoff
        shrunk = where(shrunk < self.minimum, state.scale * 0 + self.minimum, shrunk)
        grows = good >= self.growth_interval
        shrinks = bad >= self.hysteresis
        scale = where(grows, grown, where(shrinks, shrunk, state.scale))
        return ScaleState(
            scale=scale,
            good_steps=where(grows, good * 0, good),
            bad_steps=where(shrinks, bad * 0, bad),
        )


# The rules, by name. A new rule is a class above and an entry here.
RULES: dict[str, type[Any]] = {
    rule.__name__: rule for rule in (NoLossScale, ConstantLossScale, DynamicLossScale)
}


def _call(rule: Any) -> str:
    """Returns the call that makes a rule, without `on_overflow` if that is "zeros"."""
    fields = [field.name for field in dataclasses.fields(rule)]
    if rule.on_overflow == "zeros":
        fields.remove("on_overflow")
    given = ", ".join(f"{name}={getattr(rule, name)!r}" for name in fields)
    return f"{type(rule).__name__}({given})"


_PLAIN: dict[Any, Callable[[Any], Any]] = {"float": float, "int": int, "str": str}


def _make_plain(rule: Any) -> None:
    """Has a rule hold Python's own numbers, of one kind in a field.

    Whatever the user wrote (64, NumPy's 64.0), equal rules print alike, and whole
    numbers are not compared with a float.
    """
    for field in dataclasses.fields(rule):
        plain = _PLAIN[field.type](getattr(rule, field.name))
        object.__setattr__(rule, field.name, plain)


def _require_positive(name: str, field: str, value: object) -> None:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not is_finite(value) or value <= 0:  # type: ignore[operator]
        raise _bad(name, field, value, "a finite number over 0")


def is_finite(value: Any) -> bool:
    """Whether a number is finite, and no larger than a float may be."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _require_choice(name: str, value: object) -> None:
    if value not in ("zeros", "nan"):
        raise _bad(name, "on_overflow", value, '"zeros" or "nan"')


def _require_float32(name: str, field: str, value: float) -> None:
    if not SMALLEST <= value <= LARGEST:
        allowed = "a number from 2**-126 to 2**126, so that float32 holds it and 1/it"
        raise _bad(name, field, value, allowed)


def _bad(name: str, field: str, value: object, allowed: str) -> PolicyError:
    return PolicyError(
        f"{field} is {value!r}",
        where=f"{name}({field}=...)",
        allowed=allowed,
        remedy=f"give {field} such a value or leave it out",
    )
