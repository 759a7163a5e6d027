"""`amp explain`: prints what a rewrite of a saved graph would do, and why.

Also of a report that a job wrote, and how two plans differ. How graphs are read and
rewritten is not known here.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from amp.cli import op_libraries, policy_flags, screen
from amp.cli.command import Command, Modules
from amp.errors import UsageError
from amp.policy import Policy

# Flags of what is still to be planned.
_OF_GRAPHS = ("device", "tags", "signature", "library")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The graph, what to tell of it, and the policy."""
    parser.usage = "amp explain [options] PATH\n       amp explain [options] --diff A B"
    parser.description = "Reads a graph or a report; nothing of it is executed."
    add = parser.add_argument
    text = "GraphDef (.pb, .pbtxt), SavedModel, or a report (.json) of AMP_REPORT"
    add("path", metavar="PATH", type=Path, nargs="?", help=text)
    text = "say why this node has its type, and what would change it"
    add("--node", metavar="NAME", help=text)
    text = "compare two plans: those of two reports, or of two graphs"
    add("--diff", metavar=("A", "B"), type=Path, nargs=2, help=text)
    text = "plan for a device that need not be here, as a100: predicted, not measured"
    add("--device", metavar="NAME", help=text)
    add("--json", action="store_true", help="print the whole report")
    add("--html", action="store_true", help="print it as a page, to be put in a file")
    add("--signature", help="of a SavedModel, only what this signature runs")
    add("--tags", help="of a SavedModel, the graph with these (default: serve)")
    op_libraries.add(parser)
    policy_flags.add(parser, without=(*policy_flags.OF_JOBS, "report"))


def run(args: argparse.Namespace, modules: Modules) -> int:
    """Prints the report, what was decided about one node, or a difference.

    Raises:
      PolicyError: a malformed value.
      UsageError: flags that do not go together.
    """
    policy = policy_flags.policy(args)
    given = (args.path is not None) + (args.diff is not None)
    forms = (args.node is not None) + args.json + args.html
    if given != 1 or forms > 1 or (args.diff and (args.node is not None or args.html)):
        raise _usage(args)
    read = functools.partial(_report, policy, args, modules)
    if args.diff:
        one, two = map(modules.named_files.require, args.diff)
        made = ((str(one), read(one)), (str(two), read(two)))
        found = modules.plan_diff.difference(*made)
        print(found.to_json()) if args.json else screen.show(found)
        return 0
    report = read(args.path)
    if args.node is not None:
        screen.show(modules.reports.decision(report, args.node, args.path))
    elif args.html:
        screen.show_page(report.to_html())
    else:
        print(report.to_json()) if args.json else screen.show(report)
    return 0


def _report(
    policy: Policy, args: argparse.Namespace, modules: Modules, path: Path
) -> Any:
    """The report in a file, or on the graph in it.

    Raises:
      GraphError: nothing of this is there, or a flag says how to plan, but nothing that
        is named is still to be planned.
    """
    is_report = modules.reports.is_report
    if not is_report(path):
        modules.named_files.file_of_graph(path)
        modules.op_libraries.load(args.library)
        asked = (policy, args.device, args.tags, args.signature)
        return modules.graphs.explain(path, modules.graphs.Asked(*asked))
    flags = policy_flags.given(args)
    flags += [f"--{n}" for n in _OF_GRAPHS if getattr(args, n)]
    if flags and all(map(is_report, args.diff or [path])):
        raise modules.named_files.only(flags[0], "a graph, not a report", path)
    return modules.reports.read(path)


def _usage(args: argparse.Namespace) -> UsageError:
    """The error for flags that do not go together."""
    if not args.diff:
        found = "no graph was named"
        if args.path is not None:
            found = "several of --node, --json and --html were given"
    elif args.path is None:
        found = f"--diff was given with {'--html' if args.html else '--node'}"
    else:
        found = f"both {args.path} and --diff were given"
    return UsageError(
        found,
        where="amp explain",
        allowed="PATH, with one of --node, --json, --html; or --diff A B, with --json",
        remedy="`amp explain --help` shows both forms",
    )


COMMAND = Command(
    help="what a rewrite of a saved graph would do, and why",
    add_arguments=add_arguments,
    run=run,
    examples={
        "amp explain exported": "a SavedModel: what would run in 16 bits here",
        "amp explain graph.pb --node dense/MatMul": "why this node has its type",
        "amp explain exported --device a100": "what it would be on an A100, predicted",
        "amp explain --diff before.json after.json": "what two plans decide otherwise",
        "amp explain exported --emulate 1 --html > plan.html": "the graph, drawn",
    },
    modules={
        **op_libraries.MODULES,
        "graphs": "amp.integration.files.explained_files",
        "named_files": "amp.integration.files.named_files",
        "plan_diff": "amp.graph_rewrite.plan_diff",
        "reports": "amp.integration.files.report_files",
    },
)
