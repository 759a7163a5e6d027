"""One timed run: what it measures, what it says, and that its step is a fair one."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled

import amp
from amp.integration.functions import function_hooks
from amp.integration.measuring import job_timer
from benchmarks import bench_models, summary, worker
from models import mlp, wide_deep
from tests.integration.measuring.test_operation_timer import made

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch):
    """Switches of Keras and TensorFlow are as before afterwards."""
    policy = keras.mixed_precision.global_policy()
    options = tf.config.optimizer.get_experimental_options()
    yield
    keras.mixed_precision.set_global_policy(policy)
    off = dict.fromkeys(tf.config.optimizer.get_experimental_options(), False)
    tf.config.optimizer.set_experimental_options({**off, **options})


def arguments(**changed: object) -> argparse.Namespace:
    chosen = {"case": "mlp", "mode": "float32", "executor": "kernels"}
    chosen |= {"dtype": "bfloat16", "seconds": 0.01, "quick": True}
    chosen |= {"batch_factor": 1, **changed}
    return argparse.Namespace(**chosen)


def test_a_run_is_whole_and_goes_through_json() -> None:
    found = worker.measure(arguments())
    assert json.loads(json.dumps(found)) == found
    low, high = found["quartiles"]
    assert 0 < low <= found["seconds"] <= high
    assert found["steps"] >= worker.LEAST_STEPS
    assert found["first_step_seconds"] > found["seconds"]
    assert found["loss_last"] < found["loss_first"]
    assert "verdict" not in found


def test_the_batch_is_as_many_times_larger_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, example_batch = [], worker.example_batch

    def noted(module: object, batch: int, sizes: dict[str, object]) -> object:
        seen.append(batch)
        return example_batch(module, batch, sizes)

    monkeypatch.setattr(worker, "example_batch", noted)
    for factor in (1, 3):
        worker.measure(arguments(batch_factor=factor))
    assert seen[1] == 3 * seen[0]


@pytest.mark.parametrize("executor", summary.EXECUTORS)
def test_the_step_returns_the_loss_before_and_updates_every_weight(
    executor: str,
) -> None:
    keras.utils.set_random_seed(0)
    model = mlp.build()
    x, y = map(tf.constant, mlp.example_batch(8, seed=0))
    before = [np.array(v) for v in model.trainable_variables]
    loss = float(mlp.LOSS()(y, model(x)))
    case = bench_models.CASES["mlp"]
    optimizer = worker.made_optimizer(case, "float32", "bfloat16")
    step = worker.training_step(model, mlp.LOSS(), optimizer, executor == "xla")
    assert float(step(x, y)) == pytest.approx(loss, rel=1e-5)
    for old, new in zip(before, model.trainable_variables, strict=True):
        assert (old != np.asarray(new)).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_keras_policy_is_set_before_the_model_is_built(restored, dtype: str) -> None:
    worker.prepare("keras", dtype)
    model = mlp.build()
    assert model.layers[1].compute_dtype == dtype
    assert model.layers[1].variable_dtype == "float32"


def test_grappler_is_switched_on_for_the_type(restored) -> None:
    worker.prepare("grappler", "bfloat16")
    options = tf.config.optimizer.get_experimental_options()
    assert options["auto_mixed_precision_onednn_bfloat16"]
    assert not options.get("auto_mixed_precision")


def test_float32_and_the_plugin_switch_nothing_of_the_neighbours(restored) -> None:
    before = tf.config.optimizer.get_experimental_options()
    for mode in ("float32", "amp"):
        worker.prepare(mode, "bfloat16")
    assert tf.config.optimizer.get_experimental_options() == before
    assert keras.mixed_precision.global_policy().name == "float32"


def test_the_neighbours_float16_scales_its_loss_and_nothing_else_does() -> None:
    case, scaled = bench_models.CASES["mlp"], keras.optimizers.LossScaleOptimizer
    found = {
        (mode, dtype)
        for mode in summary.MODES
        for dtype in ("bfloat16", "float16")
        if isinstance(worker.made_optimizer(case, mode, dtype), scaled)
    }
    assert found == {("keras", "float16"), ("grappler", "float16")}


@pytest.mark.parametrize("name", bench_models.OPTIMIZERS)
def test_optimizers_are_made_with_their_settings(name: str) -> None:
    kind, options = bench_models.OPTIMIZERS[name]
    case = bench_models.Case("x", "mlp", {}, {}, 1, name)
    optimizer = worker.made_optimizer(case, "float32", "bfloat16")
    config = optimizer.get_config()
    assert type(optimizer).__name__ == kind
    assert {key: config[key] for key in options} == pytest.approx(options)


def test_a_batch_takes_those_sizes_that_it_knows() -> None:
    sizes = {"rows": 60, "width": 8, "fields": 3}
    (ids, numbers), labels = worker.example_batch(wide_deep, 5, sizes)
    assert (ids.shape, labels.shape) == ((5, 3), (5, 1))
    assert ids.max() < 60
    assert len(numbers) == 5


@pytest.mark.parametrize(
    ("seconds", "under_way", "calls"),
    [
        (0.0, 0, worker.WARMUP_CALLS),
        (0.0, 10, 10 + worker.WARMUP_CALLS - 1),
        (0.0, 10**6, worker.MOST_WARMUP_CALLS + worker.WARMUP_CALLS - 1),
    ],
)
def test_warming_up_goes_on_while_the_plugin_tries(
    seconds: float, under_way: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "WARMUP_SECONDS", seconds)
    done: list[None] = []
    worker.warm_up(lambda: done.append(None) or 0.0, lambda: len(done) < under_way)
    assert len(done) == calls


def test_a_race_that_begins_anew_is_waited_for() -> None:
    """As where the winner fails the check that follows its race."""
    racing = {1, 2, 3, 4, 6, 7, 8}  # calls after which one is under way
    done: list[None] = []
    run = lambda: done.append(None) or 0.0  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "WARMUP_SECONDS", 0.0)
        worker.warm_up(run, lambda: len(done) in racing)
    assert len(done) == max(racing) + worker.WARMUP_CALLS


def test_warming_up_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WARMUP_SECONDS", 0.1)
    monkeypatch.setattr(worker, "MOST_WARMUP_CALLS", 5)
    done: list[float] = []

    def run() -> float:
        time.sleep(0.005)
        done.append(0.0)
        return 0.0

    assert worker.warm_up(run, lambda: False) >= 0.1
    assert len(done) > 5


def test_slow_steps_are_timed_a_few_times_anyway() -> None:
    losses = iter(range(100))

    def run() -> float:
        time.sleep(0.02)
        return float(next(losses))

    times, last = worker.timed(run, 0.01)
    assert len(times) == worker.LEAST_STEPS
    assert min(times) >= 0.02
    assert last == worker.LEAST_STEPS - 1


@pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="the GPU's memory is counted"
)
def test_peak_memory_counts_what_was_freed() -> None:
    before = worker.memory(peak=True)
    in_use = worker.memory()
    block = np.ones((2**28 + before - in_use) // 8)
    del block
    assert worker.memory(peak=True) - before > 2**27
    assert worker.memory() - in_use < 2**27
    if worker.reset_peak():
        assert worker.memory(peak=True) - in_use < 2**27


@pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="the GPU's memory is counted"
)
def test_small_blocks_that_were_freed_do_not_count_after_a_reset() -> None:
    in_use = worker.memory()
    blocks = [np.ones(10_000) for _ in range(3_000)]
    last = np.ones(10_000)  # keeps what lies below it from being given back
    del blocks
    if worker.reset_peak():
        assert worker.memory(peak=True) - in_use < 100e6 + last.nbytes


def test_rewriting_is_timed_and_the_longest_function_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(function_hooks.Twins, "add", function_hooks.Twins.add)
    rewriting = worker._watch_rewriting()
    large, small = tf.ones([256, 256]), tf.ones([2, 2])
    policy = amp.Policy(dtype="bfloat16", emulate=True, assignment="all")
    fn = tf.function(lambda x: tf.nn.tanh(tf.matmul(x, x)))
    with amp.mixed_precision_scope(policy):
        for _ in range(2):
            fn(large)
            fn(small)
    assert len(rewriting) == 2
    found = worker.plugin(rewriting)
    assert found["rewrite_seconds"] == sum(rewriting) > 0
    longest = max(amp.reports(), key=lambda report: report.seconds32)
    assert found["verdict"] == longest.verdict
    assert found["nodes_low"] == longest.nodes_low > 0


def test_rewriting_has_no_measuring_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """A plan may be made from operations that are measured while it is made."""
    monkeypatch.delenv("AMP_TUNE_BUDGET")
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    given = settled(assignment="cost", tune_budget=20.0)
    operations = [made("Relu", (rows, 256)) for rows in (512, 256)]

    def add(twins: object) -> None:
        job_timer.measuring(given, "f")(operations)
        time.sleep(0.01)

    monkeypatch.setattr(function_hooks.Twins, "add", add)
    rewriting = worker._watch_rewriting()
    start = time.perf_counter()
    function_hooks.Twins.add(None)  # type: ignore[arg-type,call-arg]
    whole = time.perf_counter() - start
    found = worker.plugin(rewriting)
    assert found["measuring_seconds"] > 0
    assert found["rewrite_seconds"] >= 0.01
    assert found["rewrite_seconds"] + found["measuring_seconds"] <= whole


def test_only_the_plugins_own_warnings_are_kept_once_and_short() -> None:
    texts = ["amp: f runs in float32\nbecause", "other", "amp: f runs in float32\nand"]
    assert worker.own_warnings(texts) == ["amp: f runs in float32"]


def test_off_says_why() -> None:
    found = worker.plugin([])
    assert found["rewrite_seconds"] == 0
    assert found["verdict"] == amp.resolve().reason


@pytest.mark.slow
@pytest.mark.processes
def test_the_plugin_is_switched_on_by_the_environment_alone(
    tmp_path: pathlib.Path,
) -> None:
    # What site does with the .pth file, where the package may not be installed.
    (tmp_path / "sitecustomize.py").write_text(
        (ROOT / "tf_amp.pth").read_text(encoding="utf-8")
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment |= {"AMP_ENABLE": "1", "AMP_EMULATE": "1", "AMP_DTYPE": "bfloat16"}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    command = [sys.executable, "-m", "benchmarks.worker", "--case", "mlp"]
    done = subprocess.run(
        [*command, "--mode", "amp", "--quick", "--seconds", "0.01"],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nodes_low"] > 0
    assert found["warnings"] == []
    assert 0 < found["rewrite_seconds"] < found["first_step_seconds"]
    assert found["loss_last"] < found["loss_first"]


def test_a_python_without_the_plugin_is_an_error_not_a_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "amp.integration.api")
    with pytest.raises(SystemExit, match="tf-amp is not installed for this Python"):
        worker._watch_rewriting()
