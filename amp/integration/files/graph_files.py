"""Reads, rewrites and writes graphs in files, for `amp rewrite`.

A graph that is read is never executed; a file or directory is written completely or
not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]
from tensorflow.python.saved_model import fingerprinting_utils

from amp.errors import GraphError
from amp.graph_rewrite.report import Report
from amp.integration import api, atomic_files, reports
from amp.integration.files import (
    graphs,
    model_copies,
    named_files,
    saved_models,
    targets,
)
from amp.policy import Policy

_FINGERPRINT = "fingerprint.pb"
_LARGEST = 2**31 - 1  # bytes that a protobuf message may have


def rewrite(
    source: Path,
    target: Path,
    policy: Policy,
    fetches: Sequence[str],
    feeds: Sequence[str],
    *,
    force: bool = False,
) -> str:
    """Rewrites the graph in a file into another; the policy says where reports go.

    Args:
      source: a GraphDef or the directory of a SavedModel.
      target: what to write, of the same kind; does not exist.
      policy: the policy.
      fetches, feeds: of a GraphDef, as in `amp.rewrite`.

    Returns:
      What was changed, in one line.

    Raises:
      GraphError: no such graph, or one that cannot be imported; a target that exists or
        cannot be written.
      PolicyError: a pattern that matches nothing.
    """
    source = named_files.require(source)
    _require_free(source, target, force)
    if named_files.is_saved_model(source):
        if fetches or feeds:
            flag = "--fetch" if fetches else "--feed"
            raise named_files.only(
                flag, "a GraphDef (a SavedModel's signatures say)", source
            )
        made = _rewrite_model(source, target, policy)
    else:
        made = _rewrite_graph((source, target), policy, fetches, feeds)
    for report in made:
        reports.add(report, policy.report)
    return _told(made, None if reports.failed(policy.report) else policy.report)


def _told(made: Sequence[Report], directory: str | None) -> str:
    """The line that `amp rewrite` prints: what the reports come to in all."""
    if not any(report.nodes_low for report in made):
        why = {report.verdict for report in made} or {"nothing to convert"}
        text = f"the same graph; {'; '.join(sorted(why))}"
    else:
        text = reports.total(made)
    return text if directory is None or not made else f"{text}; reports: {directory}"


def _rewrite_model(source: Path, target: Path, policy: Policy) -> list[Report]:
    file = named_files.file_of_model(source)
    saved = targets.read_model(source)
    for meta in saved.meta_graphs:
        targets.require_ops(meta.graph_def, source)
    settled = api.settle(policy).settled
    made = []
    if settled.policy is not None:
        for meta in saved.meta_graphs:
            made += saved_models.rewrite(meta, settled)
    content = _serialized(saved, file)
    with _beside(target) as part:
        model_copies.copy(file.parent, part, (file.name, _FINGERPRINT))
        (part / file.name).write_bytes(content)
        if (file.parent / _FINGERPRINT).exists():
            fingerprinting_utils.write_fingerprint(str(part))
    return made


def _rewrite_graph(
    files: tuple[Path, Path],
    policy: Policy,
    fetches: Sequence[str],
    feeds: Sequence[str],
) -> list[Report]:
    source, target = files
    graph = targets.read(source)
    targets.require_ops(graph, source)
    made = graphs.rewrite_file(graph, policy, fetches=fetches, feeds=feeds)
    content = _serialized(made.graph, target)
    with _beside(target) as part:
        part.write_bytes(content)
    return [made.report]


def _serialized(proto: Any, file: Path) -> bytes:
    if file.suffix in named_files.TEXT:
        return str(text_format.MessageToString(proto)).encode("utf-8")
    if proto.ByteSize() > _LARGEST:
        raise GraphError(
            f"the rewritten graph has {proto.ByteSize()} bytes",
            where=str(file),
            allowed=f"at most {_LARGEST}, the limit of protobuf",
            remedy="save the weights as variables, not as constants",
        )
    return bytes(proto.SerializeToString(deterministic=True))


def _require_free(source: Path, target: Path, force: bool) -> None:
    if os.path.lexists(target) and not (force and _is_like(source, target)):
        what = "a symbolic link" if target.is_symlink() else "something"
        raise GraphError(
            f"there is {what} already",
            where=str(target),
            allowed="a path where nothing is yet; with --force a graph file, where a "
            "file is rewritten, or a SavedModel (no link to one), where one is",
            remedy="--force replaces it; or name another"
            if _is_like(source, target)
            else "name another, or remove what is there",
        )
    read, written = _place(source).resolve(), target.resolve()
    if read.is_relative_to(written) or written.is_relative_to(read):
        raise GraphError(
            "what is rewritten and the target are one, or one lies inside the other",
            where=str(target),
            allowed="a path that neither holds the graph nor lies inside its model",
            remedy="name another",
        )


def _place(source: Path) -> Path:
    """What is read: a file, or the directory of a SavedModel, however it is named."""
    if not named_files.is_saved_model(source):
        return source
    return named_files.file_of_model(source).parent


def _is_like(source: Path, target: Path) -> bool:
    """Whether what is at the target may be replaced by a rewrite of the source.

    Nothing but what the command itself would write: no other directory, no device, and
    no link to a directory, which a directory cannot replace.
    """
    if not named_files.is_saved_model(source):
        return target.is_file()
    return not target.is_symlink() and named_files.holds_model(target)


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A path to write to, which becomes the target once all is written."""
    try:
        with atomic_files.beside(target) as part:
            yield part
    except (OSError, shutil.Error) as e:
        raise GraphError(
            f"this cannot be written: {e}",
            where=str(target),
            allowed="a place that can be written to, with room enough",
            remedy="name another, or make room",
        ) from e
