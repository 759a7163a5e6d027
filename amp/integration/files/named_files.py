"""Finds the files and directories that a command line names.

Nothing is parsed here, and no TensorFlow is imported.
"""

from __future__ import annotations

from pathlib import Path

from amp.errors import GraphError

TEXT = (".pbtxt", ".pbtext", ".textproto")
REPORTS = (".json", ".html")
MODELS = ("saved_model.pb", "saved_model.pbtxt")


def require(path: Path) -> Path:
    """The path, if something is there.

    Raises:
      GraphError: nothing is there.
    """
    if path.exists():
        return path
    raise GraphError(
        "there is no such file",
        where=str(path),
        allowed="a file or directory that exists",
        remedy="check the path",
    )


def is_saved_model(path: Path) -> bool:
    """Whether a path is that of a SavedModel: a directory, or the file in it."""
    return path.is_dir() or path.name in MODELS


def holds_model(directory: Path) -> bool:
    """Whether a directory is that of a SavedModel."""
    return any((directory / name).is_file() for name in MODELS)


def file_of_model(path: Path) -> Path:
    """The file of a SavedModel.

    Raises:
      GraphError: the directory holds none.
    """
    if not path.is_dir():
        return require(path)
    for name in MODELS:
        if (path / name).is_file():
            return path / name
    reports = sorted(path.glob("*.json"))
    if reports:
        raise GraphError(
            "this directory holds reports, and no graph",
            where=str(path),
            allowed="the directory of a SavedModel, or one report",
            remedy=f"`amp explain {reports[-1]}`, or another of {len(reports)}",
        )
    raise GraphError(
        "there is no such file",
        where=str(path / MODELS[0]),
        allowed="the directory of a SavedModel, which holds one of "
        + ", ".join(MODELS),
        remedy="name the directory that tf.saved_model.save or model.export wrote",
    )


def file_of_graph(path: Path) -> Path:
    """The file of a graph or of a SavedModel, as far as names tell.

    Commands ask before they import TensorFlow, which takes seconds.

    Raises:
      GraphError: nothing is there, or a report.
    """
    found = file_of_model(path)
    if found.suffix not in REPORTS:
        return found
    raise GraphError(
        "this is a report, and no graph",
        where=str(path),
        allowed="a GraphDef (.pb, .pbtxt) or the directory of a SavedModel",
        remedy=f"`amp explain {path.with_suffix('.json')}` reads it",
    )


def only(flag: str, kind: str, path: Path) -> GraphError:
    """The error for a flag that does not fit what is read."""
    return GraphError(
        f"{flag} was given",
        where=str(path),
        allowed=f"{flag} for {kind}",
        remedy=f"leave {flag} out",
    )
