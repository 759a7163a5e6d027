"""`replanned`: a result is planned anew once, until what plans are made by changes."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
from convergence_runs import made_up

from convergence import audit, replanned, results
from convergence.families import FAMILIES

PLANS = {"float32": "", "dynamic": "p"}


class Anew:
    """Plans all results alike, and counts."""

    def __init__(self, plans: Mapping[str, str] | None = None) -> None:
        self.plans, self.asked = plans, 0

    def __call__(self, result: Mapping[str, Any]) -> Mapping[str, str] | None:
        self.asked += 1
        return self.plans


def planned(place: pathlib.Path, result: Mapping[str, Any], anew: Anew) -> object:
    with replanned.kept(anew, place) as replan:
        return replan(result)


def test_what_is_known_is_not_planned_again(tmp_path: pathlib.Path) -> None:
    result, first, second = made_up(), Anew(PLANS), Anew()
    assert planned(tmp_path, result, first) == PLANS
    assert planned(tmp_path, result, second) == PLANS
    assert (first.asked, second.asked) == (1, 0)
    assert results.every(tmp_path) == []  # it is no file of results


@pytest.mark.parametrize("part", ["package", "suite", "planner", "row", "version"])
def test_what_plans_are_made_by_has_changed(
    part: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, anew = made_up(), Anew({"dynamic": "q"})
    planned(tmp_path, result, Anew(PLANS))
    if part in ("package", "suite"):
        code = audit.code(FAMILIES["resnet"].task) | {part: "another"}
        monkeypatch.setattr(audit, "code", lambda task: code)
    elif part == "planner":
        monkeypatch.setattr(replanned, "MODULES", replanned.MODULES[1:])
    elif part == "row":
        row = dataclasses.replace(FAMILIES["resnet"], optimizer="another")
        monkeypatch.setitem(FAMILIES, "resnet", row)
    else:
        monkeypatch.setattr("importlib.metadata.version", lambda name: "another")
    assert planned(tmp_path, result, anew) == {"dynamic": "q"}
    assert anew.asked == 1


@pytest.mark.parametrize(
    "other", [{"dtype": "bfloat16"}, {"machine": {"flags": ["avx512_bf16"]}}]
)
def test_another_result_has_another_entry(
    other: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    anew = Anew(PLANS)
    planned(tmp_path, made_up(), Anew(PLANS))
    planned(tmp_path, made_up() | other, anew)
    assert anew.asked == 1


def test_what_cannot_be_planned_here_is_asked_again(tmp_path: pathlib.Path) -> None:
    assert planned(tmp_path, made_up(), Anew(None)) is None
    assert not (tmp_path / replanned.FILE).exists()
    assert planned(tmp_path, made_up(), Anew(PLANS)) == PLANS


def test_an_error_loses_nothing_that_was_found(tmp_path: pathlib.Path) -> None:
    anew = Anew(PLANS)

    def interrupted() -> None:
        with replanned.kept(anew, tmp_path) as replan:
            replan(made_up())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert planned(tmp_path, made_up(), Anew()) == PLANS


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', json.dumps({"a": {}})])
def test_a_file_that_cannot_be_read_is_written_anew(
    text: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / replanned.FILE
    file.parent.mkdir()
    file.write_text(text)
    assert planned(tmp_path, made_up(), Anew(PLANS)) == PLANS
    assert planned(tmp_path, made_up(), Anew()) == PLANS
