"""The table of cases: every row builds, and sizes are those of the papers."""

from __future__ import annotations

import importlib
import inspect

import pytest

from benchmarks import bench_models

each_case = pytest.mark.parametrize("name", bench_models.ALL)


@each_case
def test_small_sizes_replace_whole_ones_and_the_rest_stays(name: str) -> None:
    case = bench_models.ALL[name]
    (batch, whole), (small_batch, small) = case.arguments(False), case.arguments(True)
    assert (batch, whole) == (case.batch, dict(case.sizes))
    assert small_batch < batch
    assert small == {**whole, **{k: v for k, v in case.small.items() if k != "batch"}}


@each_case
def test_sizes_are_arguments_of_the_model(name: str) -> None:
    case = bench_models.ALL[name]
    module = importlib.import_module(f"models.{case.module}")
    takes = inspect.signature(getattr(module, case.builder)).parameters
    for quick in (False, True):
        assert set(case.arguments(quick)[1]) <= set(takes)


@each_case
def test_optimizers_are_known(name: str) -> None:
    assert bench_models.ALL[name].optimizer in bench_models.OPTIMIZERS


def test_cases_that_are_asked_for_are_apart() -> None:
    apart = (bench_models.CASES, bench_models.APPLICATIONS, bench_models.MEMORY_CASES)
    assert len(bench_models.ALL) == sum(map(len, apart))
    assert {name: case.memory for name, case in bench_models.ALL.items()} == {
        name: name in bench_models.MEMORY_CASES for name in bench_models.ALL
    }


def test_the_language_models_are_those_of_the_paper() -> None:
    for name, units in (("lstm medium", 650), ("lstm large", 1500)):
        batch, sizes = bench_models.CASES[name].arguments(False)
        assert (batch, sizes["units"], sizes["steps"]) == (20, units, 35)


def test_the_mobilenet_is_that_of_the_paper() -> None:
    from models import mobilenet_v2

    sizes = bench_models.CASES["mobilenet_v2"].sizes
    assert sizes["stages"] == mobilenet_v2.PAPER
