"""The demo's table, page and turns, on made-up runs; its script knows no amp."""

from __future__ import annotations

import ast
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import types
from typing import Any

import pytest
import tensorflow as tf
from demo_results import FAR, FORCED, MACHINE, REPORT, RUN, RUNS, result
from report_pages import large_report

from amp.integration.doctor import machine
from examples import demo, demo_charts, demo_page, demo_prediction, demo_runs

EXAMPLES = pathlib.Path(demo.__file__).parent


def shown(place: pathlib.Path, found: dict[str, Any]) -> str:
    """The page that the demo writes of a result."""
    demo.show(place, found, large_report(40).to_html())
    return (place / "report.html").read_text(encoding="utf-8")


def text_of(page: str) -> str:
    part = page[page.index('<section id="demo"') : page.index("<header>")]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", part))


def test_training_script_imports_no_amp() -> None:
    source = (EXAMPLES / "train_digits.py").read_text(encoding="utf-8")
    nodes = ast.walk(ast.parse(source))
    imports = [n for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert imports
    assert not [n for n in imports if re.search(r"\bamp\b", ast.unparse(n))]


def test_result_has_the_keys_that_are_promised() -> None:
    found = result()
    assert found["speedup"] == pytest.approx(1.5)
    assert found["mixed"] == {"step_ms": 20.0, "accuracy": 0.96, "peak_mib": 900.0}
    assert {"device", "dtype", "emulated", "float32", *REPORT} <= {*found}
    assert json.loads(json.dumps(found))["runs"]["float32"] == RUN


def test_a_gain_is_called_one() -> None:
    rows = dict(row[::2] for row in demo.table(result()))
    assert rows["a step is"] == "1.50x faster"
    assert rows["nodes in 16 bits"] == "600 of 2000"
    assert "a training step is 1.50x faster" in demo.told(result())


def test_a_loss_is_never_called_a_gain(tmp_path: pathlib.Path) -> None:
    slower = result(ms=37.8)
    page = shown(tmp_path, slower)
    assert "No gain here: a training step is 1.26x slower" in text_of(page)
    assert '<b class="gain">' not in page
    assert 'class="told warning"' in page
    assert "faster" not in demo.told(slower)
    assert dict(row[::2] for row in demo.table(slower))["a step is"] == "1.26x slower"


def test_where_float32_won_the_race_the_page_says_so() -> None:
    verdict = "left in float32: predicted 1.31x faster, measured 1.03x slower"
    assert "went back to it" in demo.told(result(nodes_low=0, verdict=verdict, ms=30.0))


def test_where_float32_with_other_kernels_won_the_page_says_so() -> None:
    verdict = "rewritten in float32, predicted 1.80x faster, measured 1.57x faster"
    told = demo.told(result(nodes_low=0, verdict=verdict, ms=20.0))
    assert "16 bits gain nothing here" in told
    assert "is 1.50x faster" in told
    assert "went back" not in told


def test_without_16_bit_arithmetic_the_page_says_what_is_seen_and_no_time(
    tmp_path: pathlib.Path,
) -> None:
    found = result(FORCED, ms=60.0, emulated=True)
    text = text_of(shown(tmp_path, found))
    assert "computes in float32 only" in text
    assert "Compare the curves and the accuracy" in text
    assert "2.00x slower" not in text
    assert "AMP_ENABLE=1 AMP_EMULATE=1" in text
    assert "tries its plans" not in text  # emulated plans do not race
    assert "no gain here" in text
    assert "AMP_EMULATE is set" in demo.told({**found, "capable": True})


def test_every_figure_on_the_page_is_in_the_json(tmp_path: pathlib.Path) -> None:
    text = text_of(shown(tmp_path, result()))
    read = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    a, b, far = read["float32"], read["mixed"], read["elsewhere"]
    gain = far[0]["seconds32"] / far[0]["seconds16"]
    assert far[1]["seconds32"] / far[1]["seconds16"] == pytest.approx(3.0)
    for figure in (
        f"{a['step_ms'] / b['step_ms']:.2f}x faster",
        f"{a['step_ms']:.1f} → {b['step_ms']:.1f} ms",
        f"{b['accuracy']:.1%}",
        f"float32: {a['peak_mib']:.0f} MiB",
        "3.00x faster predicted on an NVIDIA A100, not measured",
        f"for a GPU&#x27;s load; for this step: {gain:.2f}x faster",
        "NVIDIA A100, float16: this step: small 3.00 → 1.50 2.00x faster",
        "2 longer steps, up to 1.0 s, are cut off",
        *read["notes"],
    ):
        assert figure.replace("<", "&lt;").replace(">", "&gt;") in text, figure
    again = demo_page.page(read, demo.table(read), large_report(40).to_html())
    assert again == (tmp_path / "report.html").read_text(encoding="utf-8")


def test_page_is_whole_and_escapes(tmp_path: pathlib.Path) -> None:
    page = shown(tmp_path, result())
    assert "a &lt;CPU&gt;" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    with pytest.raises(ValueError, match="the report page has no"):
        demo_page.page(result(), [], "<html></html>")


def test_a_curve_goes_through_its_values() -> None:
    axis = demo_charts.Axis(0.0, 10.0)
    line = demo_charts.Curve("a", "float32", [0.0, 10.0, 99.0])
    svg = demo_charts.curves("t", "epoch", axis, [line])
    found = re.search(r'<polyline class="float32" points="([^"]+)"', svg)
    assert found is not None
    places = [tuple(map(float, place.split(","))) for place in found[1].split()]
    bottom, top = demo_charts.BOTTOM, demo_charts.TOP
    assert [y for _, y in places] == [bottom, top, top]  # nothing leaves the plot
    assert [x for x, _ in places] == [46.0, 227.0, 408.0]
    log = demo_charts.Axis(0.01, 100.0, log=True)
    assert log.place(1.0) == pytest.approx((bottom + top) / 2)
    assert log.ticks() == pytest.approx([0.01, 0.1, 1.0, 10.0, 100.0])
    assert axis.ticks() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.slow
def test_a_prediction_is_of_a_device_that_need_not_be_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = demo_prediction.Job("a small one", batch=2, size=8, width=16)
    monkeypatch.setattr(demo_prediction, "JOBS", (job,))
    rows = demo_prediction.predict()
    assert [row["device"] for row in rows] == ["NVIDIA A100", "NVIDIA T4"]
    assert all(row["seconds32"] >= row["seconds16"] > 0 for row in rows)


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_that_is_left_out_is_told_of(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    driver = tmp_path / "version"
    if there:
        driver.touch()
    monkeypatch.setattr(machine, "_NVIDIA", (driver,))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    missed = demo_runs.look().missed
    assert missed.startswith("no GPU is used: there is a driver") == there
    assert ("make demo EXTRAS=gpu,demo" in missed) == there


def test_report_of_the_training_step_is_the_largest(tmp_path: pathlib.Path) -> None:
    for nodes in (10, 2000, 300):
        text = json.dumps({**REPORT, "nodes_total": nodes})
        (tmp_path / f"{nodes}.json").write_text(text)
        (tmp_path / f"{nodes}.html").write_text(f"page of {nodes}")
    report, page = demo.training_report(tmp_path)
    assert (report["nodes_total"], page) == (2000, "page of 2000")


def test_no_report_is_a_clear_failure(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SystemExit, match="no report in .*rewrote nothing") as e:
        demo.training_report(tmp_path)
    assert "pip install -e ." in str(e.value)


def test_the_demo_removes_nothing_that_it_did_not_make(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "reports/thesis.md"
    mine.parent.mkdir()
    mine.write_text("mine", encoding="utf-8")
    places = []

    def train(args: Any, machine: demo.Machine) -> dict[str, Any]:
        places.append(args.reports)
        (args.reports / "step.json").write_text(json.dumps(REPORT), encoding="utf-8")
        page = large_report(40).to_html()
        (args.reports / "step.html").write_text(page, encoding="utf-8")
        return RUNS

    def pool(workers: int, **_: Any) -> concurrent.futures.Executor:
        return concurrent.futures.ThreadPoolExecutor(workers)

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", pool)
    monkeypatch.setattr(demo, "look", lambda: MACHINE)
    monkeypatch.setattr(demo_prediction, "predict", lambda: [FAR])
    monkeypatch.setattr(demo, "train", train)
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path)])
    for _ in range(2):
        demo.main()
    assert mine.read_text(encoding="utf-8") == "mine"
    first, second = places
    assert first != second
    assert {first.parent, second.parent} == {tmp_path}
    assert (tmp_path / "report.html").exists()


# Takes the place of the training: what it does in its turns goes into a common file.
TURNS = """
import argparse, json, os, sys
sys.path.insert(0, {examples!r})
from train_digits import Turns
parser = argparse.ArgumentParser()
for name in ("--epochs", "--seed", "--history"):
    parser.add_argument(name)
parser.add_argument("--turns", type=int, nargs=2)
args = parser.parse_args()
turns, mixed = Turns(*args.turns), "AMP_ENABLE" in os.environ
with open({log!r}, "a", buffering=1) as log:
    for step in range(3 if mixed else 5):
        turns.on_train_batch_begin(step)
        for part in "ab":
            log.write(f"{{'mixed' if mixed else 'float32'}} {{step}}{{part}}\\n")
turns.on_train_end()
json.dump({{}}, open(args.history, "w"))
"""


def arguments(out: pathlib.Path) -> Any:
    return types.SimpleNamespace(out=out, reports=out / "reports", epochs=1, seed=0)


@pytest.mark.slow
@pytest.mark.processes
def test_the_runs_take_turns_and_the_longer_one_ends_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(TURNS.format(examples=str(EXAMPLES), log=str(log)))
    monkeypatch.setattr(demo_runs, "SCRIPT", script)
    args = arguments(tmp_path)
    assert demo_runs.train(args, MACHINE) == {"float32": {}, "mixed": {}}
    order = [f"{run} {step}" for step in range(3) for run in ("float32", "mixed")]
    order += ["float32 3", "float32 4"]
    assert log.read_text(encoding="utf-8").split("\n")[:-1] == [
        f"{o}{p}" for o in order for p in "ab"
    ]


@pytest.mark.processes
def test_a_run_that_fails_ends_the_demo(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(5)")
    monkeypatch.setattr(demo_runs, "SCRIPT", script)
    args = arguments(tmp_path)
    with pytest.raises(SystemExit, match="float32 run failed, exit code 5"):
        demo_runs.train(args, MACHINE)


@pytest.mark.processes
def test_help_tells_the_arguments() -> None:
    command = [sys.executable, "-m", "examples.demo", "--help"]
    done = subprocess.run(
        command,
        cwd=EXAMPLES.parent,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert {"--epochs", "--seed", "--out"} <= set(re.findall(r"--\w+", done.stdout))
