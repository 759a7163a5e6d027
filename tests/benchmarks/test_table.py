"""The page says what results hold, and docs/ those checked in."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from timed_runs import results, run

from benchmarks import bench_models, table

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = sorted((ROOT / "benchmarks/results").glob("*.json"))


def cells(text: str, first: str) -> list[str]:
    """The row of a Markdown table that begins with `first`."""
    (line,) = [
        x for x in text.splitlines() if re.match(rf"\| {re.escape(first)} +\|", x)
    ]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_shows_predicted_beside_measured() -> None:
    runs = [run(), run("keras", 0.8), run("amp", 0.5, peak_bytes=60)]
    found = cells(table.page(results(*runs), "x.svg"), "mlp")
    assert found == [
        *("mlp", "1000", "1.25 (1.25–1.25)", "–", "2.00 (2.00–2.00)"),
        *("2.00", "0.60", "4.0 → 4.0", "0.2"),
    ]


def test_what_failed_is_said_with_its_cause() -> None:
    failed = {"case": "mlp", "executor": "kernels", "mode": "keras", "round": 0}
    runs = [run(), {**failed, "error": "ValueError: no"}, run("amp", loss_last=None)]
    text = table.page(results(*runs), "x.svg")
    assert cells(text, "mlp")[2:5] == ["failed", "–", "not finite"]
    assert "* mlp, kernels, Keras policy: ValueError: no" in text
    assert "* mlp, kernels, tf-amp: the loss is not finite" in text


def test_what_the_plugin_warned_of_is_said_once() -> None:
    runs = [run(), *(run("amp", 1.0, n, warnings=["amp: no"]) for n in range(2))]
    text = table.page(results(*runs), "x.svg")
    assert text.count("* mlp, kernels, warning: amp: no") == 1


def test_a_missed_target_is_shown_as_missed() -> None:
    text = table.page(results(run(), run("amp", 0.5)), "x.svg")
    assert cells(text, "mlp over float32")[1:] == [
        *("kernels", "at least 2.5", "2.00", "missed")
    ]
    slowest = cells(text, "slowest model over float32")
    assert slowest[2:] == ["at least 0.98", "2.00 (mlp)", "met"]
    assert cells(text, "geometric mean over Grappler")[-1] == "not measured"


def test_small_sizes_meet_no_target() -> None:
    text = table.page(results(run(), run("amp", 0.1), small=True), "x.svg")
    assert cells(text, "mlp over float32")[-1] == "small sizes"
    assert "| met" not in text
    assert "small sizes" in table.machine(results(small=True))


def test_a_machine_without_16_bits_claims_nothing() -> None:
    text = table.page(results(run(), dtype=None), "x.svg")
    assert "say nothing about speed-up: mixed precision is off: no 16-bit" in text
    assert "say nothing" not in table.page(results(run()), "x.svg")


def test_the_note_of_whoever_measured_is_shown() -> None:
    for text in (
        table.page(results(run()), "x.svg"),
        table.excerpt(results(run()), "x.svg", "x.md"),
    ):
        assert "**Busy with other work.**" in text


def test_the_machine_is_named_with_versions_and_variables() -> None:
    line = table.machine(results())
    for part in ("A CPU, 2 cores (amx_bf16)", "tensorflow 2.21.0", "AMP_TRIAL=0"):
        assert part in line


def test_the_first_run_and_later_ones_have_columns_of_their_own() -> None:
    runs = []
    for number, first in enumerate((True, False)):
        runs += [run(number=number, first_run=first)]
        seen = {"peak_bytes": 150, "first_step_seconds": 8.0} if first else {}
        runs.append(run("amp", 0.5, number, first_run=first, **seen))
    text = table.page(results(*runs), "x.svg")
    assert cells(text, "model")[6:] == [
        *("peak memory, first run", "peak memory, later runs"),
        *("first step, first run, s", "first step, later runs, s", "rewriting, s"),
    ]
    assert cells(text, "mlp")[6:] == ["1.50", "1.00", "4.0 → 8.0", "4.0 → 4.0", "0.2"]
    assert "A first run begins with an empty cache" in text
    memory = [{**r, "case": "unet memory"} for r in runs]
    text = table.page(results(*memory), "x.svg")
    found = cells(text, "unet memory")[2:]
    assert found[::2] == ["1.50 (1.50–1.50)", "1.00 (1.00–1.00)"]


def test_default_cases_that_were_not_run_are_named() -> None:
    others = ", ".join(case for case in bench_models.CASES if case != "mlp")
    text = table.page(results(run()), "x.svg")
    assert f"not run: TensorFlow's kernels: {others}; XLA (jit_compile=True): all." in (
        text
    )
    every = [
        run(case=case, executor=executor)
        for case in bench_models.CASES
        for executor in table.EXECUTORS
    ]
    assert "not run" not in table.page(results(*every), "x.svg")


def test_the_commit_and_what_changes_kernels_are_named() -> None:
    found = results()
    found["machine"]["environment"] = {"OMP_NUM_THREADS": "1"}
    found["machine"]["commit"] = {"id": "0123456789", "dirty": True}
    line = table.machine(found)
    assert ", OMP_NUM_THREADS=1;" in line
    assert ", commit 0123456 with changes." in line
    found["machine"]["commit"] = None  # not from a repository
    assert "commit" not in table.machine(found)


def test_memory_has_a_table_of_its_own() -> None:
    runs = [run(case="unet memory")]
    runs.append(run("amp", case="unet memory", peak_bytes=65, steady_peak_bytes=50))
    text = table.page(results(*runs), "x.svg")
    assert cells(text, "unet memory")[2:] == ["0.65 (0.65–0.65)", "0.50 (0.50–0.50)"]
    assert "**TensorFlow's kernels**" not in text


def test_columns_are_as_wide_as_they_need() -> None:
    text = table.markdown([("a", "b"), ("long", "|")])
    assert text.splitlines() == ["| a    |  b |", "|------|---:|", "| long | \\| |"]


def test_only_what_is_between_the_marks_of_these_results_is_replaced() -> None:
    begin, end = table.marks("one")
    other = "\n".join(table.marks("other"))
    page = f"before\n{begin}\nold\n{end}\n{other}\nafter\n"
    new = table.between_marks(page, "new", "one")
    assert new == f"before\n{begin}\n\nnew\n\n{end}\n{other}\nafter\n"
    assert table.between_marks(new, "new", "one") == new
    for lacking in ("", begin, end, f"{end}{begin}", other):
        with pytest.raises(ValueError, match="the page lacks"):
            table.between_marks(lacking, "new", "one")


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_pages_and_charts_are_those_of_their_results(path: pathlib.Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    chart = path.with_suffix(".svg")
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert page == table.page(found, chart.name)
    assert chart.exists() == (chart.name in page)
    assert not chart.exists() or chart.read_text(encoding="utf-8").startswith("<?xml")
    assert {run["case"] for run in found["runs"]} <= bench_models.ALL.keys()


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_machines_stand_side_by_side(path: pathlib.Path) -> None:
    """Whatever was timed is in the comparison, and its chart in the README."""
    chart = path.with_suffix(".svg")
    if not chart.exists():  # a measurement of memory
        return
    shown_on = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")
    files = [f"../benchmarks/results/{path.stem}{end}" for end in (".svg", ".md")]
    part = table.excerpt(json.loads(path.read_text(encoding="utf-8")), *files)
    assert table.between_marks(shown_on, part, path.stem) == shown_on
    assert f"(benchmarks/results/{chart.name})" in README
