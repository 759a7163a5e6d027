"""The command `amp`: doctor, tune, run, explain. The only file that prints or exits.

No graph logic; TensorFlow is imported by the commands that need it, when they run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.metadata
import os
import platform
import runpy
import site
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from amp.errors import AmpError, GraphError
from amp.integration import targets
from amp.policy import Policy

PTH = "tf_amp.pth"
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
        code: int = args.command(args)
    except AmpError as e:
        print(f"amp: {type(e).__name__}: {e}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _end_of_target(argv: Sequence[str]) -> int:
    """Where the arguments of the script that `run` runs begin; not ours to parse."""
    if argv[:1] != ["run"]:
        return len(argv)
    index = 1
    while index < len(argv) and argv[index].startswith("-"):
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
        usage="amp run [--FIELD VALUE ...] [-m] TARGET [ARGS ...]",
        description="Runs TARGET as python would, under AMP_ENABLE=1.",
    )
    _add_fields(run)
    run.add_argument("-m", dest="module", action="store_true", help="TARGET a module")
    run.add_argument("target", metavar="TARGET", help="a script (with -m a module)")
    run.set_defaults(command=_run)
    explain = commands.add_parser(
        "explain",
        help="what a rewrite of a saved graph would do, and why",
        description="Reads a graph; nothing of it is executed.",
    )
    explain.add_argument(
        "path", metavar="PATH", type=Path, help="GraphDef (.pb, .pbtxt) or SavedModel"
    )
    explain.add_argument("--node", help="say why this node has its type")
    explain.add_argument("--json", action="store_true", help="print the whole report")
    _add_fields(explain)
    explain.set_defaults(command=_explain)
    return parser


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
    for name, value in _findings():
        print(f"{name:<12} {value}")
    try:
        _check_hooks()
    except AmpError as e:
        print(f"{'hooks':<12} {e}")
        return 1
    print(f"{'hooks':<12} all present")
    return 0


def _findings() -> Iterator[tuple[str, str]]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    hardware = importlib.import_module("amp.integration.hardware")
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    for name in ("tf-amp", "tensorflow", "keras", "numpy", "scipy"):
        yield name, _version(name)
    device = hardware.device()
    yield "device", device.describe()
    yield "figures", device.source
    if device.compiled is not None:
        yield "under XLA", device.compiled.source
    measurements = importlib.import_module("amp.integration.measurements")
    yield "operations", f"{len(measurements.load())} of past jobs measured"
    yield "auto", hardware.resolve(Policy()).reason
    variables = {k: v for k, v in sorted(os.environ.items()) if k.startswith("AMP_")}
    if variables:
        yield "environment", " ".join(f"{k}={v}" for k, v in variables.items())
        yield "so", hardware.resolve(Policy.from_env()).reason
    known = {f"AMP_{name.upper()}" for name in _FIELDS}
    known |= {"AMP_ENABLE", "AMP_CACHE_DIR"}
    for name in sorted(variables.keys() - known):
        yield "unknown", f"{name} is no variable of amp"
    places = [*site.getsitepackages(), site.getusersitepackages()]
    found = [path for path in places if Path(path, PTH).is_file()]
    missing = f"no {PTH} in site-packages, so without effect; pip install tf-amp"
    yield "AMP_ENABLE", f"{found[0]}/{PTH}" if found else missing


def _version(name: str) -> str:
    for distribution in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def _check_hooks() -> None:
    """Installs the hooks, in this process, which raises for one that is missing."""
    activation = importlib.import_module("amp.integration.activation")
    activation.settle(Policy(dtype="bfloat16", emulate=True))


def _tune(args: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.saved_model is not None:
        return _tune_saved_model(args.saved_model, args.seconds)
    tuning = importlib.import_module("amp.integration.tuning")
    both = args.executor == "both"
    executors = ("kernels", "xla") if both else (args.executor,)
    if args.show:
        found = tuning.stored(executors)
    else:
        with _progress_bar() as progress:
            found = list(tuning.tune(executors, args.seconds, progress))
    for file, profile in found:
        print(f"{profile}\n\nstored in {file}\n")
    hardware = importlib.import_module("amp.integration.hardware")
    if not found:
        print("nothing of this device is stored; amp tune measures it")
    print(hardware.device().describe())
    return 0


def _tune_saved_model(path: Path, seconds: float) -> int:
    operations = importlib.import_module("amp.integration.operations")
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


def _run(args: argparse.Namespace) -> int:
    from amp.integration import autostart

    os.environ.update(_variables(args), AMP_ENABLE="1")
    Policy.from_env()  # what is malformed is said before the job starts
    path = Path(args.target)
    sys.path[0] = os.getcwd() if args.module else str(path.resolve().parent)
    if args.module:
        targets.require_module(args.target)
    else:
        targets.require(path)
    sys.argv = [args.target, *args.args]
    autostart.install()
    try:
        if args.module:
            runpy.run_module(args.target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(args.target, run_name="__main__")
    finally:
        print(f"amp: {_summary()}", file=sys.stderr)
    return 0


def _summary() -> str:
    """What became of the job, in one line."""
    reports = sys.modules.get("amp.integration.reports")
    activation = sys.modules.get("amp.integration.activation")
    if reports is None or activation is None:
        return "nothing was rewritten: the job imported no TensorFlow, or see above"
    made = reports.reports()
    done = [report for report in made if report.nodes_low]
    if not made:
        now = activation.active()
        off = now is not None and now.settled.policy is None
        return now.settled.reason if off else "no function ran in mixed precision"
    low, total = (
        sum(getattr(r, name) for r in made) for name in ("nodes_low", "nodes_total")
    )
    before, after = (
        sum(getattr(r, name) for r in done) for name in ("seconds32", "seconds16")
    )
    gain = f", predicted {before / after:.2f}x faster" if after else ""
    if made[0].emulated:
        gain = ", emulated"
    where = os.environ.get("AMP_REPORT") or "nowhere; --report DIR (AMP_REPORT) writes"
    return (
        f"{len(done)} of {len(made)} functions rewritten, {low} of {total} nodes in "
        f"{made[0].dtype}{gain}; reports: {where}"
    )


def _explain(args: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    graph = targets.read(targets.require(args.path))
    policy = Policy.from_env({**os.environ, **_variables(args)})
    graphs = importlib.import_module("amp.integration.graphs")
    report = graphs.explain(graph, policy=policy)
    if not args.node:
        print(report.to_json() if args.json else report)
        return 0
    # A node inside a function may be named without the calls that lead to it.
    ends = (f"/{args.node}", f"::{args.node}")
    names = [d.node for d in report.decisions if f"/{d.node}".endswith(ends)]
    if not names:
        raise GraphError(
            f"no decision was made about a node {args.node!r}",
            where=f"--node, {args.path}",
            allowed="nodes that hold float32 or 16-bit values",
            remedy="--json lists every decision",
        )
    print("\n".join(report.explain(name) for name in dict.fromkeys(names)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
