"""The command `amp`, and its parser. The only file that prints or exits.

No graph logic; TensorFlow is imported by the commands that need it, when they run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from amp.errors import AmpError
from amp.integration import reports
from amp.integration.files import targets
from amp.integration.launch import scripts
from amp.policy import Policy

_FIELDS = {
    "dtype": "auto, float16 or bfloat16",
    "emulate": "1: round in float32 kernels, on any machine",
    "loss_scale": "auto, dynamic, none or a number",
    "allow": "op types, separated by commas",
    "deny": "op types, separated by commas",
    "keep": "patterns of node names, separated by commas",
    "assignment": "cost or all",
    "min_gain": "a fraction of the float32 time",
    "trial": "auto, 1 or 0: first calls alternate until the faster is known",
    "tune_budget": "seconds to spend on measuring the job's operations; 0 for none",
    "wire": "1: gradients travel between hosts as bfloat16, where that gains",
    "strict": "1: an error instead of a warning",
    "report": "a directory",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code.

    Args:
      argv: the arguments, `sys.argv[1:]` by default.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    end = _end_of_target(argv)
    args = _parser().parse_args(argv[:end])
    args.args = argv[end:]
    try:
        done: int | scripts.Script = args.command(args)
    except AmpError as e:
        print(f"amp: {type(e).__name__}: {e}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(done, int):
        return done
    scripts.run(done, args.args)  # here, since what it raises is its own
    return 0


def _end_of_target(argv: Sequence[str]) -> int:
    """Where the arguments of the script that `run` runs begin; not ours to parse."""
    if argv[:1] != ["run"]:
        return len(argv)
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "-":
        if argv[index] == "--":
            return index + 2
        takes_value = argv[index].startswith("--") and "=" not in argv[index]
        index += 2 if takes_value and argv[index] != "--help" else 1
    return index + 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="amp", description="Automatic mixed precision for TensorFlow graphs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="what this machine can do")
    doctor.set_defaults(command=_doctor)
    _add_tune(commands.add_parser("tune", help="measure this device, to plan from it"))
    run = commands.add_parser(
        "run",
        help="run a script or module in mixed precision",
        usage="amp run [--FIELD VALUE ...] [-m | -c] TARGET [ARGS ...]",
        description="Runs TARGET as python would, under AMP_ENABLE=1.",
    )
    _add_fields(run)
    kinds = run.add_mutually_exclusive_group()
    kinds.add_argument("-m", dest="module", action="store_true", help="it is a module")
    kinds.add_argument("-c", dest="text", action="store_true", help="it is the code")
    text = "a script, a directory or archive with __main__.py, or - (standard input)"
    run.add_argument("target", metavar="TARGET", help=text)
    run.set_defaults(command=_run)
    explain = commands.add_parser(
        "explain",
        help="what a rewrite of a saved graph would do, and why",
        description="Reads a graph; nothing of it is executed.",
    )
    explain.add_argument(
        "path", metavar="PATH", type=Path, help="GraphDef (.pb, .pbtxt) or SavedModel"
    )
    add = explain.add_argument
    add("--node", help="say why this node has its type")
    add("--json", action="store_true", help="print the whole report")
    add("--signature", help="of a SavedModel, only what this signature runs")
    add("--tags", help="of a SavedModel, the graph with these (default: serve)")
    _add_fields(explain)
    explain.set_defaults(command=_explain)
    _add_rewrite(commands.add_parser("rewrite", help="rewrite a saved graph"))
    return parser


def _add_rewrite(rewrite: argparse.ArgumentParser) -> None:
    rewrite.description = (
        "Writes a saved graph, or a SavedModel with all its signatures, as it runs in "
        "mixed precision; TensorFlow loads it without this package. Nothing of it is "
        "executed."
    )
    add = rewrite.add_argument
    text = "GraphDef (.pb, .pbtxt) or directory of a SavedModel"
    add("path", metavar="PATH", type=Path, help=text)
    add("out", metavar="OUT", type=Path, help="what to write; must not exist")
    text = "tensor of a GraphDef that will be fetched (default: all that none reads)"
    add("--fetch", metavar="NAME", action="append", default=[], help=text)
    text = "tensor of a GraphDef, besides placeholders, that will be fed"
    add("--feed", metavar="NAME", action="append", default=[], help=text)
    _add_fields(rewrite)
    rewrite.set_defaults(command=_rewrite)


def _add_tune(tune: argparse.ArgumentParser) -> None:
    tune.description = (
        "Measures the device that TensorFlow computes on, in all types, and stores the "
        "result. Later runs on it plan from that. Let the machine be idle meanwhile."
    )
    add = tune.add_argument
    executors = ("kernels", "xla", "both")
    text = "TensorFlow's kernels, functions that XLA compiles, or both (default)"
    add("--executor", choices=executors, default="both", help=text)
    text = "time to spend in all, but for the case under way (default: %(default)g)"
    add("--seconds", type=float, default=45.0, help=text)
    add("--show", action="store_true", help="only print what is stored")
    text = "measure the operations of its functions instead; nothing of it is executed"
    add("--saved-model", metavar="DIR", type=Path, help=text)
    tune.set_defaults(command=_tune)


def _add_fields(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("policy", "before the AMP_* variables, if given")
    for field in dataclasses.fields(Policy):
        flag = f"--{field.name.replace('_', '-')}"
        group.add_argument(
            flag, dest=field.name, metavar="VALUE", help=_FIELDS[field.name]
        )


def _variables(args: argparse.Namespace) -> dict[str, str]:
    """The policy flags given, as the variables that they stand for."""
    given = {f"AMP_{name.upper()}": getattr(args, name) for name in _FIELDS}
    return {name: value for name, value in given.items() if value is not None}


def _doctor(args: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    doctor = importlib.import_module("amp.integration.doctor")
    for name, value in doctor.findings():
        print(f"{name:<12} {value}")
    try:
        doctor.check_hooks()
    except AmpError as e:
        print(f"{'hooks':<12} {e}")
        return 1
    print(f"{'hooks':<12} all present")
    return 0


def _tune(args: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.saved_model is not None:
        return _tune_saved_model(args.saved_model, args.seconds)
    tuning = importlib.import_module("amp.integration.measuring.tune_device")
    both = args.executor == "both"
    executors = ("kernels", "xla") if both else (args.executor,)
    if args.show:
        found = tuning.stored(executors)
    else:
        with _progress_bar() as progress:
            found = list(tuning.tune(executors, args.seconds, progress))
    for file, profile in found:
        print(f"{profile}\n\nstored in {file}\n")
    hardware = importlib.import_module("amp.integration.measuring.hardware")
    if not found:
        print("nothing of this device is stored; amp tune measures it")
    print(hardware.device().describe())
    return 0


def _tune_saved_model(path: Path, seconds: float) -> int:
    operations = importlib.import_module("amp.integration.measuring.tune_function")
    graph = targets.read(targets.require(path))
    with _progress_bar() as progress:
        tuned = operations.tune_graph(graph, seconds, progress)
    print(tuned)
    return 0


@contextlib.contextmanager
def _progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    from rich import console, progress

    columns = (progress.BarColumn(), progress.MofNCompleteColumn())
    text = progress.TextColumn("{task.description}")
    elapsed = progress.TimeElapsedColumn()
    errors = console.Console(stderr=True)
    with progress.Progress(*columns, elapsed, text, console=errors) as bar:
        task = bar.add_task("")
        yield lambda case, done, total: bar.update(
            task, description=case, completed=done, total=total
        )


def _run(args: argparse.Namespace) -> scripts.Script:
    from amp.integration.launch import autostart, summary

    os.environ.update(_variables(args), AMP_ENABLE="1")
    policy = Policy.from_env()  # what is malformed is said before the job starts
    if policy.report is not None:  # wherever the job goes
        os.environ["AMP_REPORT"] = os.path.abspath(policy.report)
    autostart.install()
    if args.module:
        script = scripts.module(args.target, args.args)
    elif args.text:
        script = scripts.text(args.target)
    elif args.target == "-":
        script = scripts.standard_input()
    else:
        script = scripts.at(args.target)
    if policy.report is None:
        _report_into_cache()
    summary.at_exit(always=True)  # before the job's own handlers, to come last
    return script


def _report_into_cache() -> None:
    made = reports.directory_of_job()
    if made is not None:
        os.environ["AMP_REPORT"] = str(made)


def _explain(args: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    files = importlib.import_module("amp.integration.files.graph_files")
    policy = Policy.from_env({**os.environ, **_variables(args)})
    report = files.explain(args.path, policy, args.tags, args.signature)
    if args.node:
        print(files.decision(report, args.node, args.path))
    else:
        print(report.to_json() if args.json else report)
    return 0


def _rewrite(args: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    files = importlib.import_module("amp.integration.files.graph_files")
    policy = Policy.from_env({**os.environ, **_variables(args)})
    named = _separated(args.fetch), _separated(args.feed)
    made = files.rewrite(args.path, args.out, policy, *named)
    print(f"{args.out}: {made}")
    return 0


def _separated(values: Sequence[str]) -> list[str]:
    return [name for value in values for name in value.split(",") if name]


if __name__ == "__main__":
    sys.exit(main())
