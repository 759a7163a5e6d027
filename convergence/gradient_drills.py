"""Drills of gradients under other scales than usual, and beside those of float32.

Used by `drills`. Steps are taken by `rig`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from convergence import bits, dynamics, gradient_rule, settings
from convergence.rig import PartPlaces, Rig, TakenStep

# Rounding turns a gradient, and makes it larger as a whole by little: in sound steps of
# the eleven families, in both types, by at most 15 units, and where by more than one,
# by at most 0.4 of what it turns it by. A factor turns nothing. The second limit is
# wide: gradients of other seeds may have fewer directions.
ALONG, TURNED = 16, 2.0
# Of the gradient by a table some rows are sums, which 16 bits need not hold; of sound
# values they hold one in three (`bits.FEW`).
MOST = 0.75


def in_float32(rig: Rig) -> Iterator[str]:
    """Of the same step in float32: 16 bits make a difference, along no gradient."""
    rig.step.put(rig.held)
    exact = rig.step.in_float32(rig.stage, rig.batch)
    ours = rig.usual.gradients
    for part in rig.parts:
        pairs = [(ours[i], exact[i].numpy()) for i in part.gradients]
        if all(bits.same(one, other) for one, other in pairs):
            yield "16 bits change no bit of a gradient"
        times, rest = bits.times([a for a, _ in pairs], [b for _, b in pairs])
        off, unit = abs(times - 1), settings.UNIT[rig.dtype]
        if not off <= max(ALONG * unit, TURNED * rest):
            yield f"gradients are {times:.4g} times those in float32"


def large(rig: Rig) -> Iterator[str]:
    """Of the largest scale that no gradient overflows by."""
    taken, exponent = rig.usual, rig.exponent
    for larger in range(exponent + 1, dynamics.HIGHEST + 1):
        scales = dict.fromkeys(range(len(rig.parts)), 2.0**larger)
        larger_taken = rig.take(scales)
        if not all(part.weights & larger_taken.moved for part in rig.parts):
            break
        taken, exponent = larger_taken, larger
    for part in rig.parts:
        yield from as_usual(rig, part, taken, f"the scale 2^{exponent}")


def each_by_its_own(rig: Rig) -> Iterator[str]:
    """Of parts whose scales differ."""
    exponent, parts = rig.exponent, rig.parts
    taken = rig.take({at: 2.0 ** (exponent - 2 * at) for at in range(len(parts))})
    for at, part in enumerate(parts[1:], 1):
        what = f"a scale of loss {at + 1} that is another than that of the first"
        yield from as_usual(rig, part, taken, what)


def one_and_a_half(rig: Rig, taken: TakenStep, scale: float) -> Iterator[str]:
    """Of a scale that is no power of two."""
    for part in rig.parts:
        pairs = _pairs(rig, part, taken)
        if all(bits.same(ours, other) for ours, other in pairs):
            yield "one and a half times the scale changes no bit of a gradient"
        yield from as_usual(rig, part, taken, "one and a half times the scale")
        for i, (ours, _) in zip(part.gradients, pairs, strict=True):
            name = rig.step.names[rig.stage][i]
            if bits.in_16_bits(ours, share=MOST):
                yield f"the unscaled gradient of {name} is held in 16 bits"
            coarse = bits.near_16_bits(ours * scale, dtypes=["bfloat16"])
            if rig.dtype == "float16" and coarse:
                yield f"the scaled gradient of {name} is held in bfloat16"
        for place in sorted(part.places & taken.moved):
            if bits.in_16_bits(taken.after[place]):
                yield f"{rig.name(place)} is held in 16 bits"


def as_usual(rig: Rig, part: PartPlaces, taken: TakenStep, what: str) -> Iterator[str]:
    """Of gradients that are the usual ones, but for what rounding does."""
    pairs = _pairs(rig, part, taken)
    off = bits.norm([np.subtract(a, b, dtype=np.float64) for a, b in pairs])
    size = bits.norm([b for _, b in pairs])
    most = gradient_rule.FLOOR * settings.UNIT[rig.dtype]
    if not off <= most * size:
        yield f"{what} changes gradients by {off:.2g}, which are {size:.2g}"


def _pairs(
    rig: Rig, part: PartPlaces, taken: TakenStep
) -> list[tuple[np.ndarray, np.ndarray]]:
    """A part's gradients, with those of the usual step."""
    return [(taken.gradients[i], rig.usual.gradients[i]) for i in part.gradients]
