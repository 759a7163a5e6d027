"""Made-up results of the benchmark of training steps, for its tests."""

from __future__ import annotations

from typing import Any

from benchmarks import summary


def run(
    mode: str = "float32",
    seconds: float = 1.0,
    number: int = 0,
    case: str = "mlp",
    **changed: Any,
) -> dict[str, Any]:
    """One run of a case."""
    found = {
        "case": case,
        "executor": "kernels",
        "mode": mode,
        "round": number,
        "seconds": seconds,
        "first_step_seconds": 4.0,
        "peak_bytes": 100,
        "steady_peak_bytes": 100,
        "loss_first": 1.0,
        "loss_last": 1.0,
    }
    if mode == "amp":
        found |= {"rewrite_seconds": 0.2, "predicted": 2.0}
    return {**found, **changed}


def results(
    *runs: dict[str, Any], small: bool = False, dtype: str | None = "bfloat16"
) -> dict[str, Any]:
    """Results of a made-up machine; `dtype` is what "auto" comes to."""
    machine = {
        "cpu": "A CPU",
        "cores": 2,
        "flags": ["amx_bf16"],
        "system": "Linux x86_64",
        "gpu": None,
        "device": "CPU with AMX",
        "figures": "measured",
        "dtype": dtype,
        "reason": "mixed precision is off: no 16-bit arithmetic; AMP_EMULATE=1",
        "versions": {"tensorflow": "2.21.0"},
    }
    settings = {
        "begun": "2026-01-01T00:00:00+00:00",
        "dtype": "bfloat16",
        "rounds": 1,
        "seconds": 8.0,
        "small_sizes": small,
        "note": "Busy with other work.",
        "variables": {"AMP_TRIAL": "0"},
    }
    return {"machine": machine, "settings": settings, "runs": list(runs)}


def of_gains(**gains: dict[str, float]) -> list[summary.Row]:
    """Rows of cases, each with a gain by mode; names with _ for a space."""
    runs = []
    for name, modes in gains.items():
        case = name.replace("_", " ")
        runs.append(run(case=case))
        runs += [run(mode, 1 / gain, case=case) for mode, gain in modes.items()]
    return summary.rows(runs)
