"""How large the elements of scaled gradients are: exponents, and what underflows.

`counted` runs in the step that is observed; the rest is arithmetic on what it returns.
Which step that is, and where the figures are shown, is not known here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

BINS = 256  # the exponent of a float32 is a byte: 0 for 0, 255 for what is not finite
SAMPLED = 2**16  # elements of a gradient that are looked at, about
_BIAS = 127
# By type: the exponents of the smallest normal number and of the smallest of all.
LINES = {"float16": (-14, -24), "bfloat16": (-126, -133)}


def counted(gradient: tf.Tensor) -> tf.Tensor:
    """Returns how many elements of a gradient have which exponent.

    Of a large gradient an element in so many is looked at; the distance between them is
    odd, so that they are not all in one column.

    Args:
      gradient: of any floating type and shape.

    Returns:
      float32, shape (BINS,).
    """
    flat = tf.reshape(gradient, [-1])
    step = tf.bitwise.bitwise_or(tf.size(flat) // SAMPLED, 1)
    values = tf.cast(flat[::step], tf.float32)
    bits = tf.bitcast(values, tf.int32)
    byte = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 23), BINS - 1)
    ones = tf.ones_like(values)
    return tf.math.unsorted_segment_sum(ones, byte, BINS)


@dataclasses.dataclass(frozen=True, slots=True)
class Underflow:
    """What a 16-bit type makes of a gradient, as shares of its finite elements.

    Attributes:
      zero: 0 in that type. What is 0 for another reason counts too, such as the
        gradient of a unit that is off.
      denormal: so small that it loses digits.
      exponents: (exponent, elements) of the others and of these, without zeros.
    """

    zero: float
    denormal: float
    exponents: tuple[tuple[int, float], ...]


def underflow(counts: Any, dtype: str) -> Underflow:
    """Returns the underflow of a scaled gradient.

    Args:
      counts: what `counted` returned.
      dtype: "float16" or "bfloat16".
    """
    normal, least = LINES[dtype]
    found = np.asarray(counts, np.float64)[: BINS - 1]
    total = max(float(found.sum()), 1.0)
    sizes = np.arange(BINS - 1) - _BIAS
    # Half of the smallest number is rounded up to it, all below that to 0.
    gone = (sizes < least - 1) | (np.arange(BINS - 1) == 0)
    small = ~gone & (sizes < normal)
    there = [(int(s), float(c)) for s, c in zip(sizes, found, strict=True) if c]
    return Underflow(
        zero=float(found[gone].sum()) / total,
        denormal=float(found[small].sum()) / total,
        exponents=tuple(pair for pair in there if pair[0] > -_BIAS),
    )
