"""Scales of several parts and stages are followed, each for itself."""

from __future__ import annotations

import dataclasses
import pathlib

import keras
import pytest

from convergence import again, dynamics, families, observing, settings, training
from convergence.tasks import progressive_gan

STEPS = 24


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.kernels
def test_every_part_of_every_stage_has_a_scale_that_keeps_its_rule(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two networks, three stages of eight steps; scales grow after six good steps."""
    monkeypatch.setattr(observing, "DRAWS", 2)  # gradients are not the question here
    quick, sizes = families.PROGRESSIVE_GAN.quick, {"channels": (16, 16, 8)}
    size = dataclasses.replace(quick, steps=STEPS, rate=5e-3, model=sizes)
    keras.utils.set_random_seed(0)
    task = progressive_gan.make(progressive_gan.load(size, None), size)
    policy = settings.policy("dynamic", dtype="float16", emulate=True, steps=STEPS)
    trainer = training.Trainer(task, policy)
    first = [variable.numpy() for variable in task.model.variables]
    place = tmp_path / "run.npz"
    spec = training.Spec(0, STEPS, first, 1.0, probed=True, drawn=False, place=place)
    run = trainer.run(spec, lambda step: None)
    begun = [(track["begin"], track["count"]) for track in run["scalers"]]
    assert begun == [(0, 8), (0, 8), (8, 8), (8, 8), (16, 8), (16, 8)]
    rule = dynamics.Rule(dynamics.FIRST, settings.growth_interval(STEPS))
    assert dynamics.faults(rule, run, 2) == []
    assert [probe["step"] for probe in run["probes"]] == [0, 6, 12, 18]
    judged = [set(probe["update"]) for probe in run["probes"] if "update" in probe]
    assert judged
    assert all(judged)
    again.forget()
