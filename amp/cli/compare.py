"""`amp compare`: runs a saved graph and its twin, and says where they part.

How they are run, and what the figures mean, is not known here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from amp.cli import op_libraries, policy_flags, terminal
from amp.cli.command import Command, Modules
from amp.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The graph, its inputs, what to look for, and the policy."""
    parser.description = (
        "Runs a saved graph in float32 and as its twin, on the same inputs and state, "
        "and compares all tensors that both have. Exit code 0 if results and gradients "
        "are within the bound, 1 if not."
    )
    add = parser.add_argument
    text = "GraphDef (.pb, .pbtxt) or directory of a SavedModel"
    add("path", metavar="PATH", type=Path, help=text)
    add("--signature", help="of a SavedModel (default: serving_default)")
    add("--tags", help="of a SavedModel, the graph with these (default: serve)")
    text = "the inputs by name (default: made up at random, which is said)"
    add("--inputs", metavar="FILE.npz", type=Path, help=text)
    text = "relative error allowed (default: what rounding explains)"
    add("--bound", metavar="ERROR", type=relative_error, help=text)
    text = "find the nodes to keep in float32 for this relative error"
    add("--suggest", metavar="ERROR", type=relative_error, help=text)
    text = "run float32 only, and list what would leave float16's range"
    add("--float32-dry-run", action="store_true", help=text)
    add("--json", action="store_true", help="print everything as JSON")
    op_libraries.add(parser)
    policy_flags.add(parser, without=(*policy_flags.OF_JOBS, "report"))


def relative_error(text: str) -> float:
    """Reads the value of a flag.

    Raises:
      ArgumentTypeError: it is no positive number.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def run(args: argparse.Namespace, modules: Modules) -> int:
    """Prints what was found; returns 1 if it is not within the bound.

    Raises:
      UsageError: flags that do not go together.
    """
    _require_together(args)
    modules.named_files.file_of_graph(args.path)
    modules.op_libraries.load(args.library)
    asked = modules.compare_files.Asked(
        path=args.path,
        signature=args.signature,
        tags=args.tags,
        inputs=args.inputs,
        suggest=args.suggest,
        dry_run=args.float32_dry_run,
    )
    policy = policy_flags.policy(args)
    found = modules.compare_files.compare_file(asked, policy)
    print(found.to_json() if args.json else found.text(terminal.width()))
    return 0 if found.within(args.bound) else 1


def _require_together(args: argparse.Namespace) -> None:
    """A run of float32 alone has no error that could be allowed, or suggested for.

    Raises:
      UsageError: it was asked for with one.
    """
    flags = ("suggest", "bound") if args.float32_dry_run else ()
    given = [f"--{name}" for name in flags if getattr(args, name) is not None]
    if given:
        raise UsageError(
            f"--float32-dry-run was given with {' and '.join(given)}",
            where="amp compare",
            allowed="--float32-dry-run alone: its exit code is 1 if anything overflows",
            remedy="leave out one or the other",
        )


COMMAND = Command(
    help="run a saved graph and its twin, and say where they part",
    add_arguments=add_arguments,
    run=run,
    examples={
        "amp compare model": "with inputs made up at random",
        "amp compare model --inputs batch.npz --bound 0.01": "exit code 1 if worse",
        "amp compare model --suggest 0.01": "what to keep in float32, as AMP_KEEP",
        "amp compare model --float32-dry-run": "what float16 could not hold",
    },
    modules={
        **op_libraries.MODULES,
        "compare_files": "amp.integration.comparing.compare_files",
        "named_files": "amp.integration.files.named_files",
    },
)
