"""`Device`: a device without clusters is otherwise the same."""

from __future__ import annotations

import dataclasses
import math

from amp.graph_rewrite.cost import shipped_devices


def test_without_clusters_everything_else_is_the_same() -> None:
    """No figure means no cluster: on GPUs nobody has measured one."""
    assert math.isfinite(shipped_devices.CPU_AMX.under(True).call)
    for device in (shipped_devices.CPU_AMX, shipped_devices.A100):
        without = device.without_clusters()
        assert math.isinf(without.under(True).call)
        same = dataclasses.replace(device.under(True), call=math.inf)
        assert without == dataclasses.replace(device, compiled=same)
    assert math.isinf(shipped_devices.A100.under(True).call)
