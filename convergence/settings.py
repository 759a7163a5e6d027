"""The settings that are compared, as policies, and how float32's weights are nudged.

The table and nothing else: no training and no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amp import Policy, loss_scaling

DTYPES = ("float16", "bfloat16")
FLOAT32, PERTURBED = "float32", "perturbed"
SETTINGS = (FLOAT32, PERTURBED, "unscaled", "constant", "dynamic")
MIXED = SETTINGS[2:]
# bfloat16 has float32's range and must do without; float16 may fail.
MUST_PASS = {"float16": ("constant", "dynamic"), "bfloat16": MIXED}
CONSTANT = 2.0**10
# Half of the distance between 1 and the next number (IEEE 754): what rounding is off by
# at most, relative to the number.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}
NUDGE = UNIT["float16"]  # of the first weights of `PERTURBED`, relative


def growth_interval(steps: int) -> int:
    """Steps without an overflow after which a dynamic scale grows.

    Args:
      steps: of a run; the scale is to grow within it.
    """
    return min(2000, max(steps // 4, 1))


def policy(setting: str, *, dtype: str, emulate: bool, steps: int) -> Policy | None:
    """The policy of a setting; None for those in float32.

    What may be converted is (`assignment="all"`), no step is tried in both types, and
    nothing falls back to float32 in silence.

    Args:
      setting: one of `SETTINGS`.
      dtype: "float16" or "bfloat16".
      emulate: whether float32 kernels run and values are rounded.
      steps: of a run.
    """
    if setting not in MIXED:
        return None
    interval = growth_interval(steps)
    rules = {
        "unscaled": loss_scaling.NoLossScale(),
        "constant": loss_scaling.ConstantLossScale(CONSTANT),
        "dynamic": loss_scaling.DynamicLossScale(growth_interval=interval),
    }
    return Policy(
        dtype=dtype,
        emulate=emulate,
        loss_scale=rules[setting],
        assignment="all",
        min_gain=0.0,
        trial=False,
        tune_budget=0.0,
        strict=True,
    )


def nudged(
    values: Sequence[np.ndarray], seed: Sequence[int], size: float
) -> list[np.ndarray]:
    """Weights off by at most `size` of themselves, each by a random share of it.

    Args:
      values: of variables; only those of float32 change.
      seed: of the shares, which are uniform between -1 and 1.
      size: relative.
    """
    random = np.random.default_rng([*seed, 2])
    found = []
    for value in values:
        if value.dtype == np.float32:
            shares = random.uniform(-1.0, 1.0, value.shape)
            value = (value * (1.0 + size * shares)).astype(np.float32)
        found.append(value)
    return found
