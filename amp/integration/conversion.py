"""Keeps AutoGraph away from the package's code, and not from the user's code behind it.

Inside of what AutoGraph does not convert it converts nothing that is called in turn.
But a hook calls what it hooks, which calls functions of the user's (of `tf.map_fn`, of
custom gradients); they are to be converted as if there were no hook. No hook is here.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_CALLER = "_amp_caller"  # of the status in our code: the status of what called it

_Function = TypeVar("_Function", bound=Callable[..., Any])

_status = tf.__internal__.autograph.control_status_ctx


def exempt(function: _Function) -> _Function:
    """Returns a function of ours in a form that AutoGraph does not convert."""

    def entered(caller: Any, /, *args: Any, **kwargs: Any) -> Any:
        setattr(_status(), _CALLER, caller)
        return function(*args, **kwargs)

    unconverted = tf.autograph.experimental.do_not_convert(entered)

    @functools.wraps(unconverted)  # with the mark by which AutoGraph leaves it alone
    def exempted(*args: Any, **kwargs: Any) -> Any:
        return unconverted(_status(), *args, **kwargs)

    return typing.cast(_Function, functools.wraps(function)(exempted))


def callers() -> Any:
    """AutoGraph's status where the exempt function that runs now was called."""
    status = _status()
    return getattr(status, _CALLER, status)


def as_called(original: _Function) -> _Function:
    """Returns a function that exempt code calls as the caller of that code would."""

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        with callers():
            return original(*args, **kwargs)

    return typing.cast(_Function, called)
