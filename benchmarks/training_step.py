"""Times whole training steps in float32, by the neighbours and by this plugin.

A program anyone can run: `make bench`, or `python -m benchmarks.training_step`. Every
run is a process of its own (`worker`); within a round the modes follow one another,
case by case, and each round begins with another. Results are written after every run,
so that what was measured is kept, and a mode that fails is a line in the table. What is
timed is in `bench_models`; no model and no arithmetic here.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench_models, summary, table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
MODES = ("float32", *summary.MIXED)
EXECUTORS = ("kernels", "xla")
Key = tuple[str, str, str]  # case, executor, mode


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.report_only:
        results, output = json.loads(args.report_only.read_text()), args.report_only
        done = True
    else:
        results = begin(args)
        output = args.output or default_output(results, args.quick)
        print(f"{table.machine(results)}\nresults: {output}\n", flush=True)
        done = measure(results, args, output)
    show(results, output, args.page)
    return 0 if done else 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training_step", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    names = [*bench_models.ALL]
    add("--models", nargs="+", choices=names, metavar="MODEL", help=", ".join(names))
    text = "networks of keras.applications as well"
    add("--applications", action="store_true", help=text)
    add("--memory", action="store_true", help="the cases of peak memory as well")
    add("--modes", nargs="+", choices=MODES, default=list(MODES))
    add("--executors", nargs="+", choices=EXECUTORS, default=list(EXECUTORS))
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, help="to time steps for, a run (default: 8, quick: 1)")
    text = "the 16-bit type (default: what the plugin's auto comes to, else bfloat16)"
    add("--dtype", choices=("auto", "bfloat16", "float16"), default="auto", help=text)
    add("--quick", action="store_true", help="small sizes, which say nothing of speed")
    add("--timeout", type=float, default=1200.0, help="seconds, a run")
    add("--output", type=Path, help="JSON; a .md and a .svg are written beside it")
    add("--note", default="", help="what readers of the results must know")
    add("--report-only", type=Path, metavar="JSON", help="draw the table of results")
    add(
        "--page",
        type=Path,
        help="write the table into this page, between the results' marks",
    )
    return parser


def begin(args: argparse.Namespace) -> dict[str, Any]:
    """Asks a process of its own what the machine is; results without a run."""
    found = program("machine", [], plugin_variables(args.dtype), args.timeout)
    if "error" in found:
        sys.exit(f"the machine could not be asked: {found['error']}")
    now = datetime.datetime.now(datetime.timezone.utc)
    dtype = found["dtype"] or "bfloat16" if args.dtype == "auto" else args.dtype
    variables = plugin_variables(args.dtype)
    return {
        "machine": found,
        "settings": {
            "begun": now.isoformat(timespec="seconds"),
            "dtype": dtype,
            "rounds": args.rounds,
            "seconds": args.seconds or (1.0 if args.quick else 8.0),
            "small_sizes": args.quick,
            "note": args.note,
            "variables": {k: v for k, v in variables.items() if k != "AMP_CACHE_DIR"},
        },
        "runs": [],
    }


def plugin_variables(dtype: str) -> dict[str, str]:
    """The user's own AMP_* variables, and the type where one was asked for."""
    own = {k: v for k, v in os.environ.items() if k.startswith("AMP_")}
    own.pop("AMP_ENABLE", None)
    return own if dtype == "auto" else {**own, "AMP_DTYPE": dtype}


def measure(results: dict[str, Any], args: argparse.Namespace, output: Path) -> bool:
    """Runs every round, writing results as they come; False if it was interrupted."""
    settings = results["settings"]
    plan = list(schedule(chosen(args), args.executors, args.modes, args.rounds))
    failed: set[Key] = set()
    try:
        with _progress(len(plan)) as advance:
            for number, key in plan:
                what = f"round {number + 1}: {', '.join(key)}"
                advance(what, None)
                if key in failed:
                    advance(what, "left out, as it failed before")
                    continue
                run = program("worker", *_command(key, settings, args))
                names = dict(zip(("case", "executor", "mode"), key, strict=True))
                results["runs"].append({**names, "round": number, **run})
                write(output, as_json(results))
                failed |= {key} if "error" in run else set()
                advance(what, outcome(run))
    except KeyboardInterrupt:
        return False
    return True


def chosen(args: argparse.Namespace) -> list[str]:
    others = [*bench_models.APPLICATIONS] if args.applications else []
    memory = [*bench_models.MEMORY_CASES] if args.memory else []
    return list(dict.fromkeys([*(args.models or bench_models.CASES), *others, *memory]))


def schedule(
    cases: Sequence[str],
    executors: Sequence[str],
    modes: Sequence[str],
    rounds: int,
) -> Iterator[tuple[int, Key]]:
    """Every run with its round; each round begins with another mode."""
    for number in range(rounds):
        turn = number % len(modes)
        order = [*modes[turn:], *modes[:turn]]
        for case, executor, mode in itertools.product(cases, executors, order):
            yield number, (case, executor, mode)


def _command(
    key: Key, settings: Mapping[str, Any], args: argparse.Namespace
) -> tuple[list[str], dict[str, str], float]:
    """Arguments of a worker, its AMP_* variables, and the time it may take."""
    case, executor, mode = key
    options = ["--case", case, "--executor", executor, "--mode", mode]
    options += ["--dtype", settings["dtype"], "--seconds", str(settings["seconds"])]
    options += ["--quick"] if settings["small_sizes"] else []
    on = {"AMP_ENABLE": "1", **plugin_variables(args.dtype)} if mode == "amp" else {}
    return options, on, args.timeout


def program(
    name: str, options: list[str], variables: Mapping[str, str], timeout: float
) -> dict[str, Any]:
    """Runs a program of this directory; the JSON it prints, or {"error": why not}.

    Args:
      name: "worker" or "machine".
      options: its arguments.
      variables: all the `AMP_*` variables that it is to have.
      timeout: seconds that it may take.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment |= variables
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            errors="replace",
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {timeout:g} s"}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    if done.returncode < 0:
        return {"error": f"ended by signal {-done.returncode}"}
    return {"error": cause(done.stderr) or f"exit code {done.returncode}"}


def cause(stderr: str) -> str:
    """The error's own line, of all that a failing process said."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or [""])[-1][:300]


def outcome(run: Mapping[str, Any]) -> str:
    if "error" in run:
        return f"failed: {run['error']}"
    first, peak = run["first_step_seconds"], run["peak_bytes"] / 2**20
    return (
        f"{run['seconds'] * 1e3:.2f} ms, first step {first:.1f} s, peak {peak:.0f} MiB"
    )


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str, str | None], None]]:
    """A bar on the terminal; with an outcome, a line above it that stays."""
    from rich import console, progress

    columns = (progress.BarColumn(), progress.MofNCompleteColumn())
    text = progress.TextColumn("{task.description}")
    errors = console.Console(stderr=True, highlight=False, soft_wrap=True)
    times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    with progress.Progress(*columns, *times, text, console=errors) as bar:
        task = bar.add_task("", total=total)

        def advance(what: str, outcome: str | None) -> None:
            bar.update(task, description=what)
            if outcome is not None:
                bar.console.print(f"{what}: {outcome}", markup=False)
                bar.advance(task)

        yield advance


def default_output(results: Mapping[str, Any], quick: bool) -> Path:
    """A file of the machine, so that two machines do not share one."""
    if quick:
        return ROOT / "build/bench/quick.json"
    machine = results["machine"]
    name = machine["gpu"] or f"{machine['cpu']} {machine['cores']} cores"
    slug = re.sub(r"\W+", "_", name.lower()).strip("_")
    return RESULTS / f"{slug}_{results['settings']['dtype']}.json"


def show(results: dict[str, Any], output: Path, page: Path | None) -> None:
    """Prints the page, and writes it and its chart beside the results."""
    text = table.page(results, output.with_suffix(".svg").name)
    print(f"\n{text}")
    write(output.with_suffix(".md"), text)
    chart = table.chart(results)
    if chart:
        write(output.with_suffix(".svg"), chart)
    if page:
        old = page.read_text(encoding="utf-8")
        files = [os.path.relpath(output.with_suffix(end), page.parent)
                 for end in (".svg", ".md")]  # fmt: skip
        part = table.excerpt(results, *files)
        write(page, table.between_marks(old, part, output.stem))


def as_json(results: Mapping[str, Any]) -> str:
    """The results with one run a line."""
    head = {key: value for key, value in results.items() if key != "runs"}
    runs = ",\n".join(json.dumps(run) for run in results["runs"])
    return f'{json.dumps(head, indent=1)[:-2]},\n "runs": [\n{runs}\n ]\n}}\n'


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
