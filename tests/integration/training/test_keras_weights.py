"""The loss scale goes along in Keras' files, which need no plugin to be read.

The last test kills a job in the middle of an epoch; `BackupAndRestore` takes it up.
"""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest
from keras.src.saving import saving_lib

import amp
from amp.errors import CheckpointError
from amp.integration.training import gradient_sources
from amp.loss_scaling import DynamicLossScale, state

ROOT = pathlib.Path(__file__).parents[3]
JOB = pathlib.Path(__file__).parents[2] / "support" / "killed_job.py"
RULE = DynamicLossScale(initial=8.0, growth_interval=3)
TRAINED = [[16.0, 1.0, 0.0, 0.0]]  # four finite steps: one growth, one towards the next
NEXT = [[16.0, 2.0, 0.0, 0.0]]
X = np.linspace(0, 1, 32, dtype=np.float32).reshape(8, 4)
FILES = {
    "weights.weights.h5": {},
    "whole.keras": {},
}
if "max_shard_size" in inspect.signature(keras.Model.save_weights).parameters:
    FILES["shards.weights.json"] = {"max_shard_size": 2e-7}  # GiB: 214 bytes


@pytest.fixture(autouse=True)
def scaling():
    amp.enable(dtype="float16", emulate=True, loss_scale=RULE)


def model():
    layers = [keras.Input([4]), keras.layers.Dense(8), keras.layers.Dense(1)]
    made = keras.Sequential(layers)
    made.compile(keras.optimizers.Adam(), "mse")
    made.optimizer.build(made.trainable_variables)
    return made


def fit(made, steps):
    made.fit(X, X[:, :1], batch_size=8, epochs=steps, verbose=0)
    return made


def kept(made):
    found = [gradient_sources.variable(v) for v in made.trainable_variables]
    return state.kept(found).tolist()


def save(made, path, options):
    saves = made.save if path.suffix == ".keras" else made.save_weights
    saves(path, **options)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the files of one trained model."""
    with amp.mixed_precision_scope(dtype="float16", emulate=True, loss_scale=RULE):
        trained = fit(model(), 4)
    assert kept(trained) == TRAINED
    folder = tmp_path_factory.mktemp("files")
    for name, options in FILES.items():
        save(trained, folder / name, options)
    return folder


@pytest.fixture(params=FILES)
def file(request, place):
    return place / request.param


@pytest.fixture
def weights(place, tmp_path):
    """A file of weights to be changed."""
    return shutil.copy(place / "weights.weights.h5", tmp_path)


def test_a_model_takes_the_scale_up_when_it_trains(file):
    restored = model()
    restored.load_weights(file)
    assert kept(fit(restored, 1)) == NEXT


def test_a_model_that_has_trained_goes_back(file):
    trained = fit(model(), 2)
    trained.load_weights(file)
    assert kept(trained) == TRAINED
    assert kept(fit(trained, 1)) == NEXT


def test_a_whole_model_takes_the_scale_up(place):
    restored = keras.saving.load_model(place / "whole.keras")
    assert kept(fit(restored, 1)) == NEXT


@pytest.mark.parametrize("weights_only", [True, False])
def test_checkpoints_of_fit_take_the_scale_along(weights_only, tmp_path):
    path = tmp_path / ("epoch.weights.h5" if weights_only else "epoch.keras")
    saves = keras.callbacks.ModelCheckpoint(path, save_weights_only=weights_only)
    made = model()
    made.fit(X, X[:, :1], batch_size=8, epochs=4, verbose=0, callbacks=[saves])
    if weights_only:
        restored = model()
        restored.load_weights(path)
    else:
        restored = keras.saving.load_model(path)
    assert kept(fit(restored, 1)) == NEXT


def test_a_scale_saved_before_it_is_taken_up_is_saved_again(file, tmp_path):
    """A job that is restarted twice before its first step."""
    restored = model()
    restored.load_weights(file)
    again = save(restored, tmp_path / "again.weights.h5", {})
    other = model()
    other.load_weights(again)
    assert kept(fit(other, 1)) == NEXT


def plain(monkeypatch):
    """Has Keras save and load as it does without the plugin."""
    for name in ("_save_state", "_load_state"):
        original = getattr(saving_lib, name)._amp_original
        monkeypatch.setattr(saving_lib, name, original)


@pytest.mark.parametrize("options", [{}, {"skip_mismatch": True}])
def test_files_are_read_without_the_plugin(file, options, monkeypatch):
    expected = model()
    expected.load_weights(file)
    plain(monkeypatch)
    restored = model()
    restored.load_weights(file, **options)
    for got, want in zip(restored.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(got, want)
    got, want = restored.optimizer.variables, expected.optimizer.variables
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(restored.optimizer.iterations.numpy()) == 4
    assert kept(fit(restored, 1)) == [[8.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize(("name", "options"), FILES.items())
def test_files_of_a_job_without_the_plugin_are_read(
    name, options, tmp_path, monkeypatch
):
    with monkeypatch.context() as without:
        plain(without)
        path = save(fit(model(), 4), tmp_path / name, options)
    restored = model()
    restored.load_weights(path)
    assert kept(fit(restored, 1)) == [[8.0, 1.0, 0.0, 0.0]]


def test_a_model_that_never_trained_adds_nothing(tmp_path):
    path = save(model(), tmp_path / "weights.weights.h5", {})
    with h5py.File(path) as content:
        assert "amp_loss_scale" not in content


def test_a_model_of_another_shape_loads_what_fits(file):
    layers = [keras.Input([4]), keras.layers.Dense(8), keras.layers.Dense(2)]
    other = keras.Sequential(layers)
    with pytest.warns(UserWarning, match="could not be loaded"):
        other.load_weights(file, skip_mismatch=True)
    other.compile(keras.optimizers.Adam(), "mse")
    assert kept(fit(other, 1)) == NEXT


def spoil(weights, value):
    """Puts a value in the place of the entry: None for a folder."""
    with h5py.File(weights, "r+") as content:
        entry = content["amp_loss_scale/vars"]
        del entry["scalers"]
        if value is None:
            entry.create_group("scalers")
        else:
            entry["scalers"] = value


DAMAGED = [np.ones([1, 3]), np.zeros([1, 4]), np.ones([]), "text", None]


@pytest.mark.parametrize("value", DAMAGED)
def test_weights_load_whatever_has_become_of_the_loss_scale(weights, value):
    """The scale goes on as it is, and one warning names the entry."""
    expected = model()
    expected.load_weights(weights)
    spoil(weights, value)
    restored = model()
    with pytest.warns(RuntimeWarning, match="read without its loss scale"):
        restored.load_weights(weights)
    for got, want in zip(restored.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(got, want)
    assert int(restored.optimizer.iterations.numpy()) == 4
    assert kept(fit(restored, 1)) == [[8.0, 1.0, 0.0, 0.0]]


def test_a_damaged_entry_leaves_a_living_scale_as_it_is(weights):
    spoil(weights, np.ones([1, 3]))
    trained = fit(model(), 4)
    with pytest.warns(RuntimeWarning, match="amp_loss_scale/scalers"):
        trained.load_weights(weights)
    assert kept(trained) == TRAINED


def test_strict_raises_a_damaged_entry_before_anything_is_loaded(weights):
    spoil(weights, np.ones([1, 3]))
    amp.enable(dtype="float16", emulate=True, loss_scale=RULE, strict=True)
    restored = model()
    before = [v.numpy() for v in restored.variables]
    with pytest.raises(CheckpointError, match="amp_loss_scale/scalers"):
        restored.load_weights(weights)
    for variable, value_before in zip(restored.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value_before)


ENABLED = {
    "AMP_ENABLE": "1",
    "AMP_DTYPE": "float16",
    "AMP_EMULATE": "1",
    "AMP_ASSIGNMENT": "all",
    # The gradient of a weight is 6 at first: float16 holds it times 2**13.
    "AMP_LOSS_SCALE": "DynamicLossScale(initial=65536.0, growth_interval=3)",
}


def start(place, *arguments):
    """Starts the job as in an environment that the package is installed in."""
    (place / "sitecustomize.py").write_text((ROOT / "tf_amp.pth").read_text())
    path = os.pathsep.join([str(place), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, str(JOB), *arguments],
        cwd=place,
        env={**os.environ, **ENABLED, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


KINDS = ("fit", "loop")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What each kind of job found at its steps: killed at step 11, and run again."""
    found = {kind: [] for kind in KINDS}
    places = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for killed_at, code in ((11, -signal.SIGKILL), (-1, 0)):
        jobs = {kind: start(places[kind], kind, str(killed_at)) for kind in KINDS}
        for kind, job in jobs.items():
            out, err = job.communicate()
            assert job.returncode == code, err
            records = [json.loads(line) for line in out.splitlines()]
            found[kind].append({record[0]: record[1:] for record in records})
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_job_goes_on_as_if_it_had_not_been(runs, kind):
    """Saved at step 8, so steps 9 to 11 come twice, and are the same bit for bit."""
    before, after = runs[kind]
    assert sorted(before) == list(range(1, 12))
    assert sorted(after) == list(range(9, 21))
    # Left out: steps 1 to 3, and 7 after the scale grew.
    assert before[8][:3] == [2.0**13, 1, 4]
    assert [after[i] for i in (9, 10, 11)] == [before[i] for i in (9, 10, 11)]
