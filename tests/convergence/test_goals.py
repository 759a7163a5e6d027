"""A goal is reached by float32 and by 16 bits alike, or it is said which missed it."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
from convergence_runs import made_up, small

from convergence import again, goals, judge, report, results, runner, staleness
from convergence.data import images
from convergence.errors import ResultError
from convergence.families import FAMILIES, GOALS

DATA = GOALS["resnet"][0].data


def never(result: Any) -> None:
    raise AssertionError("nothing is to be planned")


def reached(
    name: str = "resnet", *, float32: float = 0.8, dynamic: float = 0.8
) -> dict[str, Any]:
    """Results of a goal, one run a setting, made of those of pairs."""
    result = made_up(name, float32=[float32], dynamic=[dynamic])
    kept = ("float32", "dynamic")
    entry = goals.entry(name, GOALS[name][0].data)
    result |= {"quick": False, "seeds": 1, "data": GOALS[name][0].data}
    result["settings"] = {key: result["settings"][key] for key in kept}
    result["runs"] = [run for run in result["runs"] if run["setting"] in kept]
    result["rule"] |= {**entry, "floor": 0.5}
    result["size"] = dataclasses.asdict(FAMILIES[name].full)
    return result


@pytest.mark.parametrize(
    ("metrics", "reasons"),
    [
        ({}, ()),
        ({"dynamic": 0.74}, ("dynamic: accuracy 0.74, wanted 0.75",)),
        ({"float32": 0.74}, ("float32: accuracy 0.74, wanted 0.75",)),
        ({"dynamic": 0.75}, ()),
    ],
)
def test_every_run_is_to_reach_it(
    metrics: dict[str, float], reasons: tuple[str, ...]
) -> None:
    judged = judge.judged(reached(**metrics))
    assert (judged.passes, judged.reasons) == (not reasons, reasons)
    assert judged.undecided == ()


def test_less_is_better_where_the_metric_says_so() -> None:
    wanted = GOALS["progressive_gan"][0].metric
    assert wanted is not None
    near, far = wanted - 0.01, wanted + 0.01
    for dynamic, passes in ((near, True), (far, False)):
        result = reached("progressive_gan", float32=near, dynamic=dynamic)
        assert judge.judged(result).passes is passes


def test_where_nothing_else_is_wanted_the_trivial_model_is_to_be_beaten() -> None:
    result = reached("faster_rcnn", float32=0.3, dynamic=0.3)
    result["rule"]["floor"] = 0.1
    assert goals.wanted(result) == 0.2
    assert judge.judged(result).passes
    result["trivial"]["value"] = 0.4
    judged = judge.judged(result)
    assert judged.undecided == ("float32: does not beat the trivial model",)
    assert not judged.passes


def test_scales_and_gradients_are_judged_on_the_way() -> None:
    result = reached()
    (run,) = (run for run in result["runs"] if run["setting"] == "dynamic")
    run["probes"][0]["gradient"] = {"first/kernel": [1.0, 0.01, 0.5]}
    (reason,) = judge.judged(result).reasons
    assert reason.startswith("dynamic: ")
    assert "first/kernel" in reason


def test_a_run_that_is_missing_leaves_it_undecided() -> None:
    result = reached()
    result["runs"] = result["runs"][:1]
    assert judge.judged(result).undecided == ("1 of 2 runs are done",)
    assert "1 of 2 runs are done" in report.markdown([(result, "")], "")


def test_results_of_another_goal_are_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    assert staleness.reason(reached(), never) == ""
    other = dataclasses.replace(GOALS["resnet"][0], metric=0.9)
    monkeypatch.setitem(GOALS, "resnet", (other,))
    assert staleness.reason(reached(), never) == ""  # made of the other one
    result = reached()
    monkeypatch.undo()
    assert staleness.reason(result, never) == "the goal is another one now"


def test_results_of_another_size_are_stale() -> None:
    result = reached()
    result["size"]["steps"] += 1
    assert staleness.reason(result, never) == "the size is another one now"


@pytest.mark.parametrize(("family", "data"), [("resnet", "digits"), ("bert", "words")])
def test_a_goal_on_other_data_is_refused(family: str, data: str) -> None:
    with pytest.raises(ResultError, match=f"{family} on {data} has no goal") as e:
        goals.entry(family, data)
    assert "resnet on cifar10" in str(e.value)


def test_reports_have_a_table_of_goals_and_no_intervals(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = reached(dynamic=0.7)
    name = results.file_name(result)
    assert name == "resnet-cifar10-float16-emulated-goal.json"
    results.write(tmp_path / name, result)
    monkeypatch.setattr(staleness, "reason", lambda *_: "")
    written = {path.name: path.read_text() for path in report.write(tmp_path, never)}
    line = "| resnet | cifar10 | float16 emulated | accuracy | 0.2 | 0.75 | 0.8 | 0.7 "
    assert f"{line}| 0, 0 | **fails** |" in written["report.md"]
    assert "resnet, quick" not in written["report.md"]
    assert "loss scale" in written[name.replace("json", "svg")]
    assert "difference over margin" not in written[name.replace("json", "svg")]


@pytest.mark.slow
def test_a_family_is_trained_towards_its_goal(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No margins are needed; both settings are trained with one seed, and go on."""
    family = small("resnet", 4)
    family = dataclasses.replace(family, full=family.quick)
    monkeypatch.setattr(runner._Runs, "_drill", lambda *_: None)
    monkeypatch.setattr("convergence.observing.DRAWS", 2)
    digits = images.load(None, side=16)
    monkeypatch.setattr(
        images, "load", lambda *_, **__: dataclasses.replace(digits, name=DATA)
    )
    options = runner.Options(emulate=True, out=tmp_path, frozen=tmp_path / "none")
    result = runner.reach(family, options, lambda *_: None)
    assert [(run["setting"], run["seed"]) for run in result["runs"]] == [
        ("float32", 300),
        ("dynamic", 300),
    ]
    assert all("wanted 0.75" in reason for reason in judge.judged(result).reasons)
    (file,) = tmp_path.glob("*.json")
    assert results.read(file) == result
    anew = dataclasses.replace(options, resume=True)
    assert runner.reach(family, anew, lambda *_: None)["runs"] == result["runs"]
    again.forget()
