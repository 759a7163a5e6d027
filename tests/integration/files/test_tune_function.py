"""`tune_function`: `amp.tune` and `amp tune --saved-model` measure what would run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import amp
from amp import cli
from amp.errors import PolicyError
from amp.integration.files import tune_function
from amp.integration.measuring import stored_times


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AMP_DTYPE", "bfloat16")  # what the command reads
    return tmp_path


class Model(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones([512, 512]), name="w")
        self.steps = tf.Variable(0)

    @tf.function(autograph=False)
    def step(self, x: Any) -> Any:
        self.steps.assign_add(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.relu(tf.matmul(x, self.w)) ** 2)
        self.w.assign_sub(0.01 * tape.gradient(loss, self.w))
        return loss


POLICY = amp.Policy(dtype="bfloat16")
SPEC = tf.TensorSpec([256, 512])
MODEL = Model()  # a method's function holds its object weakly


def test_a_function_is_traced_measured_and_not_run() -> None:
    model = Model()
    tuned = amp.tune(model.step, SPEC, seconds=30.0, policy=POLICY)
    assert model.steps.numpy() == 0
    keys = {one.key: one.seconds for one in tuned.operations}
    product = "MatMul *256x512 *512x512 | bfloat16 kernels"
    assert keys[product] == stored_times.load()[product]
    assert str(stored_times.path()) == tuned.file
    lines = str(tuned).splitlines()
    assert lines[1].split() == ["operation", "runs", "float32", "bfloat16", "gain"]
    assert any(line.startswith("MatMul *256x512 *512x512 ") for line in lines)
    report = amp.explain(MODEL.step, SPEC, policy=POLICY)
    assert report.measured_share > 0.5


def test_where_auto_comes_to_nothing_the_usual_type_is_measured() -> None:
    tuned = amp.tune(MODEL.step, SPEC, seconds=0.5)
    usual = {"CPU": "bfloat16", "GPU": "float16"}[amp.device().kind]
    native = amp.device().native
    assert tuned.dtype == (native[0] if native else usual)


def test_what_was_never_measured_comes_first(monkeypatch: Any) -> None:
    given: list[str] = []

    def note(wanted: Any, seconds: float, progress: Any) -> Iterator[Any]:
        given[:] = [one.key for one in wanted]
        yield wanted[0].key, (2.0, 1.0)

    monkeypatch.setattr(tune_function.operation_timer, "measure", note)
    amp.tune(MODEL.step, SPEC, policy=POLICY)
    first = given[0]
    amp.tune(MODEL.step, SPEC, policy=POLICY)
    assert given[0] != first
    assert given[-1] == first


def test_the_largest_share_of_the_time_comes_first(monkeypatch: Any) -> None:
    def note(wanted: Any, seconds: float, progress: Any) -> Iterator[Any]:
        for i, one in enumerate(wanted):
            yield one.key, (float(i + 1), float("inf"))

    monkeypatch.setattr(tune_function.operation_timer, "measure", note)
    tuned = amp.tune(MODEL.step, SPEC, policy=POLICY)
    shares = [one.runs * one.seconds[0] for one in tuned.operations if one.seconds]
    assert shares == sorted(shares, reverse=True)
    assert "fails" in str(tuned)


def test_what_was_measured_before_an_interruption_is_kept(monkeypatch: Any) -> None:
    def interrupted(wanted: Any, seconds: float, progress: Any) -> Iterator[Any]:
        yield wanted[0].key, (2e-3, 1e-3)
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_function.operation_timer, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        amp.tune(MODEL.step, SPEC, policy=POLICY)
    assert list(stored_times.load().values()) == [(2e-3, 1e-3)]


def test_there_has_to_be_time_and_a_function() -> None:
    with pytest.raises(PolicyError, match="no time to measure in"):
        amp.tune(MODEL.step, SPEC, policy=POLICY, seconds=0.0)
    with pytest.raises(PolicyError, match="a int was given"):
        amp.tune(3)


def test_a_saved_model_is_measured_and_not_run(cache: Path, capsys: Any) -> None:
    model = Model()
    path = str(cache / "saved")
    step = model.step.get_concrete_function(SPEC)
    tf.saved_model.save(model, path, signatures={"train": step})
    assert cli.main(["tune", "--saved-model", path, "--seconds", "20"]) == 0
    told = capsys.readouterr().out
    assert "MatMul *256x512 *512x512 " in told
    assert f"kept in {stored_times.path()}" in told
    assert model.steps.numpy() == 0
    report = amp.explain(MODEL.step, SPEC, policy=POLICY)
    assert report.measured_share > 0.5, "the file's keys are not those of the job"


def test_what_is_no_saved_model_is_an_error(cache: Path, capsys: Any) -> None:
    assert cli.main(["tune", "--saved-model", str(cache / "none")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    with pytest.raises(PolicyError, match="--seconds"):
        tune_function.tune_graph(
            tf.Graph().as_graph_def(), 0.0, tune_function.operation_timer.untold
        )
    with pytest.raises(PolicyError, match="matches no node"):
        amp.tune(tf.function(lambda x: x), SPEC, policy=amp.Policy(keep=("no/such",)))
