"""Reads a rule of loss scaling from a policy's field or an environment variable.

What a rule does is in `scale`, not here. No TensorFlow.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
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


ALLOWED = ", ".join(('"auto"', *(f'"{word}"' for word in WORDS), "a positive number"))
ALLOWED += f", or {', '.join(map(_shown, RULES.values()))}"


def parse(value: object, *, where: str) -> LossScale | str:
    """Returns the rule that a policy field or environment value names ("auto" stays).

    Args:
      value: "auto", "dynamic", "none", a number, a LossScale, or the text of one.
      where: the field or variable, for the error.

    Raises:
      PolicyError: anything else.
    """
    if isinstance(value, tuple(RULES.values())):
        return cast(LossScale, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ConstantLossScale(float(value))
    if isinstance(value, str):
        text = value.strip()
        if text in ("auto", ""):
            return "auto"
        if text in WORDS:
            return WORDS[text]()
        parsed = _parse_text(text)
        if parsed is not None:
            return parsed
    raise PolicyError(
        f"loss scale {value!r} is not understood",
        where=where,
        allowed=ALLOWED,
        remedy='give one of these, for example "dynamic" or 1024',
    )


def _parse_text(text: str) -> LossScale | None:
    try:
        return ConstantLossScale(float(text))
    except PolicyError:
        raise
    except ValueError:
        pass
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            kind = RULES[call.func.id]
            args = [ast.literal_eval(arg) for arg in call.args]
            fields = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            return kind(*args, **fields)  # type: ignore[no-any-return]
    except PolicyError:
        raise
    except (SyntaxError, KeyError, ValueError, TypeError):
        pass
    return None
