"""Plans of models stay as they are; a change of one is an entry in the changelog.

What is kept in tests/plans is a summary of each, which `pytest --update-golden` writes.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import plan_digest
import pytest
import tensorflow as tf

from amp.graph_rewrite.cost import resolution
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.rewrite import rewrite
from amp.policy import Policy
from models import lstm_lm, mlp, mobilenet_v2, resnet, transformer, wide_deep

PLANS = Path(__file__).parents[1] / "plans"
MODELS = (lstm_lm, mlp, mobilenet_v2, resnet, transformer, wide_deep)
DEVICES = ("amx", "gpu")
# Layers are small here. Ones that are so many times as wide take so many times as long
# for products as for moving values, and a launch takes next to nothing of it.
WIDER = 32


def counted(names: Any) -> dict[str, int]:
    return dict(sorted(collections.Counter(names).items()))


def summary(module: ir.Module, label: str) -> dict[str, Any]:
    """Of a plan: what is 16-bit, the casts between, and why the rest is not."""
    device, fields = plan_digest.CONFIGURATIONS[label]
    large = dataclasses.replace(
        device, launch=0.0, start={}, flops=device.flops / WIDER
    )
    settled = resolution.resolve(Policy(**fields), large)
    made = rewrite(module, settled)
    decisions = made.report.decisions
    return {
        "16-bit": counted(d.op for d in decisions if d.dtype != "float32"),
        "casts": made.report.casts,
        "float32": counted(d.rule for d in decisions if d.dtype == "float32"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_the_plans_of_a_model_stay(
    model: ModuleType, request: pytest.FixtureRequest
) -> None:
    path = PLANS / f"{model.__name__.partition('.')[2]}.json"
    module = plan_digest.traced(model, xla=False)
    versions = {"keras": keras.__version__, "tensorflow": tf.__version__}
    made = {"versions": versions} | {d: summary(module, d) for d in DEVICES}
    if request.config.getoption("--update-golden"):
        path.write_text(json.dumps(made, indent=1) + "\n")
    kept = json.loads(path.read_text())
    if kept["versions"] != versions:
        pytest.skip(f"made with {kept['versions']}")
    assert made == kept
