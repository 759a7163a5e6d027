"""Explains graphs in files, and reports that jobs wrote, for `amp explain`.

Called by the command only. A graph that is read is never executed, and no file is
written.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import message  # type: ignore[import-untyped]

from amp.errors import GraphError
from amp.graph_rewrite import explanation, plan_diff
from amp.graph_rewrite.cost.resolution import Resolution, resolve_named
from amp.graph_rewrite.plan_diff import Difference
from amp.graph_rewrite.report import Report
from amp.integration import api, source_lines
from amp.integration.files import graphs, saved_models, targets
from amp.policy import Policy

_DEBUG = Path("debug", "saved_model_debug_info.pb")


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """How a file is to be explained.

    Attributes:
      policy: the policy to plan by.
      device: a device to plan for that need not be here, None for this machine's.
      tags: of a SavedModel, those of the graph, separated by commas.
      signature: of a SavedModel, the signature to look at.
    """

    policy: Policy
    device: str | None = None
    tags: str | None = None
    signature: str | None = None

    def settled(self) -> Resolution:
        """The policy as it is on the device."""
        if self.device is None:
            return api.settle(self.policy).settled
        return resolve_named(self.policy, self.device)


def explain(path: Path, asked: Asked) -> Report:
    """What a rewrite of the graph in a file would do, or what a job's report says.

    Args:
      path: of a GraphDef, a SavedModel, or a report in JSON.
      asked: how to plan; a report was planned already.

    Raises:
      GraphError: no such file, graph or signature.
      PolicyError: an unknown device.
    """
    if path.suffix == ".json":
        for flag in ("device", "tags", "signature"):
            if getattr(asked, flag) is not None:
                raise targets.only(f"--{flag}", "a graph, not a report", path)
        return _report(targets.require(path))
    _refuse_reports(path)
    if targets.is_saved_model(path):
        return _saved_model(path, asked)
    for flag in ("tags", "signature"):
        if getattr(asked, flag) is not None:
            raise targets.only(f"--{flag}", "a SavedModel", path)
    return graphs.explain_file(targets.read(path), asked.settled())


def difference(one: Path, two: Path, asked: Asked) -> Difference:
    """How the plans of two files differ, or those of two reports.

    Args, Raises: as of `explain`, for both.
    """
    made = [(str(path), explain(path, asked)) for path in (one, two)]
    return plan_diff.difference(made[0], made[1])


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


def _refuse_reports(path: Path) -> None:
    """Refuses a directory of reports, of which one is to be named."""
    found = sorted(path.glob("*.json")) if path.is_dir() else []
    if not found or any((path / name).exists() for name in targets.MODELS):
        return
    newest = sorted(found, key=lambda file: file.stat().st_mtime)[-4:]
    raise GraphError(
        f"this is a directory of {len(found)} reports",
        where=str(path),
        allowed="one of them, as " + ", ".join(file.name for file in newest),
        remedy=f"amp explain {newest[-1]}",
    )


def _report(path: Path) -> Report:
    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise GraphError(
            f"this is no report: {type(e).__name__}: {e}",
            where=str(path),
            allowed="JSON that AMP_REPORT or `amp explain --json` wrote",
            remedy="name one of these, or a graph",
        ) from e


def _saved_model(path: Path, asked: Asked) -> Report:
    saved = targets.read_model(path)
    tags = asked.tags
    chosen = None if tags is None else [tag for tag in tags.split(",") if tag]
    meta = targets.meta_graph(saved, chosen, path)
    settled = asked.settled()
    if asked.signature is None:
        report = saved_models.explain(meta, settled)
    else:
        where = str(path)
        part, fetches = saved_models.signature_graph(meta, asked.signature, where)
        report = graphs.explain_file(part, settled, fetches)
    info = _debug_info(targets.file_of_model(path).parent / _DEBUG)
    if info is None:
        return report
    return source_lines.added(report, source_lines.of_graph_def(meta.graph_def, info))


def _debug_info(path: Path) -> Any:
    """The stack traces that a SavedModel was saved with, None if it has none."""
    info = type(tf.compat.v1.GraphDef().debug_info)()
    try:
        info.ParseFromString(path.read_bytes())
    except (OSError, message.DecodeError):
        return None
    return info
