"""Makes dataclasses of what was read from JSON, refuses what does not fit, writes JSON.

What the fields mean is not known here: annotations say which values they may have.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
# Makes the value of a field of what JSON has; raises ValueError for another kind.
_Make = Callable[[Any], Any]


def text(fields: Mapping[str, Any]) -> str:
    """Fields as JSON, in which a number that is not finite is null: it has no other."""
    return json.dumps(_finite(fields), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def made(kind: type[T], read: Any) -> T:
    """An instance of a dataclass.

    Fields may be numbers, texts, booleans, other such dataclasses, tuples and mappings
    of these, or None where the annotation says so.

    Args:
      kind: the dataclass.
      read: an object of JSON, with a key for each field that has no default.

    Raises:
      ValueError: a key that is missing or unknown, or a value of another kind.
    """
    if not isinstance(read, dict):
        raise ValueError(f"{_shown(read)} where the fields of {kind.__name__} belong")
    makers: Mapping[str, _Make] = _makers(kind)  # type: ignore[arg-type]
    values = {}
    for name, value in read.items():
        if name not in makers:
            raise ValueError(f"field {name!r} is unknown here: of a later version?")
        try:
            values[name] = makers[name](value)
        except ValueError as e:
            raise ValueError(f"field {name!r}: {e}") from None
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    if missing := [f.name for f in fields if _is_needed(f) and f.name not in read]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"it lacks the field {', '.join(missing[:3])}{more}")
    return kind(**values)


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    none = dataclasses.MISSING
    return field.default is none and field.default_factory is none


@functools.cache
def _makers(kind: Any) -> Mapping[str, _Make]:
    hints = typing.get_type_hints(kind)
    return {f.name: _maker(hints[f.name]) for f in dataclasses.fields(kind)}


def _maker(hint: Any) -> _Make:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (some,) = (one for one in args if one is not types.NoneType)
        return functools.partial(_optional, _maker(some))
    if origin in (tuple, list):
        return functools.partial(_sequence, origin, _maker(args[0]))
    if origin is not None:  # Mapping[str, ...]
        return functools.partial(_mapping, _maker(args[1]))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return functools.partial(made, hint)
    allowed = (int, float) if hint is float else (hint,)
    return functools.partial(_plain, allowed)


def _plain(allowed: tuple[type, ...], value: Any) -> Any:
    if type(value) in allowed:  # exactly: True is no number
        return value
    raise ValueError(f"{_shown(value)}, no {allowed[-1].__name__}")


def _optional(make: _Make, value: Any) -> Any:
    return None if value is None else make(value)


def _sequence(kind: type, make: _Make, value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError(f"{_shown(value)}, no list")
    return kind(map(make, value))


def _mapping(make: _Make, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)}, no object")
    return {name: make(one) for name, one in value.items()}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
