"""Every family trains in 16 bits; a broken scaler fails; SIGKILL changes nothing."""

from __future__ import annotations

import importlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf
from convergence_runs import small

import amp
from amp.loss_scaling import gradients
from convergence import checkpoints, results, runner, settings, training, verdict
from convergence.data import pairs, scenes
from convergence.errors import ResultError
from convergence.families import FAMILIES

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    runner._forget()


def quiet(*told: object) -> None:
    pass


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow
@pytest.mark.kernels
def test_smoke(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps in emulated float16, with the size and the metric of quick.

    The loss is finite, the metric is in its range, and the step holds 16-bit nodes.
    """
    family, size = FAMILIES[name], FAMILIES[name].quick
    monkeypatch.setattr(scenes, "COMPOSED", (40, 12))
    monkeypatch.setattr(pairs, "TESTED", 12)
    module = importlib.import_module(f"convergence.tasks.{family.task}")
    task = module.make(module.load(size, None), size)
    policy = settings.policy("constant", dtype="float16", emulate=True, steps=2)
    trainer = training.Trainer(task, policy)
    first = [variable.numpy() for variable in task.model.variables]
    place = tmp_path / "checkpoint.npz"
    spec = training.Spec(0, 2, first, family.worst, probed=False, place=place)
    run = trainer.run(spec, quiet)
    assert not run["diverged"]
    assert np.isfinite(run["metric"])
    assert all(None not in losses for losses in run["losses"])
    assert run["scales"] == [[0, settings.CONSTANT]]
    low, every = trainer.nodes()
    assert 0 < low < every
    changed = [
        not np.array_equal(a, b.numpy())
        for a, b in zip(first, task.model.variables, strict=True)
    ]
    assert any(changed)


def run(name: str, out: pathlib.Path) -> verdict.Verdict:
    options = runner.Options(quick=True, emulate=True, seeds=2, out=out)
    return verdict.verdict(runner.run(small(name, steps=8), options, quiet))


@pytest.mark.slow
@pytest.mark.kernels
def test_a_sound_scaler_passes(tmp_path: pathlib.Path) -> None:
    judged = run("wide_deep", tmp_path)
    assert judged.passes, judged.reasons
    (held,) = results.every(tmp_path)
    assert verdict.verdict(held) == judged
    assert not list(tmp_path.glob(".checkpoints/*"))


@pytest.fixture
def constant_only(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(settings, "SETTINGS", ("float32", "constant"))
    return monkeypatch


@pytest.mark.slow
@pytest.mark.kernels
def test_a_constant_scale_of_2_to_the_minus_14_fails(
    constant_only: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Most of a ResNet's gradients are then under 2^-24, so that they vanish."""
    constant_only.setattr(settings, "CONSTANT", 2.0**-14)
    judged = run("resnet", tmp_path)
    assert any(r.startswith("constant: the gradient error") for r in judged.reasons)


@pytest.mark.slow
@pytest.mark.kernels
def test_an_unscale_that_is_left_out_fails(
    constant_only: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Adagrad hides a constant factor, so that the metric alone would not tell."""
    constant_only.setattr(gradients, "unscale", _marked_only)
    judged = run("wide_deep", tmp_path)
    # A gradient 2^10 times too large is off by 2^10 - 1 times its size; what rounding
    # adds is a few times 2^10 units of 2^-11.
    assert judged.rows[1].error == pytest.approx(settings.CONSTANT - 1, abs=16.0)
    assert any(r.startswith("constant: the gradient error") for r in judged.reasons)


def _marked_only(
    grad: object, inverse: object, placing: gradients.GradientPlacement
) -> object:
    return gradients.marked(grad, placing)


KILLED = """
import dataclasses, os, pathlib, signal, sys
import tensorflow as tf
tf.config.experimental.enable_op_determinism()
from convergence_runs import small

from convergence import checkpoints, results, runner, settings

out, point = pathlib.Path(sys.argv[1]), sys.argv[2]
settings.SETTINGS = ("float32", "dynamic")

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def tell(setting, seed, steps, step):
    if point == "step" and (setting, seed, step) == ("dynamic", 1, 31):
        kill()

if point == "checkpoint":  # half of it written
    saved = checkpoints.np.savez
    def savez(file, **values):
        if "-dynamic-1" in file.name and '"step": 36' in str(values["told"]):
            file.write(b"PK")
            file.flush()
            kill()
        saved(file, **values)
    checkpoints.np.savez = savez
options = runner.Options(
    quick=True, emulate=True, seeds=2, out=out, resume="resume" in sys.argv
)
runner.run(small("wide_deep", 40), options, tell)
if "resume" in sys.argv:  # once more, from the beginning
    options = dataclasses.replace(options, resume=False, out=out / "again")
    runner.run(small("wide_deep", 40), options, tell)
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
def test_a_run_killed_at_any_point_resumes_to_the_same_bits(
    tmp_path: pathlib.Path,
) -> None:
    """Killed between checkpoints, then in the midst of writing one, then left alone.

    The last process then does the whole run once more.
    """
    broken, whole = tmp_path, tmp_path / "again"
    assert python(KILLED, broken, "step") == -signal.SIGKILL
    (checkpoint,) = broken.glob(".checkpoints/*-dynamic-*.npz")
    assert python(KILLED, broken, "checkpoint", "resume") == -signal.SIGKILL
    assert [checkpoint] == list(broken.glob(".checkpoints/[!.]*"))
    assert python(KILLED, broken, "never", "resume") == 0
    assert _only(broken) == _only(whole)


def _only(out: pathlib.Path) -> bytes:
    (path,) = out.glob("*.json")
    return path.read_bytes()


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


def test_results_of_another_machine_are_not_gone_on_with(
    tmp_path: pathlib.Path,
) -> None:
    family = FAMILIES["resnet"]
    make: Callable[[], dict[str, object]] = lambda: results.head(  # noqa: E731
        family, family.quick, data="digits", dtype="float16", emulated=True, quick=True
    )
    path = tmp_path / results.file_name(make())
    results.write(path, make() | {"seeds": 3})
    assert results.go_on(path, make())["seeds"] == 3
    other = make() | {"machine": {"cpu": "another"}}
    with pytest.raises(ResultError, match="another machine"):
        results.go_on(path, other)
    path.write_text("{}")
    with pytest.raises(ResultError, match="lacks entries"):
        results.go_on(path, make())


def test_settings_convert_all_and_never_fall_back() -> None:
    for name in settings.SETTINGS[1:]:
        policy = settings.policy(name, dtype="float16", emulate=True, steps=50)
        assert isinstance(policy, amp.Policy)
        assert (policy.assignment, policy.strict) == ("all", True)
        assert (policy.trial, policy.tune_budget) == (False, 0.0)
    assert settings.policy("float32", dtype="float16", emulate=True, steps=9) is None


def test_curves_are_means_of_what_is_finite() -> None:
    losses = np.arange(600.0)[:, None].repeat(2, 1)
    losses[:10, 1] = np.nan
    losses[15, 1] = np.inf
    first, second = training.curve(losses)
    assert len(first) == training.POINTS
    assert first[:2] == [4.5, 14.5]
    assert second[0] is None
    assert second[1] == pytest.approx((145 - 15) / 9, rel=1e-4)
