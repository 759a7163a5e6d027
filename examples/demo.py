"""Trains the digits in float32 and in mixed precision and compares (`make demo`).

Runs `train_digits.py`, unchanged, twice in processes of its own: without and with
`AMP_ENABLE=1`. Only reads and shows what the runs wrote: no model, no training and no
graph logic here.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import dataclasses
import html
import io
import json
import multiprocessing
import os
import pathlib
import string
import subprocess
import sys
import time
from typing import Any

from matplotlib import figure

SCRIPT = pathlib.Path(__file__).with_name("train_digits.py")
EPOCHS = 4
EMULATED_EPOCHS = 3  # Emulation rounds every 16-bit tensor, which takes time.
NOT_CAPABLE = "this machine has no 16-bit arithmetic"


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the demo runs on, as `amp` sees it.

    Attributes:
      device: one line about the device.
      dtype: the 16-bit type that the mixed run is to use.
      emulate: whether the run rounds float32 instead of computing in 16 bits.
      reason: why, in words.
      environment: variables that the mixed run needs beyond the user's own.
    """

    device: str
    dtype: str
    emulate: bool
    reason: str
    environment: dict[str, str]


def look() -> Machine:
    """Returns the machine; call it in a process that may hold the device."""
    import amp

    device, resolved = amp.device(), amp.resolve(amp.Policy.from_env())
    if resolved.policy is None:
        forced = {"AMP_EMULATE": "1", "AMP_DTYPE": "bfloat16"}
        return Machine(device.name, "bfloat16", True, resolved.reason, forced)
    policy = resolved.policy
    return Machine(device.name, policy.dtype, policy.emulate, resolved.reason, {})


def look_in_child() -> Machine:
    """Returns the machine, leaving the device's memory to the runs to come."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(look).result()


def train(
    name: str, args: argparse.Namespace, amp_variables: dict[str, str]
) -> dict[str, Any]:
    """Trains in a process of its own and returns its history.

    Args:
      name: of the run, and of its history file.
      args: epochs, seed and out directory.
      amp_variables: all the `AMP_*` variables of that process.
    """
    history = args.out / f"{name}.json"
    history.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment |= {"PYTHONUNBUFFERED": "1", **amp_variables}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    command = [sys.executable, str(SCRIPT), "--history", str(history)]
    command += ["--epochs", str(args.epochs), "--seed", str(args.seed)]
    shown = [f"{k}={v}" for k, v in amp_variables.items()] + ["python", *command[1:]]
    print(f"\n== {name}: {' '.join(shown)}", flush=True)
    code = subprocess.run(command, env=environment).returncode
    if code or not history.exists():
        sys.exit(f"demo: the {name} run failed with exit code {code}; see above")
    return json.loads(history.read_text())


def training_report(directory: pathlib.Path) -> dict[str, Any]:
    """Returns the report of the training step: the largest function rewritten."""
    reports = [json.loads(path.read_text()) for path in directory.glob("*.json")]
    if not reports:
        sys.exit(
            f"demo: no report in {directory}, so the mixed run rewrote nothing."
            "\nEither tf-amp is not installed for this Python (`make demo` does that, "
            "or `pip install -e .`), or a warning above says why."
        )
    return max(reports, key=lambda report: report["nodes_total"])


def compare(
    machine: Machine, runs: dict[str, dict[str, Any]], report: dict[str, Any]
) -> dict[str, Any]:
    """Returns what `result.json` holds."""
    measured = {
        name: {
            "step_ms": run["step_ms"],
            "accuracy": run["val_accuracy"][-1],
            "peak_mib": run["peak_mib"],
        }
        for name, run in runs.items()
    }
    float32 = runs["float32"]
    return {
        "device": machine.device,
        "dtype": report["dtype"],
        "emulated": bool(report["emulated"]),
        "speedup": float32["step_ms"] / runs["mixed"]["step_ms"],
        **measured,
        "nodes_total": report["nodes_total"],
        "nodes_low": report["nodes_low"],
        "casts": report["casts"],
        "loss_scale": report["loss_scale"],
        "epochs": float32["epochs"],
        "seed": float32["seed"],
        "batch_size": float32["batch_size"],
        "versions": float32["versions"],
    }


def table(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns rows of label, float32 and mixed; the first row is the head."""
    a, b = result["float32"], result["mixed"]
    suffix = ", emulated" if result["emulated"] else ""
    speed = f"{result['speedup']:.2f}x"
    if result["emulated"]:
        speed += " (emulated, says nothing)"
    return [
        ("", "float32", f"mixed ({result['dtype']}{suffix})"),
        ("ms per step", f"{a['step_ms']:.1f}", f"{b['step_ms']:.1f}"),
        ("speed-up", "1.00x", speed),
        ("peak memory, MiB", f"{a['peak_mib']:.0f}", f"{b['peak_mib']:.0f}"),
        ("test accuracy", f"{a['accuracy']:.2%}", f"{b['accuracy']:.2%}"),
        ("nodes in 16 bits", "0", f"{result['nodes_low']} of {result['nodes_total']}"),
        ("casts", "0", str(result["casts"])),
        ("loss scale", "none", str(result["loss_scale"])),
    ]


def notes(result: dict[str, Any], machine: Machine) -> list[str]:
    """Returns the sentences below the table."""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    job = f"ResNet-20, digits at 32×32, {result['epochs']} epochs"
    lines = []
    if result["emulated"]:
        cause = NOT_CAPABLE if machine.environment else "AMP_EMULATE is set"
        lines = [f"emulated: {cause}; times say nothing about speed"]
    return [
        *lines,
        f"device: {result['device']}",
        f"{job}, batch {result['batch_size']}, seed {result['seed']}, {versions}",
        "nodes and casts are those of the training step",
    ]


def print_table(rows: list[tuple[str, str, str]], lines: list[str]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    print()
    for index, (label, *cells) in enumerate(rows):
        texts = [label.ljust(widths[0])]
        texts += [c.rjust(w) for c, w in zip(cells, widths[1:], strict=True)]
        print("   ".join(texts))
        if index == 0:
            print("-" * (sum(widths) + 6))
    print("\n" + "\n".join(lines))


def draw(runs: dict[str, dict[str, Any]]) -> bytes:
    """Returns loss and accuracy over epochs, side by side, as a PNG picture."""
    picture = figure.Figure(figsize=(10, 3.8), layout="constrained")
    colours = {"float32": "#1f5fa8", "mixed": "#d1661a"}
    for axes, curve in zip(picture.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for name, run in runs.items():
            epochs = range(1, len(run[curve]) + 1)
            style = {"color": colours[name], "marker": "o", "markersize": 3}
            style["linewidth"] = 3 if name == "float32" else 1.5  # Both stay visible.
            axes.plot(epochs, run[f"val_{curve}"], label=f"{name}, test", **style)
            style |= {"linestyle": "--", "alpha": 0.6}
            axes.plot(epochs, run[curve], label=f"{name}, training", **style)
        axes.set(xlabel="epoch", title=curve, xticks=list(epochs))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    picture.axes[0].set_yscale("log")
    picture.axes[1].legend(frameon=False, loc="lower right")
    png = io.BytesIO()
    picture.savefig(png, format="png", dpi=140)
    return png.getvalue()


PAGE = string.Template(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>tf-amp demo: float32 and mixed precision</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
         max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.4rem; font-weight: 600; }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
  th, td { padding: .3rem 1.2rem .3rem 0; text-align: right;
           border-bottom: 1px solid #ddd; }
  th:first-child, td:first-child { text-align: left; }
  img { width: 100%; height: auto; margin: 1rem 0; }
  p { color: #555; margin: .2rem 0; }
  p.warning { color: #8a3b00; font-weight: 600; }
</style>
<h1>ResNet-20 on handwritten digits: float32 and mixed precision</h1>
$warning
<table>
$rows
</table>
<img alt="Loss and accuracy of both runs by epoch" src="data:image/png;base64,$png">
$lines
</html>
"""
)


def page(
    rows: list[tuple[str, str, str]], lines: list[str], png: bytes, emulated: bool
) -> str:
    """Returns a page that needs no other file."""
    tags = ["th"] + ["td"] * (len(rows) - 1)
    text = "\n".join(
        "<tr>"
        + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        + "</tr>"
        for tag, row in zip(tags, rows, strict=True)
    )
    warning = f'<p class="warning">{html.escape(lines[0])}</p>' if emulated else ""
    return PAGE.substitute(
        warning=warning,
        rows=text,
        png=base64.b64encode(png).decode(),
        lines="\n".join(f"<p>{html.escape(line)}</p>" for line in lines[emulated:]),
    )


def write(path: pathlib.Path, text: str) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, help=f"default {EPOCHS}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default="build/demo")
    args = parser.parse_args()
    begin = time.monotonic()

    reports = (args.out / "reports").resolve()
    reports.mkdir(parents=True, exist_ok=True)
    for old in reports.glob("*.json"):
        old.unlink()
    print("looking at the device ...", flush=True)
    machine = look_in_child()
    print(f"{machine.device}: {machine.reason}")
    args.epochs = args.epochs or (EMULATED_EPOCHS if machine.emulate else EPOCHS)

    own = {k: v for k, v in os.environ.items() if k.startswith("AMP_")}
    own |= {"AMP_ENABLE": "1", "AMP_REPORT": str(reports), **machine.environment}
    runs = {"float32": train("float32", args, {}), "mixed": train("mixed", args, own)}

    result = compare(machine, runs, training_report(reports))
    rows, lines = table(result), notes(result, machine)
    write(args.out / "result.json", json.dumps(result, indent=2) + "\n")
    text = page(rows, lines, draw(runs), result["emulated"])
    write(args.out / "report.html", text)
    print_table(rows, lines)
    print(f"\nwrote {args.out}/result.json and {args.out}/report.html")
    print(f"in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
