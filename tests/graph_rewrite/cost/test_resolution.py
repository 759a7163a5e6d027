"""`resolution`: what "auto" comes to on a device."""

from __future__ import annotations

import pytest

from amp.graph_rewrite.cost import resolution, shipped_devices
from amp.graph_rewrite.cost.device import Device
from amp.loss_scaling import ConstantLossScale, DynamicLossScale, NoLossScale
from amp.policy import Policy


def test_auto_is_float16_with_dynamic_scaling_on_a_gpu() -> None:
    settled = resolution.resolve(Policy(), shipped_devices.A100)
    assert settled.policy is not None
    assert settled.policy.dtype == "float16"
    assert settled.policy.loss_scale == DynamicLossScale()


@pytest.mark.parametrize(
    "device", [shipped_devices.CPU_AMX, shipped_devices.CPU_AVX512_BF16]
)
def test_auto_is_bfloat16_without_scaling_on_a_cpu(device: Device) -> None:
    settled = resolution.resolve(Policy(), device)
    assert settled.policy is not None
    assert settled.policy.dtype == "bfloat16"
    assert settled.policy.loss_scale == NoLossScale()


@pytest.mark.parametrize(
    "device", [shipped_devices.CPU_PLAIN, shipped_devices.GPU_PLAIN]
)
def test_auto_is_off_elsewhere_and_says_why_in_one_line(device: Device) -> None:
    settled = resolution.resolve(Policy(), device)
    assert settled.policy is None
    assert "off" in settled.reason
    assert device.name in settled.reason
    assert "\n" not in settled.reason
    assert "AMP_EMULATE=1" in settled.reason


@pytest.mark.parametrize(
    ("fields", "itself"),
    [
        ({}, True),
        ({"loss_scale": DynamicLossScale()}, False),
        ({"loss_scale": NoLossScale()}, False),
        ({"dtype": "bfloat16"}, False),
    ],
)
def test_a_scale_that_nobody_asked_for_is_told_from_one_that_the_user_did(
    fields: dict[str, object], itself: bool
) -> None:
    settled = resolution.resolve(Policy(**fields), shipped_devices.A100)  # type: ignore[arg-type]
    assert settled.scales_itself is itself


def test_auto_is_off_where_products_are_slower_and_a_named_type_is_not() -> None:
    device = shipped_devices.CPU_HIDDEN_AMX
    settled = resolution.resolve(Policy(), device)
    assert settled.policy is None
    assert "products in bfloat16 run at 0.6 of float32's speed" in settled.reason
    assert "AMP_DTYPE=bfloat16 has plans race nevertheless" in settled.reason
    assert resolution.resolve(Policy(dtype="bfloat16"), device).policy is not None


def test_emulation_plans_for_a_device_with_both_types() -> None:
    for dtype in ("auto", "float16", "bfloat16"):
        policy = Policy(emulate=True, dtype=dtype)
        settled = resolution.resolve(policy, shipped_devices.CPU_PLAIN)
        assert settled.policy is not None
        assert settled.device.native == ("float16", "bfloat16")
        assert "emulated" in settled.reason


def test_what_the_user_chose_is_kept() -> None:
    policy = Policy(dtype="bfloat16", loss_scale=1024, keep=("a",))
    settled = resolution.resolve(policy, shipped_devices.V100).policy
    assert settled is not None
    assert settled.dtype == "bfloat16"
    assert settled.loss_scale == ConstantLossScale(1024)
    assert settled.keep == ("a",)
