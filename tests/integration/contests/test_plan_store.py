"""`plan_store`: what one run of a job found out is there in the next."""

from __future__ import annotations

import json
import math
import os
import pathlib
import threading
import time
from typing import Any

import pytest
import tensorflow as tf
from rewriting import graph_def, matmul_chain, rewritten, settled
from tensorflow.python.eager import context as context_lib

from amp import messages
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.outcomes import RacedPlan, TrialOutcome
from amp.integration.contests import plan_store
from amp.integration.contests.plan_store import Record
from amp.integration.racing.race_log import FLOAT32
from amp.integration.racing.race_rules import USED_UP
from amp.integration.runtime import definitions

pytestmark = pytest.mark.kernels

NAME = "0123456789abcdef"
TIMES = {"MatMul": (0.1, 0.05), "Tanh": (1e-3, math.inf)}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))


def test_what_was_saved_is_there_and_the_rest_stays() -> None:
    assert plan_store.load(NAME) == Record()
    plan_store.save(NAME, winner="everything", seconds={"everything": 0.25})
    plan_store.save(NAME, accuracy={"loss": 1e-3})
    want = Record("everything", {"everything": 0.25}, {"loss": 1e-3})
    assert plan_store.load(NAME) == want


def outcome(text: str, *timed: str) -> TrialOutcome:
    plans = tuple(RacedPlan(name, None, 1.0, 6, "won") for name in timed)
    return TrialOutcome(True, 1.0, 1.0, 12, text, plans)


def test_only_a_winner_that_was_timed_against_another_is_kept() -> None:
    plan_store.keep_outcome(NAME, "cut", outcome("ended: refused", "cut"), {})
    plan_store.keep_outcome(NAME, FLOAT32, outcome("ended: refused", "cut", "all"), {})
    assert plan_store.load(NAME) == Record()
    plan_store.keep_outcome(NAME, "cut", outcome("ended: ...", "cut", FLOAT32), TIMES)
    assert plan_store.load(NAME).winner == "cut"
    assert plan_store.load(NAME).times == TIMES


def test_float32_is_not_kept_where_the_budget_decided() -> None:
    """The next run would rewrite nothing, and so never find out."""
    used_up = outcome(USED_UP, "cut", FLOAT32)
    plan_store.keep_outcome(NAME, FLOAT32, used_up, {})
    assert plan_store.load(NAME) == Record()
    plan_store.keep_outcome(NAME, "cut", used_up, {})
    assert plan_store.load(NAME).winner == "cut"


def test_float32_is_contested_in_the_2nd_4th_8th_run() -> None:
    won = outcome("ended: ...", "cut", FLOAT32)
    plan_store.keep_outcome(NAME, FLOAT32, won, {})
    contested = []
    for run in range(2, 20):
        if plan_store.next_run(NAME).contested:
            contested.append(run)
            plan_store.keep_outcome(NAME, FLOAT32, won, {})  # again
    assert contested == [2, 4, 8, 16]


def test_a_plan_that_won_is_not_contested_and_a_new_winner_counts_anew() -> None:
    won = outcome("ended: ...", "cut", FLOAT32)
    plan_store.keep_outcome(NAME, "cut", won, {})
    runs = [plan_store.next_run(NAME) for _ in range(2, 20)]
    assert not any(run.contested for run in runs)
    assert [run.runs for run in runs if run.doubted] == [4, 8, 16]
    plan_store.keep_outcome(NAME, FLOAT32, won, {})
    again = plan_store.next_run(NAME)
    assert again.contested
    assert not again.doubted


def test_what_is_known_of_one_size_is_not_used_for_another() -> None:
    def name(*shapes: tuple[int, ...] | None) -> str:
        return plan_store.at_size(NAME, shapes)

    assert name((512, 32, 3), (512,)) != name((4, 32, 3), (4,))
    assert name((64, 30)) == name((64, 60))  # sequences in buckets
    # What the trace knows is in the fingerprint.
    assert name() == name(None) == name((-1, 3)) == NAME
    assert name((0, 3)) != NAME  # an empty batch has a name as well


def test_what_has_no_winner_has_no_runs() -> None:
    assert plan_store.next_run(NAME) == Record()
    assert not plan_store.path(NAME).exists()


def test_a_race_that_has_ended_is_not_gone_on_with() -> None:
    plan_store.save(NAME, race={"plan": "a"})
    assert plan_store.load(NAME).race == {"plan": "a"}
    plan_store.keep_outcome(NAME, "cut", outcome("ended: ...", "cut", FLOAT32), {})
    assert plan_store.load(NAME).race == {}


def test_a_record_of_an_earlier_version_has_no_runs() -> None:
    plan_store.save(NAME, winner=FLOAT32)
    file = plan_store.path(NAME)
    old = json.loads(file.read_text())
    del old["runs"], old["race"]
    file.write_text(json.dumps(old))
    assert plan_store.load(NAME) == Record(FLOAT32)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_times_that_cannot_be_are_damage(seconds: float) -> None:
    """Logarithms are taken of them in the midst of the user's calls."""
    plan_store.save(NAME, winner="cut", seconds={"cut": 1.0, FLOAT32: seconds})
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert plan_store.load(NAME) == Record()


def test_a_damaged_record_counts_as_none_and_is_told() -> None:
    plan_store.save(NAME, winner="everything")
    plan_store.path(NAME).write_text("{")
    with pytest.warns(RuntimeWarning, match="is ignored") as told:
        assert plan_store.load(NAME) == Record()
    assert "do now:  remove the file" in str(told[0].message)
    assert "report this" not in str(told[0].message)


def test_a_winner_is_told_by_the_users_own_float32_of_the_earlier_run() -> None:
    report = rewritten(graph_def(matmul_chain)).report
    known = Record("cut", {"cut": 1.0, FLOAT32: 1.5, "float32, rewritten": 1.2})
    assert plan_store.as_measured(report, known).measured32 == 1.5
    told = plan_store.as_measured(report, known, "float32, rewritten")
    assert (told.measured32, told.measured16) == (1.2, 1.0)
    assert plan_store.as_measured(report, known, "not timed").measured32 == 1.5


def test_threads_that_save_at_once_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = plan_store._loaded

    def slowly(file: pathlib.Path) -> Any:
        found = loaded(file)
        time.sleep(0.05)  # long enough for the others to load the same
        return found

    monkeypatch.setattr(plan_store, "_loaded", slowly)
    want: dict[str, Any] = {"winner": "cut", "runs": 3, "tried": "times"}
    threads = [
        threading.Thread(target=plan_store.save, args=(NAME,), kwargs={field: value})
        for field, value in want.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plan_store.load(NAME) == Record(**want)


def test_a_directory_that_cannot_be_written_stops_nobody(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "plans").write_text("a file in the way")
    plan_store.save(NAME, winner="everything")
    assert plan_store.load(NAME) == Record()


@pytest.mark.parametrize("writable", [True, False])
def test_a_program_that_is_told_of_a_fault_finds_no_lock_held(
    writable: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[bool] = []

    def told(*_: Any) -> None:
        def ask() -> None:
            free.append(plan_store._LOCK.acquire(timeout=1.0))
            if free[-1]:
                plan_store._LOCK.release()

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    monkeypatch.setattr(messages, "warn_once", told)
    monkeypatch.setattr(messages, "log_once", told)
    if writable:
        plan_store.save(NAME, winner="everything")
        plan_store.path(NAME).write_text("{")
    else:
        (tmp_path / "plans").write_text("a file in the way")
    plan_store.save(NAME, winner="cut")
    assert free == [True]
    assert plan_store.load(NAME).winner == ("cut" if writable else "")


def test_what_has_no_name_is_not_kept() -> None:
    """Such as a function whose fingerprint could not be taken."""
    plan_store.keep_outcome("", "cut", outcome("won", "cut", FLOAT32))
    assert plan_store.next_run("") == Record()
    assert not plan_store.path("").exists()


def test_a_directory_that_cannot_be_listed_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stale(*_: object) -> None:
        raise OSError("stale file handle")

    monkeypatch.setattr(plan_store.Path, "glob", stale)
    plan_store.save("name", winner="cut")
    assert plan_store.load("name").winner == "cut"


def test_the_oldest_records_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_store, "MOST", 3)
    for number in range(5):
        plan_store.save(str(number), winner="float32")
        os.utime(plan_store.path(str(number)), (number, number))
    kept = {path.stem for path in plan_store.path(NAME).parent.glob("*.json")}
    assert kept == {"2", "3", "4"}


def fingerprint(size: int = 8, **policy: Any) -> str:
    """Of a new function with a product of this size; it is another one at each call."""

    @tf.function
    def fn(x: tf.Tensor) -> tf.Tensor:
        inner = tf.function(lambda x: tf.tanh(tf.matmul(x, x)))
        return tf.cond(tf.reduce_sum(x) > 0, lambda: inner(x), lambda: x)

    concrete = fn.get_concrete_function(tf.TensorSpec([size, size]))
    module = definitions.read(context_lib.context(), concrete.name.decode())
    return plan_store.fingerprint(module, settled(CPU_AMX, **policy))


def test_a_fingerprint_is_of_the_function_and_not_of_its_name() -> None:
    assert fingerprint() == fingerprint()


@pytest.mark.parametrize(
    "other",
    [{"size": 16}, {"assignment": "cost"}, {"keep": ("x",)}, {"dtype": "float16"}],
)
def test_shapes_and_policy_are_in_the_fingerprint(other: dict[str, Any]) -> None:
    assert fingerprint(**other) != fingerprint()


def test_another_package_knows_nothing_of_what_this_one_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = fingerprint()
    monkeypatch.setattr(plan_store, "_package", lambda: "another")
    assert fingerprint() != before


def test_what_changes_no_plan_is_not_in_the_fingerprint() -> None:
    assert fingerprint(strict=False, report="x", trial=False) == fingerprint()


@pytest.mark.parametrize(
    ("ready", "soon"),
    [
        ({}, False),
        ({FLOAT32: 2.0}, False),
        ({"cut": 2.0}, False),
        ({FLOAT32: 2.0, "products": 1.0}, False),  # of another winner
        ({FLOAT32: 2.0, "cut": 2.0 * plan_store.SOON}, True),
        ({FLOAT32: 2.0, "cut": 2.01 * plan_store.SOON}, False),
    ],
)
def test_a_winner_makes_the_first_step_if_it_was_seen_to_be_ready_soon(
    ready: dict[str, float], soon: bool
) -> None:
    plan_store.save(NAME, winner="cut", ready=ready)
    assert plan_store.load(NAME).soon == soon


def test_how_soon_plans_were_ready_stays_known_until_it_is_seen_anew() -> None:
    first, second = {FLOAT32: 2.0, "cut": 1.0}, {FLOAT32: 4.0, "cut": 3.0}
    won = outcome("ended: ...", "cut", FLOAT32)
    plan_store.keep_outcome(NAME, "cut", won, ready=first)
    plan_store.keep_outcome(NAME, "cut", won)
    assert plan_store.load(NAME).ready == first
    plan_store.keep_outcome(NAME, "cut", won, ready=second)
    assert plan_store.load(NAME).ready == second
    plan_store.keep_outcome(NAME, "cut", won, ready={})  # another plan of that name
    assert plan_store.load(NAME).ready == {}
