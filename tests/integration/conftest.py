"""Fixtures of tests of functions and sessions; no test lives here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import amp
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.integration.measuring import hardware
from amp.integration.process import PROCESS


@pytest.fixture
def only_amx(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans as for a CPU with AMX, whatever this machine is; forgets them after."""
    monkeypatch.setattr(hardware, "device", lambda: CPU_AMX)
    with amp.mixed_precision_scope(dtype="bfloat16"):
        pass  # the hooks are in place: what is traced has its shapes
    settled = dict(PROCESS.settled)
    PROCESS.settled.clear()
    yield
    PROCESS.settled.clear()
    PROCESS.settled.update(settled)
