"""`amp doctor`: prints what this machine can do.

What is looked at is listed in `integration.doctor`, not here.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace

from amp.cli.command import Command
from amp.errors import AmpError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(args: argparse.Namespace, modules: SimpleNamespace) -> int:
    """Prints one finding per line; returns 1 if a hook is missing."""
    for name, value in modules.doctor.findings():
        print(f"{name:<12} {value}")
    try:
        modules.doctor.check_hooks()
    except AmpError as e:
        print(f"{'hooks':<12} {e}")
        return 1
    print(f"{'hooks':<12} all present")
    return 0


COMMAND = Command(
    help="what this machine can do",
    add_arguments=add_arguments,
    run=run,
    examples={"amp doctor": "what this machine can do"},
    modules={"doctor": "amp.integration.doctor"},
)
