"""What a sub-command consists of: the types of a row of the table of commands.

No command is known here, and none of the modules that commands use.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from amp.errors import AmpError, TensorFlowError


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
        """Imports a module.

        Raises:
          AttributeError: a command asks for a module that it has not named.
          TensorFlowError: it needs TensorFlow, which is not there or broken.
        """
        if name not in self._names:
            raise AttributeError(name)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # says less at its start
        try:
            return importlib.import_module(self._names[name])
        except ImportError as e:
            if isinstance(e, AmpError) or sys.modules.get("tensorflow") is not None:
                raise
            raise TensorFlowError(
                f"TensorFlow cannot be imported: {e}",
                where=sys.executable,
                allowed="a Python in which TensorFlow 2.18 or newer is installed",
                remedy="install it (pip install tensorflow), or run the `amp` of an "
                "environment that has it; amp doctor says more",
            ) from e


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
