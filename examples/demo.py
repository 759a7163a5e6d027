"""Trains the digits in float32 and in mixed precision and compares (`make demo`).

Only reads and shows what the runs wrote: no model, no training and no graph logic here.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

from amp.graph_rewrite import figures
from examples import demo_page, demo_prediction
from examples.demo_runs import Machine, look, train

EPOCHS = 5
_NO_GAIN = 1.01  # a smaller ratio is within what such a short run can tell


def training_report(directory: pathlib.Path) -> tuple[dict[str, Any], str]:
    """Returns the report of the training step, the largest function, and its page."""
    reports = {
        path: json.loads(path.read_text(encoding="utf-8"))
        for path in directory.glob("*.json")
    }
    if not reports:
        sys.exit(
            f"demo: no report in {directory}, so the mixed run rewrote nothing."
            "\nEither tf-amp is not installed for this Python (`make demo` does that, "
            "or `pip install -e .`), or a warning above says why."
        )
    path = max(reports, key=lambda path: reports[path]["nodes_total"])
    return reports[path], path.with_suffix(".html").read_text(encoding="utf-8")


def compare(
    machine: Machine, runs: dict[str, dict[str, Any]], report: dict[str, Any]
) -> dict[str, Any]:
    """Returns what `result.json` holds, but for the texts."""
    measured = {
        name: {
            "step_ms": run["step_ms"],
            "accuracy": run["val_accuracy"][-1],
            "peak_mib": run["peak_mib"],
        }
        for name, run in runs.items()
    }
    names = ("nodes_total", "nodes_low", "casts", "loss_scale", "trial", "function")
    names += ("verdict",)
    return {
        "device": machine.device,
        "dtype": report["dtype"],
        "emulated": bool(report["emulated"]),
        "capable": not machine.environment,
        "speedup": runs["float32"]["step_ms"] / runs["mixed"]["step_ms"],
        **measured,
        **{name: report[name] for name in names},
        **{name: runs["float32"][name] for name in ("epochs", "seed", "batch_size")},
        "versions": runs["float32"]["versions"],
        "runs": runs,
    }


def told(result: dict[str, Any]) -> str:
    """Says in plain words what the figures mean."""
    if not result["capable"]:
        return (
            f"This machine ({result['device']}) computes in float32 only, so nothing "
            "can get faster here: tf-amp would leave the job as it is. To show what "
            "mixed precision does to a training, every value that would be in 16 bits "
            "was rounded to them. Compare the curves and the accuracy; the times of "
            "such a run mean nothing."
        )
    if result["emulated"]:
        return (
            "AMP_EMULATE is set: values are rounded to 16 bits in float32's kernels. "
            "Compare the curves and the accuracy; the times of such a run mean nothing."
        )
    gain = figures.gain(result["speedup"], 1.0)
    if result["verdict"].startswith("rewritten in float32"):
        return (
            "16 bits gain nothing here. The training step runs in float32, in faster "
            f"kernels than the program's own, and is {gain}."
        )
    if not result["nodes_low"]:
        return (
            "tf-amp tried 16 bits in the first steps, found float32 to be the fastest "
            f"here, and went back to it. Steps of the two runs: {gain}."
        )
    if result["speedup"] >= _NO_GAIN:
        right = [f"{result[run]['accuracy']:.1%}" for run in ("mixed", "float32")]
        return (
            f"In mixed precision a training step is {gain}, and {right[0]} of the test "
            f"digits are recognised; in float32 {right[1]} are."
        )
    return (
        f"No gain here: a training step is {gain}. Small kernels on a CPU, or another "
        "load on the machine, can have this effect; the steps below show both."
    )


def table(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns rows of label, float32 and mixed; the first row is the head."""
    a, b = result["float32"], result["mixed"]
    suffix = ", emulated" if result["emulated"] else ""
    gain = figures.gain(a["step_ms"], b["step_ms"])
    return [
        ("", "float32", f"mixed ({result['dtype']}{suffix})"),
        ("ms per step", f"{a['step_ms']:.1f}", f"{b['step_ms']:.1f}"),
        ("a step is", "", "not faster: emulated" if result["emulated"] else gain),
        ("peak memory, MiB", f"{a['peak_mib']:.0f}", f"{b['peak_mib']:.0f}"),
        ("test accuracy", f"{a['accuracy']:.2%}", f"{b['accuracy']:.2%}"),
        ("nodes in 16 bits", "0", f"{result['nodes_low']} of {result['nodes_total']}"),
        ("casts", "0", str(result["casts"])),
        ("loss scale", "none", str(result["loss_scale"])),
    ]


def memory(result: dict[str, Any]) -> str:
    """Says what the peaks of memory contain."""
    before = "The pale part was there before the first step."
    if result["emulated"]:
        return f"{before} Emulation holds float32, so it saves no memory."
    return (
        f"{before} To find the fastest plan, the mixed run keeps float32's step beside "
        "others at first, and its peak contains them."
    )


def notes(result: dict[str, Any]) -> list[str]:
    """Returns the sentences below the table."""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    job = f"WRN-8-4, digits at 16×16, {result['epochs']} epochs"
    return [
        f"device: {result['device']}",
        f"{job}, batch {result['batch_size']}, seed {result['seed']}, {versions}",
        f"nodes and casts are those of the training step; its race: {result['trial']}",
    ]


def print_table(rows: list[tuple[str, str, str]], lines: list[str]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    print()
    for index, (label, *cells) in enumerate(rows):
        texts = [label.ljust(widths[0])]
        texts += [c.rjust(w) for c, w in zip(cells, widths[1:], strict=True)]
        print("   ".join(texts).rstrip())
        if index == 0:
            print("-" * (sum(widths) + 6))
    print("\n" + "\n".join(lines))


def write(path: pathlib.Path, text: str) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def show(out: pathlib.Path, result: dict[str, Any], report_page: str) -> None:
    """Writes the result and the page, and prints the table."""
    result |= {"told": told(result), "memory": memory(result), "notes": notes(result)}
    result["warning"] = bool(result["emulated"]) or result["speedup"] < _NO_GAIN
    rows = table(result)
    write(out / "result.json", json.dumps(result, indent=1) + "\n")
    write(out / "report.html", demo_page.page(result, rows, report_page))
    print_table(rows, [result["told"], "", *result["notes"]])
    print(f"\nwrote {out}/result.json and {out}/report.html")


def new_reports(out: pathlib.Path) -> pathlib.Path:
    """Makes the directory of this run's reports; what is in `out` may be the user's."""
    out.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(tempfile.mkdtemp(prefix="reports-", dir=out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default="build/demo")
    args = parser.parse_args()
    begin = time.monotonic()
    args.out = args.out.resolve()
    args.reports = new_reports(args.out)
    # Three processes may have the same GPU; none of them may take all of its memory.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        print("looking at the device ...", flush=True)
        machine = pool.submit(look).result()
        print(f"{machine.device}: {machine.reason}", flush=True)
        if machine.missed:
            print(machine.missed, flush=True)
        elsewhere = pool.submit(demo_prediction.predict)
        runs = train(args, machine)
        report, report_page = training_report(args.reports)
        result = compare(machine, runs, report)
        result["elsewhere"] = elsewhere.result()
    show(args.out, result, report_page)
    print(f"in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
