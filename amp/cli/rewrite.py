"""`amp rewrite`: writes a saved graph as it runs in mixed precision.

How graphs are read, rewritten and written is not known here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from amp.cli import op_libraries, policy_flags
from amp.cli.command import Command, Modules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The graph, where to write it, and the policy."""
    parser.description = (
        "Writes a saved graph, or a SavedModel with all its signatures, as it runs in "
        "mixed precision; TensorFlow loads it without this package. Nothing of it is "
        "executed."
    )
    add = parser.add_argument
    text = "GraphDef (.pb, .pbtxt) or directory of a SavedModel"
    add("path", metavar="PATH", type=Path, help=text)
    add("out", metavar="OUT", type=Path, help="what to write")
    add("--force", action="store_true", help="replace what is at OUT")
    text = "tensor of a GraphDef that will be fetched (default: all that none reads)"
    add("--fetch", metavar="NAME", action="append", default=[], help=text)
    text = "tensor of a GraphDef, besides placeholders, that will be fed"
    add("--feed", metavar="NAME", action="append", default=[], help=text)
    op_libraries.add(parser)
    policy_flags.add(parser, without=policy_flags.OF_JOBS)


def run(args: argparse.Namespace, modules: Modules) -> int:
    """Prints what was changed."""
    policy = policy_flags.policy(args)
    modules.named_files.file_of_graph(args.path)
    modules.op_libraries.load(args.library)
    named = _separated(args.fetch), _separated(args.feed)
    paths = (args.path, args.out)
    made = modules.files.rewrite(*paths, policy, *named, force=args.force)
    print(f"{args.out}: {made}")
    return 0


def _separated(values: Sequence[str]) -> list[str]:
    return [name for value in values for name in value.split(",") if name]


COMMAND = Command(
    help="rewrite a saved graph",
    add_arguments=add_arguments,
    run=run,
    examples={
        "amp rewrite exported exported16": "a SavedModel with all its signatures",
        "amp rewrite graph.pb graph16.pb --fetch probabilities": "a frozen graph",
        "amp rewrite exported exported16 --force": "replaces an earlier result",
    },
    modules={
        **op_libraries.MODULES,
        "files": "amp.integration.files.graph_files",
        "named_files": "amp.integration.files.named_files",
    },
)
