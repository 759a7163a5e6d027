"""The flag `--library`, of commands that read graphs; a library is loaded elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

# By the name of our choice: the module that loads what is named.
MODULES = {"op_libraries": "amp.integration.files.op_libraries"}


def add(parser: argparse.ArgumentParser) -> None:
    """Gives a command the flag."""
    parser.add_argument(
        "--library",
        metavar="FILE.so",
        type=Path,
        action="append",
        default=[],
        help="library of custom ops to load first; may be given again",
    )
