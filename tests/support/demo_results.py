"""What the demo finds of runs that nobody made, for tests of its page."""

from __future__ import annotations

from typing import Any

from examples import demo

STEPS = [900.0, 30.0, 30.0, 30.0]
RUN = {
    "loss": [1.0, 0.2],
    "accuracy": [0.5, 0.9],
    "val_loss": [2.0, 0.3],
    "val_accuracy": [0.4, 0.96],
    "step_ms": 30.0,
    "steps_ms": STEPS,
    "peak_mib": 900.0,
    "before_mib": 600.0,
    "epochs": 2,
    "seed": 0,
    "batch_size": 64,
    "versions": {"tensorflow": "2.21.0", "keras": "3.15.1"},
}
RUNS: dict[str, dict[str, Any]] = {
    "float32": RUN,
    "mixed": {**RUN, "step_ms": 20.0, "steps_ms": [1000.0, 20.0, 20.0, 20.0]},
}
REPORT = {
    "function": "__inference_step_7",
    "nodes_total": 2000,
    "nodes_low": 600,
    "casts": 20,
    "dtype": "bfloat16",
    "emulated": False,
    "loss_scale": "none",
    "trial": "ended: no other is faster by more than 2 %",
    "verdict": "rewritten, predicted 1.60x faster, measured 1.50x faster",
}
MACHINE = demo.Machine("a <CPU>", "bfloat16", False, "it has AMX", {})
FORCED = demo.Machine("a CPU", "bfloat16", True, "it has none", {"AMP_EMULATE": "1"})
FAR = {
    "job": "this step: small",
    "verdict": "rewritten",
    "device": "NVIDIA A100",
    "dtype": "float16",
    "seconds32": 3e-3,
    "seconds16": 1.5e-3,
}
LOAD = {**FAR, "job": "a GPU's load: large", "seconds16": 1e-3}


def result(
    machine: demo.Machine = MACHINE, ms: float = 20.0, **report: Any
) -> dict[str, Any]:
    """What the demo finds of a mixed run whose steps took so long."""
    runs = {**RUNS, "mixed": {**RUNS["mixed"], "step_ms": ms}}
    found = demo.compare(machine, runs, {**REPORT, **report})
    return {**found, "elsewhere": [FAR, LOAD]}
