"""The command `python -m convergence`: `list`, `run` and `report`.

The only file of the suite that prints or exits; no training and no statistics here.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Before TensorFlow is imported; what the user says goes first. Families share a GPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

from rich import console as consoles
from rich import progress

from amp.errors import AmpError
from convergence import families, settings


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 1 if a family fails, 2 on an error."""
    args = _parser().parse_args(arguments)
    commands = {"list": _list, "run": _run, "report": _report}
    try:
        return commands[args.command](args)
    except AmpError as e:
        print(f"convergence: {e}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m convergence",
        description="float32 against mixed precision, model family by family",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="families, their metrics, margins and data")
    run = commands.add_parser("run", help="train families in all four settings")
    run.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        choices=[*families.FAMILIES, "all"],
        help=f"one of {', '.join(families.FAMILIES)}, or all",
    )
    length = run.add_mutually_exclusive_group(required=True)
    length.add_argument("--quick", action="store_true", help="small sizes, few steps")
    length.add_argument("--full", action="store_true", help="sizes that take hours")
    run.add_argument("--data-dir", type=Path, help="real data instead of embedded")
    run.add_argument("--dtype", choices=settings.DTYPES, default="float16")
    run.add_argument(
        "--emulate", action="store_true", help="round in float32 on any machine"
    )
    run.add_argument("--seeds", type=_positive, help="how many, from 0 up")
    run.add_argument(
        "--resume", action="store_true", help="go on where a run was interrupted"
    )
    report = commands.add_parser("report", help="tables and pictures from results")
    for command in (run, report):
        command.add_argument("--results", type=Path, help="directory of results")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of seeds")
    return number


def _list(args: argparse.Namespace) -> int:
    for family in families.FAMILIES.values():
        better = "higher" if family.higher else "lower"
        print(f"{family.name:16} {family.title}")
        print(
            f"{'':16} {family.metric} ({better} is better), margin at most "
            f"{family.margin:g}, {family.seeds} seeds"
        )
        sizes = {"full": family.full, "quick": family.quick}
        for name, size in {**sizes, "quick, real data": family.real}.items():
            print(
                f"{'':16} {name}: {size.steps} steps of {size.batch}, "
                f"learned from {size.floor:g}"
            )
        print(f"{'':16} --data-dir: {family.files}")
    return 0


def _run(args: argparse.Namespace) -> int:
    from convergence import results, verdict, workers

    options = {
        "quick": args.quick,
        "data": args.data_dir,
        "dtype": args.dtype,
        "emulate": args.emulate,
        "seeds": args.seeds,
        "resume": args.resume,
        "out": args.results or results.DIRECTORY,
    }
    names = list(families.FAMILIES) if "all" in args.names else args.names
    failed = 0
    with _bars() as bars:
        tell = _Teller(bars)
        for result in workers.run(list(dict.fromkeys(names)), options, tell):
            tell.done(result["family"])
            judged = verdict.verdict(result)
            how = " emulated" if result["emulated"] else ""
            word = "passes" if judged.passes else "FAILS"
            print(f"{result['family']}: {word} in {result['dtype']}{how}", flush=True)
            for reason in judged.reasons:
                print(f"  {reason}", flush=True)
            failed += not judged.passes
    return 1 if failed else 0


def _bars() -> progress.Progress:
    return progress.Progress(
        progress.TextColumn("{task.description:38}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        console=consoles.Console(stderr=True),
    )


class _Teller:
    """A progress bar for each family that is under way."""

    def __init__(self, bars: progress.Progress) -> None:
        self._bars, self._tasks = bars, dict[str, progress.TaskID]()

    def __call__(
        self, family: str, setting: str, seed: int, steps: int, step: int
    ) -> None:
        if family not in self._tasks:
            self._tasks[family] = self._bars.add_task(family)
        text = f"{family} {setting} seed {seed}"
        self._bars.update(
            self._tasks[family], description=text, completed=step, total=steps
        )

    def done(self, family: str) -> None:
        if family in self._tasks:
            self._bars.remove_task(self._tasks[family])


def _report(args: argparse.Namespace) -> int:
    from convergence import report, results

    for path in report.write(args.results or results.DIRECTORY):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
