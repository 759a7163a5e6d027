"""The command `python -m convergence`: what it reads, and what it prints.

The only file of the suite that prints or exits; no training and no statistics here.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before TensorFlow is imported; what the user says goes first. Families share a GPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

from rich import console as consoles
from rich import progress

from amp.errors import AmpError
from convergence import families, settings
from convergence.errors import DataError, ResultError

# The minor version of Python that the checked-in margins were frozen under. Their tags
# are of the rule's code as `ast.unparse` writes it, and that of another version writes
# another text of the same code: the margins would seem to be of another rule.
FROZEN_BY = (3, 11)
JUDGED = ("calibrate", "run", "controls")  # by margins


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 1 if a family fails, 2 on an error."""
    args = _parser().parse_args(arguments)
    commands = {"list": _list, "calibrate": _calibrate, "run": _run, "reach": _run}
    commands |= {"controls": _controls, "drill": _drill, "report": _report}
    try:
        _look_for_data(args)
        _look_for_results(args)
        _look_for_python(args)
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
    told = {
        "calibrate": "train pairs that are not judged, and freeze margins",
        "run": "train families in all settings, and judge",
        "controls": "train with planted faults, which the rule has to find",
    }
    for name, text in told.items():
        command = commands.add_parser(name, help=text)
        _add_training(command, list(families.FAMILIES))
        _add_size(command)
        if name != "calibrate":
            _add_judged(command)
    reach = commands.add_parser("reach", help="train full sizes once, towards a goal")
    _add_training(reach, list(families.GOALS))
    _add_judged(reach)
    told = {
        "drill": "drill results anew that other drills, or another package, made",
        "report": "tables and pictures from results",
    }
    for name, text in told.items():
        _add_again(commands.add_parser(name, help=text))
    return parser


def _add_again(command: argparse.ArgumentParser) -> None:
    command.add_argument("--results", type=Path, help="directory of results")
    command.add_argument(
        "--data-dir",
        type=Path,
        action="append",
        default=[],
        help="real data, to make steps anew; may be given more than once",
    )
    command.add_argument("--margins", type=Path, help="file of frozen margins")


def _add_training(command: argparse.ArgumentParser, names: list[str]) -> None:
    command.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        choices=[*names, "all"],
        help=f"one of {', '.join(names)}, or all",
    )
    command.add_argument("--data-dir", type=Path, help="real data instead of embedded")
    command.add_argument("--seeds", type=_positive, help="how many")
    command.add_argument(
        "--resume", action="store_true", help="go on where a run was interrupted"
    )
    command.add_argument("--results", type=Path, help="directory of results")


def _add_size(command: argparse.ArgumentParser) -> None:
    length = command.add_mutually_exclusive_group(required=True)
    length.add_argument("--quick", action="store_true", help="small sizes, few steps")
    length.add_argument("--full", action="store_true", help="sizes that take hours")
    command.add_argument("--margins", type=Path, help="file of frozen margins")


def _add_judged(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--first-seed", type=int, help="judge others, from this one on"
    )
    command.add_argument("--dtype", choices=settings.DTYPES, default="float16")
    command.add_argument(
        "--emulate", action="store_true", help="round in float32 on any machine"
    )
    command.add_argument(
        "--any-commit", action="store_true", help="--resume results of another commit"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of seeds")
    return number


def _look_for_data(args: argparse.Namespace) -> None:
    """Looks for directories before processes are started that would miss them."""
    given = getattr(args, "data_dir", None) or []
    for directory in given if isinstance(given, list) else [given]:
        if not directory.is_dir():
            raise DataError(
                "no such directory",
                where=f"--data-dir {directory}",
                allowed="a directory with data, see convergence/README.md",
                remedy="name one, or leave it out for the embedded data",
            )


def _look_for_results(args: argparse.Namespace) -> None:
    """Looks whether results can be where they are to be, before anything is trained."""
    directory = getattr(args, "results", None)
    if directory is not None and directory.exists() and not directory.is_dir():
        raise ResultError(
            "no directory",
            where=f"--results {directory}",
            allowed="a directory for results, which need not be there yet",
            remedy="name another one",
        )


def _look_for_python(args: argparse.Namespace) -> None:
    """Refuses to judge by checked-in margins, or to replace them, where none fit."""
    own = args.command in JUDGED and args.margins is None
    if own and sys.version_info[:2] != FROZEN_BY:
        due = ".".join(map(str, FROZEN_BY))
        raise ResultError(
            f"Python {sys.version_info[0]}.{sys.version_info[1]}",
            where=f"{args.command}, which judges by convergence/margins.json",
            allowed=f"Python {due}, under which these margins were frozen: another "
            "writes the rule's code in other words, and takes it for another rule",
            remedy=f"make an environment with it (`make convergence PYTHON=python{due} "
            f"VENV=.venv-{due}`), or freeze margins of your own with --margins FILE",
        )


def _list(args: argparse.Namespace) -> int:
    for family in families.FAMILIES.values():
        better = "higher" if family.higher else "lower"
        print(f"{family.name:16} {family.title}")
        print(
            f"{'':16} {family.metric} ({better} is better), margin at most "
            f"{family.margin:g}, at least {family.seeds} seeds"
        )
        sizes = {"full": family.full, "quick": family.quick}
        for name, size in {**sizes, "quick, real data": family.real}.items():
            print(
                f"{'':16} {name}: {size.steps} steps of {size.batch}, "
                f"learned from {size.floor:g}"
            )
        for goal in families.GOALS.get(family.name, ()):
            wanted = "trivial model" if goal.metric is None else f"{goal.metric:g}"
            print(f"{'':16} goal of the full size: {wanted}, on {goal.data}")
        print(f"{'':16} --data-dir: {family.files}")
    return 0


def _trained(args: argparse.Namespace, what: str) -> Iterator[dict[str, Any]]:
    """What a function of `runner` returns of each family, when it is done."""
    from convergence import margins, results, workers

    options = {
        "data": args.data_dir,
        "seeds": args.seeds,
        "resume": args.resume,
        "out": args.results or results.DIRECTORY,
    }
    own = ("quick", "dtype", "emulate", "any_commit", "first_seed")
    options |= {name: getattr(args, name) for name in own if name in args}
    if "margins" in args:
        options["frozen"] = args.margins or margins.FILE
    known = families.GOALS if what == "reach" else families.FAMILIES
    names = known if "all" in args.names else dict.fromkeys(args.names)
    steps = functools.partial(_steps, args)
    ordered = sorted(names, key=steps, reverse=True)  # none ends alone
    with _bars() as bars:
        tell = _Teller(bars)
        for told in workers.run(ordered, options, tell, what):
            tell.done(told["family"])
            yield told


def _steps(args: argparse.Namespace, name: str) -> int:
    """The steps of a family's seeds, as far as its row says how many there are."""
    family = families.FAMILIES[name]
    given: dict[str, Any] = {"quick": False, "dtype": settings.DTYPES[0]}
    given |= vars(args)
    size = family.size(quick=given["quick"], real=args.data_dir is not None)
    return size.steps * families.seeds(name, given["dtype"], family.seeds)


def _calibrate(args: argparse.Namespace) -> int:
    from convergence import equivalence, margins

    for told in _trained(args, "calibrate"):
        entry = told["entry"]
        if entry is None:
            print(f"{told['key']}: frozen before", flush=True)
            continue
        margins.freeze(told["key"], entry, args.margins or margins.FILE)
        loss, metric = (entry["margin"].get(name) for name in ("loss", "metric"))
        first = "" if loss is None else f"{loss:.2%} of the loss, "
        print(
            f"{told['key']}: margins {first}{metric:.3g} of the metric, "
            f"{entry['seeds']} seeds, tag {entry['tag']}",
            flush=True,
        )
        for name, power in entry["power"].items():
            if power < equivalence.SURE:
                print(f"  too noisy: equal {name} is found with {power:.0%}")
    return 0


def _run(args: argparse.Namespace) -> int:
    from convergence import judge

    passed = []
    for result in _trained(args, args.command):
        judged = judge.judged(result)
        how = " emulated" if result["emulated"] else ""
        print(f"{result['family']}: {judged.word} in {result['dtype']}{how}")
        for reason in (*judged.reasons, *judged.undecided):
            print(f"  {reason}", flush=True)
        passed.append(judged.passes)
    return 0 if all(passed) else 1


def _controls(args: argparse.Namespace) -> int:
    from convergence import controls, judge

    by_control: dict[str, list[str]] = {name: [] for name in controls.CONTROLS}
    for result in _trained(args, "control"):
        for name, text in judge.found(result).items():
            word = f"different: {text}" if text else "NOT FOUND"
            print(f"{result['family']}: {name}: {word}", flush=True)
            by_control[name] += [result["family"]] * bool(text)
    missed = [name for name, found in by_control.items() if not found]
    for name, found in by_control.items():
        print(f"{name}: found by {', '.join(found) or 'NO FAMILY'}")
    return 1 if missed else 0


def _bars() -> progress.Progress:
    return progress.Progress(
        progress.TextColumn("{task.description:38}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        console=consoles.Console(stderr=True),
    )


class _Teller:
    """A progress bar for each family under way; where stderr is a file, lines."""

    def __init__(self, bars: progress.Progress) -> None:
        self._bars, self._tasks = bars, dict[str, progress.TaskID]()

    def __call__(
        self, family: str, setting: str, seed: int, steps: int, step: int
    ) -> None:
        text = f"{family} {setting} seed {seed}"
        if not self._bars.console.is_terminal:
            if step == steps:
                print(f"{text}: {steps} steps", file=sys.stderr, flush=True)
            return
        if family not in self._tasks:
            self._tasks[family] = self._bars.add_task(family)
        self._bars.update(
            self._tasks[family], description=text, completed=step, total=steps
        )

    def done(self, family: str) -> None:
        if family in self._tasks:
            self._bars.remove_task(self._tasks[family])


def _drill(args: argparse.Namespace) -> int:
    from convergence import drilling, margins, results, staleness, workers

    directory, frozen = args.results or results.DIRECTORY, args.margins or margins.FILE
    wanted = [
        result
        for result in results.every(directory)
        if not staleness.reason(result, staleness.as_held, frozen)
        and drilling.outdated(result, families.FAMILIES[result["family"]].task)
    ]
    sound = True
    for result, found in workers.drilling(wanted, args.data_dir) if wanted else ():
        name = results.file_name(result)
        if found is None:
            print(f"{name}: not drilled, its data is not here", flush=True)
            continue
        drills = {**result.get("drills", {}), **found}
        results.write(directory / name, {**result, "drills": drills})
        faults = [
            f"{at}: {text}" for at, one in found.items() for text in one["faults"]
        ]
        print(f"{name}: drills of {', '.join(found)} find {len(faults) or 'nothing'}")
        for text in faults:
            print(f"  {text}", flush=True)
        sound = sound and (not faults or bool(result.get("controls")))
    return 0 if sound else 1


def _report(args: argparse.Namespace) -> int:
    from convergence import margins, replanned, report, results, workers

    directory, frozen = args.results or results.DIRECTORY, args.margins or margins.FILE
    with (
        _bars() as bars,
        workers.replanning(args.data_dir) as anew,
        replanned.kept(anew, directory) as replan,
    ):
        task = bars.add_task("results looked at", total=None)

        def tell(done: int, every: int) -> None:
            bars.update(task, completed=done, total=every)

        written = report.write(directory, replan, frozen, tell)
    for path in written:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
