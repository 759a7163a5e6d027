"""The demo's table, page and report, on made-up runs; its script knows no amp."""

from __future__ import annotations

import ast
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from examples import demo

EXAMPLES = pathlib.Path(demo.__file__).parent
RUN = {
    "loss": [1.0, 0.2],
    "accuracy": [0.5, 0.9],
    "val_loss": [2.0, 0.3],
    "val_accuracy": [0.4, 0.96],
    "step_ms": 30.0,
    "peak_mib": 900.0,
    "epochs": 2,
    "seed": 0,
    "batch_size": 64,
    "versions": {"tensorflow": "2.21.0", "keras": "3.15.1"},
}
RUNS: dict[str, dict[str, Any]] = {"float32": RUN, "mixed": {**RUN, "step_ms": 20.0}}
REPORT = {
    "function": "__inference_step_7",
    "nodes_total": 2000,
    "nodes_low": 600,
    "casts": 20,
    "dtype": "bfloat16",
    "emulated": False,
    "loss_scale": "none",
}
MACHINE = demo.Machine("a <CPU>", "bfloat16", False, "it has AMX", {})
FORCED = demo.Machine("a CPU", "bfloat16", True, "it has none", {"AMP_EMULATE": "1"})


def test_training_script_imports_no_amp() -> None:
    source = (EXAMPLES / "train_digits.py").read_text()
    nodes = ast.walk(ast.parse(source))
    imports = [n for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert imports
    assert not [n for n in imports if re.search(r"\bamp\b", ast.unparse(n))]


def test_result_has_the_keys_that_are_promised() -> None:
    result = demo.compare(MACHINE, RUNS, REPORT)
    assert result["speedup"] == pytest.approx(1.5)
    assert result["mixed"] == {"step_ms": 20.0, "accuracy": 0.96, "peak_mib": 900.0}
    assert {"device", "dtype", "emulated", "float32", *REPORT} - {"function"} <= {
        *result
    }
    json.dumps(result)


def test_table_shows_speed_and_says_when_it_means_nothing() -> None:
    rows = dict(row[::2] for row in demo.table(demo.compare(MACHINE, RUNS, REPORT)))
    assert rows["speed-up"] == "1.50x"
    assert rows["nodes in 16 bits"] == "600 of 2000"
    emulated = demo.compare(FORCED, RUNS, {**REPORT, "emulated": True})
    rows = dict(row[::2] for row in demo.table(emulated))
    assert rows["speed-up"] == "1.50x (emulated, says nothing)"
    assert rows[""] == "mixed (bfloat16, emulated)"
    assert demo.notes(emulated, FORCED)[0] == (
        "emulated: this machine has no 16-bit arithmetic; times say nothing about speed"
    )


def test_page_is_whole_and_escapes() -> None:
    result = demo.compare(MACHINE, RUNS, REPORT)
    rows, lines = demo.table(result), demo.notes(result, MACHINE)
    text = demo.page(rows, lines, demo.draw(RUNS), emulated=False)
    assert "a &lt;CPU&gt;" in text
    assert "data:image/png;base64,iVBOR" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)


def test_report_of_the_training_step_is_the_largest(tmp_path: pathlib.Path) -> None:
    for nodes in (10, 2000, 300):
        text = json.dumps({**REPORT, "nodes_total": nodes})
        (tmp_path / f"{nodes}.json").write_text(text)
    assert demo.training_report(tmp_path)["nodes_total"] == 2000


def test_no_report_is_a_clear_failure(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SystemExit, match="no report in .*rewrote nothing") as e:
        demo.training_report(tmp_path)
    assert "pip install -e ." in str(e.value)


@pytest.mark.processes
def test_help_tells_the_arguments() -> None:
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--help"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert {"--epochs", "--seed", "--out"} <= set(re.findall(r"--\w+", text))
