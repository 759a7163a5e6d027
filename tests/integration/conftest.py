"""Fixtures of tests of functions and sessions; no test lives here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

import amp
from amp.graph_rewrite.cost.shipped_devices import CPU_PLAIN
from amp.integration.measuring import hardware
from amp.integration.process import PROCESS

# Figures of its own, so that what is planned does not follow from shipped ones.
SPEED = {"product": 4.1, "conv": 6.4, "conv_grad_input": 4.4, "conv_grad_filter": 3.1}
AMX = dataclasses.replace(
    CPU_PLAIN,
    name="x86 CPU with AMX bfloat16",
    native=("bfloat16",),
    speed={**CPU_PLAIN.speed, "bfloat16": SPEED},
)


@pytest.fixture
def only_amx(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans as for a CPU with AMX, whatever this machine is; forgets them after."""
    monkeypatch.setattr(hardware, "device", lambda: AMX)
    with amp.mixed_precision_scope(dtype="bfloat16"):
        pass  # the hooks are in place: what is traced has its shapes
    settled = dict(PROCESS.settled)
    PROCESS.settled.clear()
    yield
    PROCESS.settled.clear()
    PROCESS.settled.update(settled)
