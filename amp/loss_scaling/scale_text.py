"""Reads a rule of loss scaling from a policy's field or an environment variable.

What a rule does is in `scale`, not here. No TensorFlow.
"""

from __future__ import annotations

import ast
import dataclasses
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from amp.errors import PolicyError
from amp.loss_scaling.scale import (
    RULES,
    ConstantLossScale,
    DynamicLossScale,
    LossScale,
    NoLossScale,
)

# Rules that a word names, with their usual settings.
WORDS: dict[str, Callable[[], LossScale]] = {
    "dynamic": DynamicLossScale,
    "none": NoLossScale,
}


def _shown(rule: type[Any]) -> str:
    """A rule's name and the parameters that it needs, "..." for those it only takes."""
    fields = dataclasses.fields(rule)
    needed = [f.name for f in fields if f.default is dataclasses.MISSING]
    return f"{rule.__name__}({', '.join(needed) or ('...' if fields else '')})"


_NAMED = ", ".join(('"auto"', *(f'"{word}"' for word in WORDS)))
ALLOWED = f"{_NAMED}, a positive number"
ALLOWED += f", or {', '.join(map(_shown, RULES.values()))}"
_REMEDY = 'give one of these, for example "dynamic" or 1024'


def parse(value: object, *, where: str) -> LossScale | str:
    """Returns the rule that a policy field or environment value names ("auto" stays).

    Args:
      value: "auto", "dynamic", "none", a number, a LossScale, or the text of one.
      where: the field or variable, for the error.

    Raises:
      PolicyError: anything else.
    """
    try:
        rule = _rule(value)
    except PolicyError as e:
        call = isinstance(value, str) and "(" in value
        allowed = f"{e.where}: {e.allowed}" if call else f"{e.allowed}, or {_NAMED}"
        found = f"loss scale {value!r} is not accepted: {e.found}"
        raise PolicyError(found, where=where, allowed=allowed, remedy=_REMEDY) from e
    if rule is None:
        found = f"loss scale {value!r} is not understood"
        raise PolicyError(found, where=where, allowed=ALLOWED, remedy=_REMEDY)
    return rule


def _rule(value: object) -> LossScale | str | None:
    """The rule, None for what names none; a value in it may be refused."""
    if isinstance(value, tuple(RULES.values())):
        return cast(LossScale, value)
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        return ConstantLossScale(cast(float, value))
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text in ("auto", ""):
        return "auto"
    return WORDS[text]() if text in WORDS else _parse_text(text)


def _parse_text(text: str) -> LossScale | None:
    try:
        return ConstantLossScale(float(text))
    except PolicyError:
        raise
    except ValueError:
        pass
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        kind = RULES[call.func.id]
        args = [ast.literal_eval(arg) for arg in call.args]
        fields = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, KeyError, ValueError, TypeError):
        return None
    return _called(kind, args, fields)


def _called(kind: Any, args: Sequence[Any], fields: Mapping[str, Any]) -> LossScale:
    try:
        return cast(LossScale, kind(*args, **fields))
    except TypeError as e:
        takes = ", ".join(field.name for field in dataclasses.fields(kind))
        raise PolicyError(
            "these are not its arguments",
            where=f"{kind.__name__}(...)",
            allowed=takes or "none",
            remedy=_REMEDY,
        ) from e
