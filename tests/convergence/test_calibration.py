"""Margins are made of float32 alone, on seeds that nobody judges, and asked for."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
import tiny_family

from convergence import margins, runner
from convergence.errors import ResultError


@pytest.mark.slow
@pytest.mark.kernels
def test_a_calibration_freezes_what_a_run_asks_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = tiny_family.install(monkeypatch)
    options = runner.Options(
        quick=True, seeds=3, out=tmp_path, frozen=tmp_path / "frozen.json"
    )
    told: list[tuple[str, int]] = []

    def tell(arm: str, seed: int, steps: int, step: int) -> None:
        told.append((arm, seed))

    made = runner.calibrate(family, options, tell)
    seeds = {100, 101, 102}
    assert set(told) == {(a, s) for a in ("float32", "perturbed") for s in seeds}
    assert made["key"] == "tiny-synthetic-quick"
    assert set(made["entry"]["calibrated"]) == seeds
    assert any(made["entry"]["pairs"]["loss"])  # noise there is
    # Neither results nor checkpoints are left.
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    margins.freeze(made["key"], made["entry"], options.frozen)
    again = dataclasses.replace(options, resume=True)
    assert runner.calibrate(family, again, tell)["entry"] is None  # frozen before
    other = dataclasses.replace(
        family, quick=dataclasses.replace(family.quick, rate=0.01)
    )
    with pytest.raises(ResultError, match="another row"):
        runner.run(other, options, tell)
