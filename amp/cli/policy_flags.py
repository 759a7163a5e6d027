"""The command line flags for the fields of a policy, and the policy made from them.

No field is declared here: the flags follow from `amp.policy.FIELDS`.
"""

from __future__ import annotations

import argparse
import os

from amp.policy import FIELDS, Policy


def add(parser: argparse.ArgumentParser) -> None:
    """Gives a command a flag for each field."""
    group = parser.add_argument_group("policy", "before the AMP_* variables, if given")
    for name, field in FIELDS.items():
        group.add_argument(field.flag, dest=name, metavar="VALUE", help=field.help)


def variables(args: argparse.Namespace) -> dict[str, str]:
    """The policy flags given, as the `AMP_*` variables of the same fields."""
    given = {field.variable: getattr(args, name) for name, field in FIELDS.items()}
    return {name: value for name, value in given.items() if value is not None}


def policy(args: argparse.Namespace) -> Policy:
    """The policy of the flags given and, for all others, of the environment.

    Raises:
      PolicyError: a malformed value, naming its variable.
    """
    return Policy.from_env({**os.environ, **variables(args)})
