"""Seeds to judge: as many as were frozen, or more where mixed pairs are noisier."""

from __future__ import annotations

import pathlib

import pytest
import tiny_family
from convergence_runs import ready

from convergence import families, runner, settings
from convergence.families import FAMILIES, SEEDS
from convergence.runner import Options


def test_the_table_is_of_families_and_types_and_never_asks_for_fewer() -> None:
    assert SEEDS.keys() <= FAMILIES.keys()
    for name, told in SEEDS.items():
        assert told.keys() <= set(settings.DTYPES)
        assert all(count > FAMILIES[name].seeds for count in told.values())
    assert families.seeds("bert", "float16", 3) == SEEDS["bert"]["float16"]
    assert families.seeds("bert", "float16", 99) == 99
    assert families.seeds("resnet", "float16", 9) == 9


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.kernels
def test_a_run_has_the_seeds_of_the_table_unless_told_otherwise(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = tiny_family.install(monkeypatch)
    monkeypatch.setitem(FAMILIES, family.name, family)
    monkeypatch.setitem(SEEDS, family.name, {"float16": 3})  # type: ignore[arg-type]
    monkeypatch.setattr("convergence.observing.DRAWS", 2)
    monkeypatch.setattr("convergence.settings.SETTINGS", ("float32",))  # one is enough
    frozen = ready(family, tmp_path)  # for two seeds
    for asked, taken in ((None, 3), (1, 1)):
        out = tmp_path / str(taken)
        options = Options(quick=True, emulate=True, seeds=asked, out=out, frozen=frozen)
        result = runner.run(family, options, lambda *_: None)
        assert {run["seed"] for run in result["runs"]} == set(range(300, 300 + taken))
