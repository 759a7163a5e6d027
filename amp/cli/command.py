"""What a sub-command consists of: the type of a row of the table of commands.

No command is known here.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One sub-command of `amp`.

    Attributes:
      help: one line for `amp --help`.
      add_arguments: gives its parser the arguments, the usage and the description.
      run: called with the parsed arguments and with `modules`, imported, as attributes.
        Returns the exit code, unless the process becomes another program.
      modules: by a name of our choice, the modules that it needs and that import
        TensorFlow or are slow to import, so that `amp --help` does without them.
      examples: command lines, each with what it is for, for the end of its `--help`.
      end: returns how many of the arguments are for the sub-command; the others are in
        `args.args`.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, SimpleNamespace], int]
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    examples: Mapping[str, str] = dataclasses.field(default_factory=dict)
    end: Callable[[Sequence[str]], int] = len
