"""What a policy comes to on a device: "auto" replaced by values, or off and why.

No figure of a device and no graph may enter.
"""

from __future__ import annotations

import dataclasses

from amp import spelling
from amp.errors import PolicyError
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.shipped_devices import NAMED, REFERENCE
from amp.loss_scaling.scale import DynamicLossScale, NoLossScale
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Resolution:
    """A policy after "auto" was resolved for a device.

    Attributes:
      policy: the policy without "auto", or None if mixed precision is off.
      device: the device whose figures the cost model uses.
      reason: why, in one line, for the report.
      place: the device's name in the process ("GPU:1"), "" for the one that TensorFlow
        computes on unless it is told otherwise.
      kinds: the kinds of device that nodes may be placed on.
      differentiable: whether gradients may be taken of what is rewritten, or nodes have
        to stay for another reason.
      named: whether the user named the device, which need not be here: nothing that was
        measured counts then.
      scales_itself: whether the loss is scaled for the sake of 16 bits alone: the user
        has asked for no scale.
    """

    policy: Policy | None
    device: Device
    reason: str
    place: str = ""
    kinds: frozenset[str] = frozenset({"CPU"})
    differentiable: bool = False
    named: bool = False
    scales_itself: bool = False

    def as_written(self) -> Resolution:
        """The same for a graph in which nodes stay what and where they are.

        No clusters are made in it, and no normalization is made one kernel.
        """
        device = self.device.without_clusters()
        return dataclasses.replace(self, device=device, differentiable=True)

    @property
    def onednn(self) -> bool:
        """Whether it is certain that kernels are oneDNN's, and not emulated.

        On CPUs no others have 16-bit arithmetic (see `hardware.usable_flags`).
        """
        policy, device = self.policy, self.device
        if policy is None or policy.emulate:
            return False
        return device.kind == "CPU" and policy.dtype in device.native


def resolve(policy: Policy, device: Device) -> Resolution:
    """Replaces the policy's "auto" fields by values for a device.

    "auto" is float16 with dynamic loss scaling on a GPU of compute capability 7.0 or
    newer, bfloat16 without scaling on a CPU with AMX or AVX512-BF16, otherwise off; off
    too where products in these types are known to be no faster than float32's.
    """
    dtype = policy.dtype
    if dtype == "auto":
        paying = device.paying or (("bfloat16",) if policy.emulate else ())
        if not paying:
            return Resolution(None, device, _off(device))
        dtype = paying[0]
    scale = policy.loss_scale
    if scale == "auto":
        scale = DynamicLossScale() if dtype == "float16" else NoLossScale()
    settled = dataclasses.replace(policy, dtype=dtype, loss_scale=scale)
    how = "emulated on" if policy.emulate else "on"
    reason = f"{dtype} {how} {device.name}, loss scale {scale}"
    figures = REFERENCE if policy.emulate else device
    itself = policy.loss_scale == "auto" and dtype == "float16"
    return Resolution(settled, figures, reason, scales_itself=itself)


def _off(device: Device) -> str:
    why, remedy = f"no 16-bit arithmetic on this {device.name}", ""
    if device.native:
        slow, speed = device.native[0], device.product_speed(device.native[0])
        why = f"products in {slow} run at {speed:.2g} of float32's speed on this "
        why += device.name
        remedy = f"AMP_DTYPE={slow} has plans race nevertheless, "
    emulation = "AMP_EMULATE=1 (emulate=True) shows how the model converges"
    return f"mixed precision is off: {why}; {remedy}{emulation}"


def resolve_named(policy: Policy, name: str) -> Resolution:
    """What a policy comes to on a device of `shipped_devices.NAMED`, here or not.

    Raises:
      PolicyError: there is none of that name.
    """
    device = NAMED.get(name.lower())
    if device is None:
        raise PolicyError(
            f"there are no figures for a device {name!r}",
            where="--device, amp.explain(device=...)",
            allowed=", ".join(NAMED),
            remedy=spelling.hint(
                name, NAMED, "plan on the device itself, after `amp tune`"
            ),
        )
    device = dataclasses.replace(device, name=f"{device.name} (named, not measured)")
    kinds = frozenset({"CPU", device.kind})
    return dataclasses.replace(resolve(policy, device), kinds=kinds, named=True)
