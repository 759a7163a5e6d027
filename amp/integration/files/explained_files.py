"""Explains graphs in files, for `amp explain`; `report_files` has the reports of jobs.

Called by the command only. A graph that is read is never executed, and no file is
written.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import message  # type: ignore[import-untyped]

from amp.graph_rewrite.cost.resolution import Resolution, resolve_named
from amp.graph_rewrite.report import Report
from amp.integration import api, source_lines
from amp.integration.files import graphs, named_files, saved_models, signatures, targets
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
    """What a rewrite of the graph in a file would do.

    Args:
      path: of a GraphDef or a SavedModel.
      asked: how to plan.

    Raises:
      GraphError: no such file, graph or signature.
      PolicyError: an unknown device.
    """
    if named_files.is_saved_model(path):
        return _saved_model(path, asked)
    for flag in ("tags", "signature"):
        if getattr(asked, flag) is not None:
            raise named_files.only(f"--{flag}", "a SavedModel", path)
    graph = targets.read(path)
    targets.require_ops(graph, path)
    return graphs.explain_file(graph, asked.settled())


def _saved_model(path: Path, asked: Asked) -> Report:
    saved = targets.read_model(path)
    tags = asked.tags
    chosen = None if tags is None else [tag for tag in tags.split(",") if tag]
    meta = targets.meta_graph(saved, chosen, path)
    targets.require_ops(meta.graph_def, path)
    settled = asked.settled()
    if asked.signature is None:
        report = saved_models.explain(meta, settled)
    else:
        where = str(path)
        part, fetches = signatures.graph(meta, asked.signature, where)
        report = graphs.explain_file(part, settled, fetches)
        said = signatures.part_of(meta, asked.signature, part)
        report = dataclasses.replace(report, part=said)
    info = _debug_info(named_files.file_of_model(path).parent / _DEBUG)
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
