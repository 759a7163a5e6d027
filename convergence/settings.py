"""The four settings that are compared, as policies.

The table and nothing else: no training and no verdict.
"""

from __future__ import annotations

from amp import Policy, loss_scaling

DTYPES = ("float16", "bfloat16")
FLOAT32 = "float32"
SETTINGS = (FLOAT32, "unscaled", "constant", "dynamic")
# bfloat16 has float32's range and must do without; float16 may fail.
MUST_PASS = {"float16": ("constant", "dynamic"), "bfloat16": SETTINGS[1:]}
CONSTANT = 2.0**10


def policy(setting: str, *, dtype: str, emulate: bool, steps: int) -> Policy | None:
    """The policy of a setting; None for float32.

    What may be converted is (`assignment="all"`), no step is tried in both types, and
    nothing falls back to float32 in silence.

    Args:
      setting: one of `SETTINGS`.
      dtype: "float16" or "bfloat16".
      emulate: whether float32 kernels run and values are rounded.
      steps: of a run; a dynamic scale is to grow within it.
    """
    if setting == FLOAT32:
        return None
    interval = min(2000, max(steps // 4, 1))
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
