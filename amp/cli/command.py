"""What a sub-command consists of: the types of a row of the table of commands.

No command is known here, and none of the modules that commands use.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType


class Modules:
    """The modules that a command may use, as attributes.

    Each is imported when the command first asks for it, so that what needs no
    TensorFlow (a usage error, the report of a job) does not wait for it.

    Args:
      names: of the modules, by the names of the attributes.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def __getattr__(self, name: str) -> ModuleType:
        if name not in self._names:
            raise AttributeError(name)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # says less at its start
        return importlib.import_module(self._names[name])


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One sub-command of `amp`.

    Attributes:
      help: one line for `amp --help`.
      add_arguments: gives its parser the arguments, the usage and the description.
      run: called with the parsed arguments and with `modules` as attributes.
        Returns the exit code, unless the process becomes another program.
      modules: by a name of our choice, the modules that it may need and that import
        TensorFlow or are slow to import.
      examples: command lines, each with what it is for, for the end of its `--help`.
      end: returns how many of the arguments are for the sub-command; the others are in
        `args.args`.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Modules], int]
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    examples: Mapping[str, str] = dataclasses.field(default_factory=dict)
    end: Callable[[Sequence[str]], int] = len
