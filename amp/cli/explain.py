"""`amp explain`: prints what a rewrite of a saved graph would do, and why.

How graphs are read and rewritten is not known here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace

from amp.cli import policy_flags
from amp.cli.command import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The graph, what to tell of it, and the policy."""
    parser.description = "Reads a graph; nothing of it is executed."
    add = parser.add_argument
    text = "GraphDef (.pb, .pbtxt) or SavedModel"
    add("path", metavar="PATH", type=Path, help=text)
    add("--node", help="say why this node has its type")
    add("--json", action="store_true", help="print the whole report")
    add("--html", action="store_true", help="print it as a page, to be put in a file")
    add("--signature", help="of a SavedModel, only what this signature runs")
    add("--tags", help="of a SavedModel, the graph with these (default: serve)")
    policy_flags.add(parser)


def run(args: argparse.Namespace, modules: SimpleNamespace) -> int:
    """Prints the report, or what was decided about one node."""
    policy = policy_flags.policy(args)
    report = modules.files.explain(args.path, policy, args.tags, args.signature)
    if args.node:
        print(modules.files.decision(report, args.node, args.path))
    elif args.html:
        print(report.to_html())
    else:
        print(report.to_json() if args.json else report)
    return 0


COMMAND = Command(
    help="what a rewrite of a saved graph would do, and why",
    add_arguments=add_arguments,
    run=run,
    examples={
        "amp explain exported": "a SavedModel: what would run in 16 bits here",
        "amp explain graph.pb --node dense/MatMul": "why this node has its type",
        "amp explain exported --emulate 1 --html > plan.html": "the graph, drawn",
    },
    modules={"files": "amp.integration.files.graph_files"},
)
