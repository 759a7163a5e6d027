"""The command `amp`: the only room that prints or exits.

Each sub-command has a file: its arguments and what it does. `COMMANDS` lists them, and
`main` runs the one that is named. No graph logic; importing this room imports no
TensorFlow.
Before it: `amp.integration`, which does the work. After it: nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import types
from collections.abc import Sequence

from amp.cli import doctor, explain, rewrite, run, tune
from amp.cli.command import Command
from amp.errors import AmpError

COMMANDS: dict[str, Command] = {
    "doctor": doctor.COMMAND,
    "tune": tune.COMMAND,
    "run": run.COMMAND,
    "explain": explain.COMMAND,
    "rewrite": rewrite.COMMAND,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code.

    Args:
      argv: the arguments, `sys.argv[1:]` by default.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    named = COMMANDS.get(argv[0]) if argv else None
    end = len(argv) if named is None else named.end(argv)
    args = _parser().parse_args(argv[:end])
    args.args = argv[end:]
    try:
        code: int = args.command.run(args, _modules(args.command))
    except AmpError as e:
        print(f"amp: {type(e).__name__}: {e}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of the output has closed it (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="amp", description="Automatic mixed precision for TensorFlow graphs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help)
        command.add_arguments(own)
        own.set_defaults(command=command)
    return parser


def _modules(command: Command) -> types.SimpleNamespace:
    """The modules that a command wants imported only when it runs."""
    if command.modules:  # they import TensorFlow, which then says less at its start
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    imported = {n: importlib.import_module(m) for n, m in command.modules.items()}
    return types.SimpleNamespace(**imported)
