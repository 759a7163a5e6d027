"""Backward functions that Python gives: in eager gradient calls they see no loss scale.

Nothing eager is in 16 bits, so nothing is lost if what comes in is unscaled before such
a function (of a `tf.custom_gradient`) and scaled again behind it. One that is not
linear, as it clips or takes signs, then gives what it gives without loss scaling. (One
of lists of tensors, or of 16-bit gradients, is called with the scale.) In graphs the
scale passes through (`resting`), because there it is needed.

Which functions these are is not decided here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

Backward = Callable[..., Any]

# Types that hold what the scale is for: without it, nothing of these is lost.
_WIDE = (tf.float32, tf.float64, tf.complex64, tf.complex128)


@dataclasses.dataclass(frozen=True, slots=True)
class Passing:
    """What passes through the backward functions of a gradient call.

    Attributes:
      scale: a factor of all gradients, float32, shape ().
      placing: the `gradients.GradientPlacement` of the call.
      around: operations that were built around functions which see no scale.
      made_whole: what was given to such a function, by the reference of a result.
    """

    scale: tf.Tensor
    placing: Any
    around: set[Any] = dataclasses.field(default_factory=set)
    made_whole: dict[Any, list[tf.Tensor]] = dataclasses.field(default_factory=dict)


class _Now(threading.local):
    """Of the gradient call that this thread is inside of, if any."""

    passing: Passing | None = None


_NOW = _Now()


def passing() -> Passing | None:
    """What passes now; None outside of scaled gradient calls."""
    return _NOW.passing


@contextlib.contextmanager
def passes(now: Passing | None) -> Iterator[None]:
    """A scope in which gradients are scaled by this, or not at all by None."""
    before, _NOW.passing = _NOW.passing, now
    try:
        yield
    finally:
        _NOW.passing = before


def without_scale(backward: Backward) -> Backward:
    """The same function, for gradients that are scaled.

    Args:
      backward: takes the gradients of results, and returns those of inputs, in any
        structure; both are tensors of any type, composite ones, numbers, or None.
    """

    @functools.wraps(backward)
    def unscaled(*grads: Any, **kwargs: Any) -> Any:
        now = passing()
        eager = now is not None and not tf.is_symbolic_tensor(now.scale)
        if now is None or not eager or not all(map(_is_wide, leaves(grads))):
            return backward(*grads, **kwargs)
        with passes(None):
            found = backward(*_times(1.0 / now.scale, grads), **kwargs)
        if any(map(_is_list, leaves(found))):
            return backward(*grads, **kwargs)
        return _times(now.scale, found)

    keep_signature(unscaled, backward)
    return unscaled


def keep_signature(ours: Backward, backward: Backward) -> None:
    """Gives a function the signature of the one that it stands for."""
    with contextlib.suppress(TypeError, ValueError):  # what has no signature
        # TensorFlow asks for it, and does not follow what `wraps` leaves.
        ours.__signature__ = inspect.signature(backward)  # type: ignore[attr-defined]


def leaves(structure: Any) -> list[Any]:
    """The tensors, numbers and Nones of gradients in any structure."""
    return list(tf.nest.flatten(structure, expand_composites=True))


def tensor_of(leaf: Any) -> tf.Tensor | None:
    """A gradient that Python returns as a tensor, None if it is none."""
    if isinstance(leaf, (float, np.floating, np.ndarray, tf.Variable)):
        return tf.convert_to_tensor(leaf)
    return leaf if isinstance(leaf, tf.Tensor) else None


def _times(factor: tf.Tensor, structure: Any) -> Any:
    """The structure with what is a gradient in it multiplied, in its own type."""

    def times(leaf: Any) -> Any:
        tensor = tensor_of(leaf)
        if tensor is None or tensor.dtype not in _WIDE:
            return leaf
        return tensor * tf.cast(factor, tensor.dtype)

    return tf.nest.map_structure(times, structure, expand_composites=True)


def _is_list(leaf: Any) -> bool:
    """Whether a leaf is a list of gradients, none of which can be multiplied here."""
    return isinstance(leaf, tf.Tensor) and leaf.dtype == tf.variant


def _is_wide(leaf: Any) -> bool:
    """Whether a gradient that comes in can be unscaled; what is none can."""
    if _is_list(leaf):
        return False
    floats = isinstance(leaf, tf.Tensor) and (
        leaf.dtype.is_floating or leaf.dtype.is_complex
    )
    return not floats or leaf.dtype in _WIDE
