"""`workers`: families side by side, as one alone; an end from outside ends all."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures

import pytest
import thorough
import tiny_family
from convergence_runs import made_up, ready, small

from convergence import __main__, families, results, runner, settings, workers
from convergence.errors import DataError
from convergence.failures import FamilyError
from convergence.families import FAMILIES, Family

ROOT = pathlib.Path(__file__).parents[2]
SUITE = ROOT / "tests" / "support" / "small_suite.py"
NAMES = ("wide_deep", "tiny")


def command(out: pathlib.Path, *options: str) -> list[str]:
    run = [str(SUITE), "run", *NAMES, "--quick", "--emulate", "--seeds", "1"]
    run += ["--margins", str(out / "frozen" / "margins.json")]
    return [sys.executable, *run, "--results", str(out), *options]


def children(pid: int) -> list[int]:
    """The living processes that one began, and those that they began."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            own, rest = stat.read_text().split(" (", 1)
        except OSError:
            continue
        state, parent = rest.rpartition(") ")[2].split()[:2]
        if int(parent) == pid and state != "Z":
            found += [int(own), *children(int(own))]
    return found


def alive(pid: int) -> bool:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(") ")[2][0] != "Z"


def until(said: str, holds: object) -> None:
    end = time.monotonic() + 120
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, said
        time.sleep(0.1)


@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="looks at /proc")
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.processes
def test_killed_families_end_with_their_parent_and_are_taken_up(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for family in (small("wide_deep", 40), tiny_family.install(monkeypatch)):
        ready(family, tmp_path)
    with subprocess.Popen(command(tmp_path), cwd=ROOT) as run:
        until("a first result", lambda: any(r["runs"] for r in results.every(tmp_path)))
        begun = children(run.pid)
        run.send_signal(signal.SIGKILL)
    assert len(begun) >= len(NAMES)
    until("an end of all processes", lambda: not any(map(alive, begun)))
    before = [run for result in results.every(tmp_path) for run in result["runs"]]
    subprocess.run(command(tmp_path, "--resume"), cwd=ROOT, check=False)
    held = results.every(tmp_path)
    assert {result["family"] for result in held} == set(NAMES)
    for result in held:
        assert [run["setting"] for run in result["runs"]] == list(settings.SETTINGS)
    assert all(run in [r for h in held for r in h["runs"]] for run in before)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.processes
def test_what_a_family_raises_is_raised(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # one process, for both
    options = {"quick": True, "data": tmp_path / "nowhere", "out": tmp_path}
    with pytest.raises(DataError, match="no such directory"):
        list(workers.run(("wide_deep", "resnet"), options, lambda *told: None))
    assert not multiprocessing.active_children()


def test_a_family_that_fails_is_named_and_others_go_on(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads instead of processes, which would not see what is planted here."""

    def run(family: Family, *_: object) -> dict[str, str]:
        if family.name != "resnet":
            raise ValueError(f"no such thing as {family.name}\nmore")
        return {"family": family.name}

    monkeypatch.setattr(runner, "run", run)
    pool = futures.ThreadPoolExecutor
    monkeypatch.setattr(workers, "_pool", lambda count, *_, **__: pool(count))
    told = workers.run(("ssd", "bert", "resnet"), {}, lambda *told: None)
    found: list[object] = []
    with pytest.raises(FamilyError) as raised:
        found.extend(told)
    assert found == [{"family": "resnet"}]
    assert set(raised.value.where.split("; ")) == {"ssd", "bert"}
    assert "ValueError: no such thing as ssd;" in raised.value.found + ";"


def test_the_families_with_most_steps_begin_first(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No long one is left alone at the end, with the other cores idle."""
    asked: list[str] = []

    def run(names: list[str], *_: object) -> list[dict[str, object]]:
        asked[:] = names
        return []

    monkeypatch.setattr(workers, "run", run)
    monkeypatch.setattr(__main__, "FROZEN_BY", sys.version_info[:2])  # nothing is run
    for length, size in (("--quick", "quick"), ("--full", "full")):
        command = ["run", "all", length, "--results", str(tmp_path)]
        assert __main__.main(command) == 0
        assert sorted(asked) == sorted(FAMILIES)
        steps = [
            getattr(FAMILIES[name], size).steps
            * families.seeds(name, "float16", FAMILIES[name].seeds)
            for name in asked
        ]
        assert steps == sorted(steps, reverse=True)
    __main__.main(["reach", "all", "--results", str(tmp_path)])
    assert sorted(asked) == sorted(families.GOALS)


def test_what_a_run_raises_names_family_setting_and_seed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trainer:
        def __init__(self, *_: object) -> None:
            pass

        def run(self, *_: object) -> None:
            raise KeyError("scale")

    family = tiny_family.install(monkeypatch)
    monkeypatch.setattr(runner, "Trainer", Trainer)
    frozen = ready(family, tmp_path)
    options = runner.Options(quick=True, emulate=True, out=tmp_path, frozen=frozen)
    with pytest.raises(FamilyError, match="KeyError: 'scale'") as raised:
        runner.run(family, options, lambda *_: None)
    assert raised.value.where == "tiny, float32, seed 300"
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.slow
@pytest.mark.processes
def test_results_are_planned_in_processes_that_begin_when_asked(
    tmp_path: pathlib.Path,
) -> None:
    """Data that is nowhere has no plan; a family that is nowhere is an error."""
    with workers.replanning((tmp_path,)) as replan:
        assert not multiprocessing.active_children()
        assert replan(made_up() | {"data": "another"}) is None
        assert len(multiprocessing.active_children()) == 1
        with pytest.raises(KeyError, match="nobody"):
            replan(made_up() | {"family": "nobody"})
    assert not multiprocessing.active_children()


THREADS = """
from convergence import workers
workers.deterministic(single=True)
import threadpoolctl
found = threadpoolctl.threadpool_info()
print(*(held["num_threads"] for held in found if held["user_api"] == "blas"))
"""


@pytest.mark.slow
@pytest.mark.processes
def test_products_of_numpy_have_one_thread() -> None:
    """Two families on two cores waited for each other's."""
    told = subprocess.run(
        [sys.executable, "-c", THREADS],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(told.stdout.split()) == {"1"}


ORDERS = """
import graphlib, sys
from convergence import workers
workers.deterministic(single=True)
import tensorflow as tf
from tensorflow.python.eager import context
from convergence_runs import small
from convergence import steps
from convergence.tasks import progressive_gan

if sys.argv[1] == "planted":
    tf.config.optimizer.set_experimental_options({"dependency_optimization": True})
size = small("progressive_gan", 8, channels=(8, 8)).quick
task = progressive_gan.make(progressive_gan.load(size, None), size)
step = steps.Step(task, None)
context.context().enable_run_metadata()
step(0, steps.tensors(task.batch(300, 0)))
graphs = context.context().export_run_metadata().function_graphs
kept = max((g.post_optimization_graph for g in graphs), key=lambda g: len(g.node))
by_name = {node.name: node for node in kept.node}
reads = {n.name: [e.lstrip("^").split(":")[0] for e in n.input] for n in kept.node}
before = {}
for name in graphlib.TopologicalSorter(reads).static_order():
    before[name] = set(reads[name]).union(*(before[other] for other in reads[name]))
users = {}
for node in kept.node:
    if node.op == "ReadVariableOp" or node.op.startswith("Assign"):
        place = node.input[0].split(":")[0]
        while by_name[place].op == "Identity":
            place = reads[place][0]
        users.setdefault(place, []).append(node)
loose = [
    (write.name, other.name)
    for found in users.values()
    for write in found
    if write.op.startswith("Assign")
    for other in found
    if other is not write
    and write.name not in before[other.name]
    and other.name not in before[write.name]
]
print(sum(map(len, users.values())), len(loose))
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("how", thorough.but(("as it is",), ("as it is", "planted")))
def test_of_a_step_every_update_stays_before_or_after_each_read(how: str) -> None:
    """In the graph that runs; TensorFlow's dependency optimizer loses two such orders.

    Results then differ between processes: a read takes its variable from before or
    after the update as chance has it.
    """
    done = subprocess.run(
        [sys.executable, "-c", ORDERS, how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests/support"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    users, loose = map(int, done.stdout.split())
    assert users > 100
    if how == "planted" and loose == 0:
        pytest.skip("this TensorFlow keeps the orders: the option is not needed")
    assert (loose > 0) == (how == "planted")


def test_families_do_not_wait_for_progress_that_cannot_be_printed() -> None:
    """As where stderr is a pipe that somebody has closed."""
    told, broken = workers.SPAWN.SimpleQueue(), list[Exception]()

    def tell(*words: object) -> None:
        raise BrokenPipeError("nobody listens")

    heard = threading.Thread(target=workers._listen, args=(told, tell, broken))
    heard.start()
    for step in range(5000):  # more than a pipe holds
        told.put(("resnet", "float32", 300, 5000, step))
    told.put(None)
    heard.join(60)
    assert not heard.is_alive()
    assert [str(e) for e in broken] == ["nobody listens"]
