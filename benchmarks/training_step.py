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
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench_models, chart, processes, result_files, summary, table

Key = tuple[str, str, str]  # case, executor, mode


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.report_only:
        results = json.loads(args.report_only.read_text(encoding="utf-8"))
        show(results, args.report_only, args.page)
        return 0
    if args.output:
        result_files.refuse_existing(args.output, args.force)
    with tempfile.TemporaryDirectory(prefix="amp-bench-") as directory:
        cache = None if processes.given_cache() else Path(directory)
        results = begin(args, cache)
        output = args.output or result_files.default_output(results, args.quick)
        if not args.quick:
            result_files.refuse_existing(output, args.force)
        say(f"{table.machine(results)}\nresults: {output}\n")
        done = measure(results, args, output, cache)
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
    add("--modes", nargs="+", choices=summary.MODES, default=list(summary.MODES))
    add(
        "--executors",
        nargs="+",
        choices=summary.EXECUTORS,
        default=list(summary.EXECUTORS),
    )
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, help="to time steps for, a run (default: 8, quick: 1)")
    text = "the 16-bit type (default: what the plugin's auto comes to, else bfloat16)"
    add("--dtype", choices=("auto", "bfloat16", "float16"), default="auto", help=text)
    text = "times the batch of each case, which is a CPU's (default: 1)"
    add("--batch-factor", type=int, default=1, metavar="N", help=text)
    add("--quick", action="store_true", help="small sizes, which say nothing of speed")
    add("--timeout", type=float, default=1200.0, help="seconds, a run")
    text = "a .json; a .md and a .svg are written beside it"
    add("--output", type=result_files.json_file, metavar="JSON", help=text)
    add("--force", action="store_true", help="replace results that are there")
    add("--note", default="", help="what readers of the results must know")
    text = "draw the table of results"
    add("--report-only", type=result_files.json_file, metavar="JSON", help=text)
    add(
        "--page",
        type=Path,
        help="write the table into this page, between the results' marks",
    )
    return parser


def begin(args: argparse.Namespace, cache: Path | None) -> dict[str, Any]:
    """Asks a process of its own what the machine is; results without a run.

    Args:
      args: of the command line.
      cache: an empty directory, None where the user named one.
    """
    variables = processes.plugin_variables(args.dtype)
    found = processes.program(
        "machine", [], variables | processes.in_cache(cache), args.timeout
    )
    if "error" in found:
        sys.exit(f"the machine could not be asked: {found['error']}")
    now = datetime.datetime.now(datetime.timezone.utc)
    dtype = found["dtype"] or "bfloat16" if args.dtype == "auto" else args.dtype
    return {
        "machine": found,
        "settings": {
            "begun": now.isoformat(timespec="seconds"),
            "dtype": dtype,
            "rounds": args.rounds,
            "seconds": args.seconds or (1.0 if args.quick else 8.0),
            "small_sizes": args.quick,
            "note": args.note,
            "variables": variables,
            "cache": "empty" if cache else "given",
            "batch_factor": args.batch_factor,
            "cases": {
                name: described(name, args.quick, args.batch_factor)
                for name in chosen(args)
            },
        },
        "runs": [],
    }


def described(name: str, quick: bool, batch_factor: int) -> dict[str, Any]:
    """What a case was when it was timed; its row may change later."""
    case = bench_models.ALL[name]
    batch, sizes = case.arguments(quick)
    return {
        "batch": batch * batch_factor,
        "sizes": sizes,
        "optimizer": case.optimizer,
    }


def measure(
    results: dict[str, Any],
    args: argparse.Namespace,
    output: Path,
    cache: Path | None,
) -> bool:
    """Runs every round, writing results as they come; False if it was interrupted.

    Each case has a cache of its own under each executor, empty in the first round, so
    that nothing which the user's jobs or other cases have found helps it.
    """
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
                own = cache / re.sub(r"\W+", "_", "_".join(key[:2])) if cache else None
                run = processes.program("worker", *_command(key, settings, args, own))
                names: dict[str, Any] = dict(
                    zip(("case", "executor", "mode"), key, strict=True)
                )
                names |= {"round": number}
                names |= {"first_run": number == 0} if cache else {}
                results["runs"].append({**names, **run})
                result_files.write(output, result_files.as_json(results))
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
    key: Key,
    settings: Mapping[str, Any],
    args: argparse.Namespace,
    cache: Path | None,
) -> tuple[list[str], dict[str, str], float]:
    """Arguments of a worker, its AMP_* variables, and the time it may take."""
    case, executor, mode = key
    options = ["--case", case, "--executor", executor, "--mode", mode]
    options += ["--dtype", settings["dtype"], "--seconds", str(settings["seconds"])]
    options += ["--batch-factor", str(settings["batch_factor"])]
    options += ["--quick"] if settings["small_sizes"] else []
    if mode != "amp":
        return options, {}, args.timeout
    on = {
        "AMP_ENABLE": "1",
        **processes.plugin_variables(args.dtype),
        **processes.in_cache(cache),
    }
    return options, on, args.timeout


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


def show(results: dict[str, Any], output: Path, page: Path | None) -> None:
    """Writes the page and its chart beside the results, and prints the page."""
    text = table.page(results, output.with_suffix(".svg").name)
    result_files.write(output.with_suffix(".md"), text)
    drawn = chart.draw(results)
    if drawn:
        result_files.write(output.with_suffix(".svg"), drawn)
    if page:
        old = page.read_text(encoding="utf-8")
        files = [os.path.relpath(output.with_suffix(end), page.parent)
                 for end in (".svg", ".md")]  # fmt: skip
        part = table.excerpt(results, *files)
        result_files.write(page, table.between_marks(old, part, output.stem))
    say(f"\n{text}")


def say(text: str) -> None:
    """Prints, with a "?" for what the terminal's encoding does not have."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


if __name__ == "__main__":
    sys.exit(main())
