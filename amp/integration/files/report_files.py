"""Reads the reports that jobs wrote, for `amp explain`.

Nothing is planned here, and no TensorFlow is imported: a report is there at once.
"""

from __future__ import annotations

from pathlib import Path

from amp.errors import GraphError
from amp.graph_rewrite import explanation
from amp.graph_rewrite.report import Report
from amp.integration.files import named_files


def is_report(path: Path) -> bool:
    """Whether a path is that of a report, and not of a graph.

    Raises:
      GraphError: a directory of reports, of which one is to be named.
    """
    _refuse_directory(path)
    return path.suffix == ".json"


def read(path: Path) -> Report:
    """The report in a file.

    Raises:
      GraphError: no such file, or something else.
    """
    named_files.require(path)
    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else e
        raise GraphError(
            f"this is no report: {why}",
            where=str(path),
            allowed="JSON that AMP_REPORT or `amp explain --json` wrote",
            remedy="name one of these, or a graph",
        ) from e


def decision(report: Report, node: str, path: Path) -> str:
    """Why a node has its type: the chain of causes, and what would change it.

    A node inside a function may be named without the names of the calls around it.

    Raises:
      GraphError: nothing was decided about such a node.
    """
    if explanation.named(report.decisions, node):
        return report.explain(node)
    found = explanation.similar(report.decisions, node)
    raise GraphError(
        f"no decision was made about a node {node!r}",
        where=f"--node, {path}",
        allowed="nodes that hold float32 or 16-bit values",
        remedy=f"did you mean {', '.join(found)}?"
        if found
        else "--json lists every decision",
    )


def _refuse_directory(path: Path) -> None:
    found = sorted(path.glob("*.json")) if path.is_dir() else []
    if not found or any((path / name).exists() for name in named_files.MODELS):
        return
    newest = sorted(found, key=lambda file: file.stat().st_mtime)[-4:]
    raise GraphError(
        f"this is a directory of {len(found)} reports",
        where=str(path),
        allowed="one of them, as " + ", ".join(file.name for file in newest),
        remedy=f"amp explain {newest[-1]}",
    )
