"""The command `amp`: the only room that prints or exits.

Each sub-command has a file: its arguments and what it does. `COMMANDS` lists them, and
`main` runs the one that is named. No graph logic; importing this room imports no
TensorFlow.
Before it: `amp.integration`, which does the work. After it: nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.metadata
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Iterable, Sequence
from typing import NoReturn

from amp import spelling
from amp.cli import compare, doctor, explain, policy_flags, rewrite, run, tune
from amp.cli.command import Command, Modules
from amp.errors import AmpError, UsageError

COMMANDS: dict[str, Command] = {
    "doctor": doctor.COMMAND,
    "tune": tune.COMMAND,
    "run": run.COMMAND,
    "explain": explain.COMMAND,
    "rewrite": rewrite.COMMAND,
    "compare": compare.COMMAND,
}

_ALONE = ("-h", "--help", "--version")  # instead of a command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code.

    Args:
      argv: the arguments, `sys.argv[1:]` by default.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    args = argparse.Namespace()
    _ready_output()
    try:
        args = _parsed(argv)
        code: int = args.command.run(args, Modules(args.command.modules))
        sys.stdout.flush()
    except AmpError as e:
        said = policy_flags.naming_flags(e, args)
        print(f"amp: {type(e).__name__}: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("amp: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the output has closed it (`| head`)
        _print_no_more()
        return 0
    except OSError as e:
        if e.errno == errno.ENOSPC:
            _print_no_more()
            print(f"amp: not all was written: {e}", file=sys.stderr)
            return 2
        if e.filename is None:
            traceback.print_exc()
        else:
            print(f"amp: {type(e).__name__}: {_unusable(e)}", file=sys.stderr)
        return 2
    except Exception:  # Python would end with 1, by which a command says what it found
        traceback.print_exc()
        return 2
    return code


def _ready_output() -> None:
    """Sees to it that printing fails neither for want of an output nor of a letter."""
    if sys.stdout is None:  # closed by the shell (`>&-`)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (to the end of the process)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _unusable(error: OSError) -> UsageError:
    return UsageError(
        f"the system refuses this path: {error.strerror}",
        where=os.fsdecode(error.filename),
        allowed="a path of a length that the system allows, with the right to it",
        remedy="name another, or change its rights",
    )


def _print_no_more() -> None:
    """Drops what is still to be printed, of which Python would complain as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of the sub-command that is named, and what is left for a job.

    Raises:
      UsageError: a sub-command or flag that there is not, with the closest one.
    """
    if argv and argv[0] not in (*COMMANDS, *_ALONE):
        raise _unknown(f"{argv[0]!r}", "amp", (*COMMANDS, *_ALONE))
    named = COMMANDS.get(argv[0]) if argv else None
    end = len(argv) if named is None else named.end(argv)
    parser, parsers = _parser()
    args, left = parser.parse_known_args(argv[:end])
    if left and left[0].startswith("-"):
        own = parsers[argv[0]]
        text = own.format_help().removesuffix(f"{own.epilog}\n")
        flags = re.findall(r"--[a-z][a-z0-9-]*|-[a-z]\b", text)
        raise _unknown(f"{left[0].partition('=')[0]!r}", f"amp {argv[0]}", flags)
    if left:
        parsers[argv[0]].error(f"unrecognized arguments: {' '.join(left)}")
    args.args = list(argv[end:])
    return args


def _unknown(found: str, command: str, names: Iterable[str]) -> UsageError:
    names = list(dict.fromkeys(names))
    return UsageError(
        f"`{command}` does not know {found}",
        where="the command line",
        allowed=", ".join(names),
        remedy=spelling.hint(found, names, f"`{command} --help` says what each does"),
    )


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the package, in four parts."""

    def error(self, message: str) -> NoReturn:
        """Called by `argparse`, which would print its own and exit.

        Raises:
          UsageError: always.
        """
        # Each form of the usage is in a line of its own.
        usage = self.format_usage().replace(
            f"\n       {self.prog} ", f" or {self.prog} "
        )
        raise UsageError(
            message,
            where=self.prog,
            allowed=" ".join(usage.split()).removeprefix("usage: "),
            remedy=f"`{self.prog} --help` says what each does",
        )


class _Version(argparse.Action):
    """Prints the version that is installed, looked up only if it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        text = "print the version and end"
        super().__init__(option_strings, dest, nargs=0, help=text)

    def __call__(
        self, parser: argparse.ArgumentParser, *_: object, **__: object
    ) -> NoReturn:
        """Called by `argparse` where it reads the flag."""
        found = "not installed"
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found = importlib.metadata.version("tf-amp")
        print(f"tf-amp {found}")
        parser.exit()


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command, and those of its sub-commands by their names."""
    parser = _Parser(
        prog="amp",
        description="Automatic mixed precision for TensorFlow graphs.",
        epilog="amp COMMAND --help shows examples. Begin with amp doctor.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, command in COMMANDS.items():
        parsers[name] = own = commands.add_parser(
            name,
            help=command.help,
            epilog=_examples(command),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(own)
        own.description = _filled(own.description or "")
        own.set_defaults(command=command)
    return parser, parsers


def _filled(text: str) -> str:
    return textwrap.fill(text, max(20, shutil.get_terminal_size().columns - 2))


def _examples(command: Command) -> str:
    """The end of a sub-command's help: one example after the other, as it is typed."""
    lines = [f"  {line}\n      {what}" for line, what in command.examples.items()]
    return "\n".join(("examples:", *lines)) if lines else ""
