"""Every family trains in 16 bits; runs are observed; SIGKILL changes nothing."""

from __future__ import annotations

import importlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import thorough
from convergence_runs import made_up, ready, small

import amp
from convergence import (
    again,
    audit,
    checkpoints,
    observing,
    pictures,
    results,
    runner,
    settings,
    training,
    trivial,
    verdict,
)
from convergence.data import pairs, scenes
from convergence.errors import ResultError
from convergence.families import FAMILIES

ROOT = pathlib.Path(__file__).parents[2]
# Images, words, a table; `make test-all` trains the others.
QUICK = ("lstm_lm", "wide_deep")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    again.forget()


def quiet(*told: object) -> None:
    pass


@pytest.mark.parametrize("name", thorough.but(QUICK, FAMILIES))
@pytest.mark.slow
@pytest.mark.kernels
def test_smoke(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps in emulated float16, with the size and the metric of quick.

    The loss is finite, the metric is in its range, and the step holds 16-bit nodes.
    How exact its gradients are, two draws do not tell.
    """
    family, size = FAMILIES[name], FAMILIES[name].quick
    monkeypatch.setattr(scenes, "COMPOSED", (40, 12))
    monkeypatch.setattr(pairs, "TESTED", 12)
    monkeypatch.setattr(observing, "DRAWS", 2)
    module = importlib.import_module(f"convergence.tasks.{family.task}")
    task = module.make(module.load(size, None), size)
    policy = settings.policy("constant", dtype="float16", emulate=True, steps=2)
    trainer = training.Trainer(task, policy)
    first = [variable.numpy() for variable in task.model.variables]
    place = tmp_path / "checkpoint.npz"
    spec = training.Spec(
        0, 2, first, family.worst, probed=True, drawn=False, place=place
    )
    run = trainer.run(spec, quiet)
    assert not run["diverged"]
    assert np.isfinite(run["metric"])
    assert all(None not in losses for losses in run["losses"])
    for track in run["scalers"]:
        assert [scale for _, scale in track["path"]] == [settings.CONSTANT]
        assert track["held"] == []
    assert len(run["scalers"]) == len(run["ends"])
    plan = trainer.plan()
    assert 0 < plan.low < plan.every
    trained = {v.path for part in task.parts(0) for v in part.variables}
    first_look = run["probes"][0]
    assert set(first_look["update"]) <= trained
    # Only gradients that are 0 in float32 are not judged: in an FCN all but those of
    # the scores, whose weights start at 0.
    assert set(first_look["gradient"]) <= set(first_look["lost"]) <= trained
    least = 0.1 if name == "fcn" else 0.5
    assert len(first_look["gradient"]) > least * len(first_look["lost"])
    changed = [
        not np.array_equal(a, b.numpy())
        for a, b in zip(first, task.model.variables, strict=True)
    ]
    assert any(changed)


def run(name: str, out: pathlib.Path) -> verdict.Verdict:
    family = small(name, steps=8)
    options = runner.Options(
        quick=True, emulate=True, seeds=2, out=out, frozen=ready(family, out)
    )
    return verdict.verdict(runner.run(family, options, quiet))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.kernels
def test_a_sound_scaler_passes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight steps beat no trivial model, of which another test tells."""
    monkeypatch.setattr(trivial, "beats", lambda result: True)
    judged = run("wide_deep", tmp_path)
    assert judged.passes, (judged.reasons, judged.undecided)
    (held,) = results.every(tmp_path)
    assert verdict.verdict(held) == judged
    assert not list(tmp_path.glob(".checkpoints/*"))
    drawn: dict[str, list[bool]] = {r["setting"]: [] for r in held["runs"]}
    for each in held["runs"]:
        drawn[each["setting"]].append(any("weights" in p for p in each["probes"]))
    assert drawn.pop("perturbed") == [False, False]
    assert set(map(tuple, drawn.values())) == {(True, False)}  # pictures: one a setting
    assert pictures.looked_at(held)


def test_nothing_is_run_without_frozen_margins(tmp_path: pathlib.Path) -> None:
    options = runner.Options(quick=True, out=tmp_path, frozen=tmp_path / "none.json")
    with pytest.raises(ResultError, match="no margins are frozen"):
        runner.run(small("resnet", steps=8), options, quiet)
    assert not results.every(tmp_path)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.kernels
def test_a_constant_scale_of_2_to_the_minus_20_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Most of a ResNet's gradients are then under 2^-24, so that they vanish."""
    monkeypatch.setattr(settings, "SETTINGS", ("float32", "constant"))
    monkeypatch.setattr(settings, "CONSTANT", 2.0**-20)
    judged = run("resnet", tmp_path)
    assert any(r.startswith("constant: the gradient of") for r in judged.reasons)


KILLED = """
import dataclasses, os, pathlib, signal, sys
import tiny_family
from convergence_runs import ready, small

from convergence import checkpoints, drills, margins, observing, results, runner
from convergence import settings, workers
from convergence.families import FAMILIES

sys.modules["convergence.tasks.tiny"] = tiny_family
FAMILIES["tiny"] = tiny_family.TINY
observing.DRAWS = 2  # how exact a gradient has to be is not the question here
drills.faults = lambda *_: []  # nor what drills find
workers.deterministic(single=True)  # as quick runs are

out, point = pathlib.Path(sys.argv[1]), sys.argv[2]
fewer = {"progressive_gan": {"channels": (8, 8)}, "lstm_lm": {"units": 16}}
family = small(sys.argv[3], 40, **fewer.get(sys.argv[3], {}))
frozen = out / "frozen" / "margins.json"
if not frozen.exists():
    ready(family, out)
settings.SETTINGS = ("dynamic",)
SECOND = margins.JUDGED + 1

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def tell(setting, seed, steps, step):
    if point == "step" and (setting, seed, step) == ("dynamic", SECOND, 31):
        kill()

if point == "checkpoint":  # half of it written
    saved = checkpoints.np.savez
    def savez(file, **values):
        if f"-dynamic-{SECOND}" in file.name and '"step": 36' in str(values["told"]):
            file.write(b"PK")
            file.flush()
            kill()
        saved(file, **values)
    checkpoints.np.savez = savez
options = runner.Options(
    quick=True, emulate=True, seeds=2, out=out, resume="resume" in sys.argv,
    frozen=frozen,
)
runner.run(family, options, tell)
if "resume" in sys.argv:  # once more, from the beginning
    options = dataclasses.replace(options, resume=False, out=out / "again")
    runner.run(family, options, tell)
"""


def python(code: str, *arguments: object) -> int:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT}/tests/support",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    thorough.but(("tiny",), ("tiny", "wide_deep", "lstm_lm", "progressive_gan")),
)
def test_a_run_killed_at_any_point_resumes_to_the_same_bits(
    tmp_path: pathlib.Path, name: str
) -> None:
    """Killed between checkpoints, then in the midst of writing one, then left alone.

    The last process then does the whole run once more. A language model carries the
    state of its cells from step to step. A checkpoint is written alike of all of them.
    """
    broken, whole = tmp_path, tmp_path / "again"
    assert python(KILLED, broken, "step", name) == -signal.SIGKILL
    (checkpoint,) = broken.glob(".checkpoints/*-dynamic-*.npz")
    if name == "tiny":
        assert python(KILLED, broken, "checkpoint", name, "resume") == -signal.SIGKILL
        assert [checkpoint] == list(broken.glob(".checkpoints/[!.]*"))
    assert python(KILLED, broken, "never", name, "resume") == 0
    assert _only(broken) == _only(whole)


def _only(out: pathlib.Path) -> dict[str, Any]:
    """The results of a directory, but for when they were made and how long it took."""
    (result,) = results.every(out)
    del result["begun"]
    for run in result["runs"]:
        assert run.pop("seconds") > 0
    return result


def test_checkpoints_hold_every_variable_and_what_was_recorded(
    tmp_path: pathlib.Path,
) -> None:
    values = (0.1, np.float32(np.inf), [1, 2], b"x")
    state = [tf.Variable(value) for value in values]
    place, history = tmp_path / "run.npz", {"losses": [0.1, float("nan")]}
    checkpoints.save(place, 7, state, history)
    for variable in state[:3]:
        variable.assign(tf.zeros_like(variable))
    step, told = checkpoints.restore(place, state) or (0, {})
    assert step == 7
    np.testing.assert_equal(told, history)
    for variable, value in zip(state, values, strict=True):
        np.testing.assert_array_equal(variable.numpy(), np.asarray(tf.constant(value)))
    with pytest.raises(ResultError, match="4 variables, not 3"):
        checkpoints.restore(place, state[:3])
    place.write_bytes(b"PK")
    with pytest.raises(ResultError, match="cannot be used"):
        checkpoints.restore(place, state)
    assert checkpoints.restore(tmp_path / "none.npz", state) is None


@pytest.fixture
def head() -> dict[str, Any]:
    result = made_up()
    return {**result, "runs": [], "seeds": 0}


def test_results_of_another_machine_are_not_gone_on_with(
    tmp_path: pathlib.Path, head: dict[str, Any]
) -> None:
    path = tmp_path / results.file_name(head)
    results.write(path, head | {"seeds": 3, "begun": "then"})
    held = results.go_on(path, head, any_commit=False)
    assert (held["seeds"], held["begun"]) == (3, "then")
    for other in (head | {"machine": {}}, head | {"rule": {}}):
        with pytest.raises(ResultError, match="another (machine|rule)"):
            results.go_on(path, other, any_commit=True)
    path.write_text("{}")
    with pytest.raises(ResultError, match="lacks entries"):
        results.go_on(path, head, any_commit=False)


def test_results_of_another_commit_are_gone_on_with_if_that_is_asked_for(
    tmp_path: pathlib.Path, head: dict[str, Any]
) -> None:
    path = tmp_path / results.file_name(head)
    results.write(path, head)
    other = head | {"commit": "another", "code": {"suite": "another"}}
    with pytest.raises(ResultError, match="--any-commit") as e:
        results.go_on(path, other, any_commit=False)
    assert "another code, commit" in str(e.value)
    assert results.go_on(path, other, any_commit=True)["commit"] == head["commit"]


@pytest.mark.thorough
def test_each_run_says_its_own_commit_and_checkpoints_are_of_one_code(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where results of another commit are gone on with, and one of its runs was cut."""
    family = small("wide_deep", steps=2)
    monkeypatch.setattr(observing, "DRAWS", 2)
    monkeypatch.setattr(settings, "SETTINGS", ("float32", "constant"))
    monkeypatch.setattr(runner._Runs, "_drill", lambda *_: None)
    frozen, places = ready(family, tmp_path), []
    honest = runner.Trainer.run

    def run(self: Any, spec: Any, advance: Any) -> dict[str, Any]:
        places.append(spec.place)
        return honest(self, spec, advance)

    monkeypatch.setattr(runner.Trainer, "run", run)
    for number, commit in enumerate(("first", "second"), 1):
        monkeypatch.setattr(audit, "commit", lambda commit=commit: commit)
        monkeypatch.setattr(audit, "code", lambda task, commit=commit: {"x": commit})
        options = runner.Options(
            quick=True, emulate=True, seeds=number, out=tmp_path, frozen=frozen,
            resume=True, any_commit=True,
        )  # fmt: skip
        result = runner.run(family, options, quiet)
    told = {run["seed"]: run["commit"] for run in result["runs"]}
    assert told == {300: "first", 301: "second"}
    suffixes = [place.stem.rsplit("-", 1)[1] for place in places]
    assert len(set(suffixes)) == 2


def test_settings_convert_all_and_never_fall_back() -> None:
    for name in settings.MIXED:
        policy = settings.policy(name, dtype="float16", emulate=True, steps=50)
        assert isinstance(policy, amp.Policy)
        assert (policy.assignment, policy.strict) == ("all", True)
        assert (policy.trial, policy.tune_budget) == (False, 0.0)
    for name in ("float32", "perturbed"):
        assert settings.policy(name, dtype="float16", emulate=True, steps=9) is None


def test_weights_are_nudged_by_a_share_that_the_seed_tells() -> None:
    weights = [np.full((50, 40), -3.0, np.float32), np.arange(3, dtype=np.int64)]
    off, counts = settings.nudged(weights, (7,), 2.0**-11)
    relative = off / -3.0 - 1
    # Rounding to float32 may add 2^-24.
    assert np.abs(relative).max() <= 2.0**-11 + 2.0**-24
    assert np.abs(relative).max() > 0.99 * 2.0**-11
    assert {-1.0, 1.0} == set(np.sign(relative[relative != 0]))
    np.testing.assert_array_equal(counts, weights[1])
    np.testing.assert_array_equal(off, settings.nudged(weights, (7,), 2.0**-11)[0])
    assert (off != settings.nudged(weights, (8,), 2.0**-11)[0]).any()


def test_the_end_of_a_loss_is_its_mean_over_the_last_quarter() -> None:
    losses = np.arange(8.0)[:, None].repeat(2, 1)
    losses[7, 1] = np.inf
    assert training.ends(losses) == [6.5, None]


def test_curves_are_means_of_what_is_finite() -> None:
    losses = np.arange(600.0)[:, None].repeat(2, 1)
    losses[:10, 1] = np.nan
    losses[15, 1] = np.inf
    first, second = training.curve(losses)
    assert len(first) == training.POINTS
    assert first[:2] == [4.5, 14.5]
    assert second[0] is None
    assert second[1] == pytest.approx((145 - 15) / 9, rel=1e-4)
