"""The command line flags for the fields of a policy, and the policy made from them.

No field is declared here: the flags follow from `amp.policy.FIELDS`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection

from amp import messages
from amp import variables as known
from amp.errors import AmpError
from amp.policy import FIELDS, Policy

# What only a job has that runs: no flag of a command that plans.
OF_JOBS = ("trial", "check", "tune_budget", "wire")


def add(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Gives a command a flag for each field.

    Args:
      parser: of the command.
      without: fields that the command does nothing with.
    """
    group = parser.add_argument_group("policy", "before the AMP_* variables, if given")
    parser.set_defaults(**dict.fromkeys(FIELDS))
    for name, field in FIELDS.items():
        if name not in without:
            group.add_argument(field.flag, dest=name, metavar="VALUE", help=field.help)


def given(args: argparse.Namespace) -> list[str]:
    """The policy flags that were given."""
    return [field.flag for name, field in FIELDS.items() if getattr(args, name)]


def variables(args: argparse.Namespace) -> dict[str, str]:
    """The policy flags given, as the `AMP_*` variables of the same fields."""
    given = {field.variable: getattr(args, name) for name, field in FIELDS.items()}
    return {name: value for name, value in given.items() if value is not None}


def policy(args: argparse.Namespace) -> Policy:
    """As `read`; variables that look like ours and are not are named on stderr.

    Once: under AMP_ENABLE=1 importing TensorFlow, for the command, names them too.
    """
    complaint = known.complaint(os.environ)
    if complaint:
        messages.to_stderr_once(complaint)
    return read(args)


def read(args: argparse.Namespace) -> Policy:
    """The policy of the flags given and, for all others, of the environment.

    Raises:
      PolicyError: a malformed value, naming the flag or variable that it came from.
    """
    for name, field in FIELDS.items():
        if getattr(args, name) is not None:
            field.parse(getattr(args, name), field.flag)
    return Policy.from_env({**os.environ, **variables(args)})


def naming_flags(error: AmpError, args: argparse.Namespace) -> AmpError:
    """The error with the flags that were used for where it was found.

    What a policy asks for may fail long after it was read, where nobody knows any more
    that a field came from a flag.
    """
    used = [
        field.flag
        for name, field in FIELDS.items()
        if getattr(args, name, None) is not None and f"{name}=" in error.where
    ]
    if not used:
        return error
    where = ", ".join(used)
    parts = {"allowed": error.allowed, "remedy": error.remedy}
    return type(error)(error.found, where=where, **parts)
