"""Files of results: one a machine, a line a run."""

from __future__ import annotations

import json

from timed_runs import results, run

from benchmarks import result_files


def test_results_have_a_line_a_run() -> None:
    for runs in ([], [run()], [run(), run("amp")]):
        text = result_files.as_json(results(*runs))
        assert json.loads(text) == results(*runs)
        assert sum('"seconds": 1.0' in line for line in text.splitlines()) == len(runs)


def test_two_machines_write_two_files() -> None:
    one, other = results(), results()
    other["machine"]["gpu"] = "NVIDIA H200"
    names = [result_files.default_output(r, quick=False).name for r in (one, other)]
    assert names == ["a_cpu_2_cores_bfloat16.json", "nvidia_h200_bfloat16.json"]
    assert "results" not in result_files.default_output(one, quick=True).parts
