"""`amp doctor`: prints what works here, what does not, and what to do.

What is looked at is listed in `integration.doctor.checkup`, not here.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator

from amp.cli import terminal
from amp.cli.command import Command, Modules
from amp.integration.doctor.findings import NOTE, OK, WRONG, Finding, as_json, worst

WIDEST = 100  # columns; longer lines are hard to read
NARROW = 60  # columns, below which the names stand above the texts
_NAMES = 12
_MARKS = {WRONG: "WRONG", NOTE: "note", OK: "ok"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to print what was found."""
    parser.description = (
        "Checks TensorFlow, our hooks, devices, variables and files, and runs a small "
        "training step in float32 and in 16 bits for five seconds. The exit code is 0 "
        "if all is well, 1 if something is wrong; what is only worth knowing (note) "
        "does not count."
    )
    parser.add_argument("--json", action="store_true", help="print it for programs")


def run(args: argparse.Namespace, modules: Modules) -> int:
    """Prints the findings, as they come; returns 1 if one of them is wrong."""
    found: list[Finding] = []
    width = min(terminal.width() or 80, WIDEST)
    for finding in modules.checkup.findings():
        found.append(finding)
        if not args.json:
            print("\n".join(lines(finding, width)), flush=True)
    if args.json:
        print(json.dumps(as_json(found), indent=1))
    else:
        print("\n" + "\n".join(textwrap.wrap(_summary(found), width)))
    return 1 if worst(found) == WRONG else 0


def lines(finding: Finding, width: int) -> Iterator[str]:
    """A finding as lines of at most `width` characters, but for words that are longer.

    In a wide terminal the name stands before the text, in a narrow one above it.
    """
    name = finding.check.replace("_", "-")
    text = f"{_MARKS[finding.status]}: {finding.text}"
    said = [text, f"-> {finding.remedy}"] if finding.remedy else [text]
    if width < NARROW:
        yield name
        first = rest = "  "
    else:
        first, rest = name.ljust(_NAMES), " " * _NAMES
    for part in said:
        yield from textwrap.wrap(
            part,
            width,
            initial_indent=first,
            subsequent_indent=rest,
            break_on_hyphens=False,
            break_long_words=width < NARROW,
        )
        first = rest


def _summary(found: list[Finding]) -> str:
    wrong = [one.check.replace("_", "-") for one in found if one.status == WRONG]
    if not wrong:
        return "Nothing is wrong."
    return f"Wrong: {', '.join(wrong)}. Each says above what to do."


COMMAND = Command(
    help="what works on this machine, and what does not",
    add_arguments=add_arguments,
    run=run,
    examples={
        "amp doctor": "for a person",
        "amp doctor --json": "for programs; docs/doctor.md has the keys",
    },
    modules={"checkup": "amp.integration.doctor.checkup"},
)
