"""`amp run`: runs somebody's script or module as Python would, in mixed precision.

The process becomes Python itself (`execve`), which then runs the job: nothing that
Python does is imitated here, and TensorFlow is not imported.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from amp.cli import policy_flags, start
from amp.cli.command import Command, Modules
from amp.errors import GraphError
from amp.integration import report_directories


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The policy, and what to run."""
    parser.usage = "amp run [--FIELD VALUE ...] [-m | -c] TARGET [ARGS ...]"
    parser.description = (
        "Runs TARGET as python would, under AMP_ENABLE=1. Flags of amp stand before "
        "TARGET; all that follows it is the job's."
    )
    policy_flags.add(parser)
    kinds = parser.add_mutually_exclusive_group()
    add = kinds.add_argument
    add("-m", dest="module", action="store_true", help="it is a module")
    add("-c", dest="text", action="store_true", help="it is the code")
    text = "a script, a directory or archive with __main__.py, or - (standard input)"
    parser.add_argument("target", metavar="TARGET", help=text)


def end(argv: Sequence[str]) -> int:
    """The index in argv at which the arguments of the script begin.

    They are left to the script.
    """
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "-":
        if argv[index] == "--":
            return index + 2
        takes_value = argv[index].startswith("--") and "=" not in argv[index]
        index += 2 if takes_value and argv[index] != "--help" else 1
    return index + 1


def run(args: argparse.Namespace, modules: Modules) -> int:
    """Becomes the job's process; returns only where the job cannot be started."""
    environment = {**os.environ, **policy_flags.variables(args), "AMP_ENABLE": "1"}
    policy = policy_flags.read(args)  # a malformed value is an error before the job
    if policy.report is not None:  # also if the job changes its directory
        environment["AMP_REPORT"] = os.path.abspath(policy.report)
    else:
        environment |= _reports_into_cache()
    paths = [start.__path__[0], os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, *_options(), *_target(args), *args.args]
    print(end="", flush=True)  # what was printed so far would be lost
    os.execve(sys.executable, command, environment)


def _options() -> list[str]:
    """The options of the Python that runs this, such as `-W error`."""
    unbuffered = getattr(sys.stdout, "write_through", False)
    # Of the standard library; `multiprocessing` starts its children with it.
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [*options, "-u"] if unbuffered else options


def _target(args: argparse.Namespace) -> list[str]:
    """The job as Python's own command line has it.

    Raises:
      GraphError: nothing is there, or a directory without `__main__.py`.
    """
    if args.module or args.text:
        return ["-m" if args.module else "-c", args.target]
    if args.target != "-":
        _check(args.target)
    return [args.target]


def _check(target: str) -> None:
    if not os.path.exists(target):
        raise GraphError(
            "there is no such file",
            where=target,
            allowed="a Python script, or a directory or archive with __main__.py",
            remedy="name the script itself, without `python`; for a module, "
            "amp run -m MODULE",
        )
    importer: Any = pkgutil.get_importer(os.path.abspath(target))
    if importer is not None and importer.find_spec("__main__") is None:
        raise GraphError(
            "there is no __main__.py",
            where=target,
            allowed="a directory or archive that holds one",
            remedy="name a script in it",
        )


def _reports_into_cache() -> dict[str, str]:
    made = report_directories.of_job()
    return {} if made is None else {"AMP_REPORT": str(made)}


COMMAND = Command(
    help="run a script or module in mixed precision",
    add_arguments=add_arguments,
    run=run,
    examples={
        "amp run train.py --epochs 3": "the flags after train.py are its own",
        "amp run --dtype bfloat16 --report reports train.py": "writes a report of each "
        "function",
        "amp run -m package.train": "a module",
    },
    end=end,
)
