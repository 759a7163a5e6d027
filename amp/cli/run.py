"""`amp run`: runs somebody's script or module as Python would, in mixed precision.

How Python runs a script is not known here, nor is TensorFlow: the job imports it.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Sequence
from types import SimpleNamespace

from amp.cli import policy_flags
from amp.cli.command import Command, Result
from amp.integration import reports
from amp.integration.launch import autostart, scripts, summary
from amp.policy import Policy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The policy, and what to run."""
    parser.usage = "amp run [--FIELD VALUE ...] [-m | -c] TARGET [ARGS ...]"
    parser.description = "Runs TARGET as python would, under AMP_ENABLE=1."
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


def run(args: argparse.Namespace, modules: SimpleNamespace) -> Result:
    """Prepares the process for the job, and returns the job."""
    os.environ.update(policy_flags.variables(args), AMP_ENABLE="1")
    policy = Policy.from_env()  # a malformed value is an error before the job starts
    if policy.report is not None:  # also if the job changes its directory
        os.environ["AMP_REPORT"] = os.path.abspath(policy.report)
    autostart.install()
    script = _script(args)
    if policy.report is None:
        _report_into_cache()
    summary.at_exit(always=True)  # before the job's own handlers, to come last
    return functools.partial(scripts.run, script, args.args)


def _script(args: argparse.Namespace) -> scripts.Script:
    if args.module:
        return scripts.module(args.target, args.args)
    if args.text:
        return scripts.text(args.target)
    if args.target == "-":
        return scripts.standard_input()
    return scripts.at(args.target)


def _report_into_cache() -> None:
    made = reports.directory_of_job()
    if made is not None:
        os.environ["AMP_REPORT"] = str(made)


COMMAND = Command(
    help="run a script or module in mixed precision",
    add_arguments=add_arguments,
    run=run,
    end=end,
)
