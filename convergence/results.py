"""Results: one JSON a family, data set and type, written whole, read with care.

What the figures mean is `verdict`'s matter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp.integration import atomic_files
from benchmarks import machine
from convergence.errors import ResultError
from convergence.families import Family, Size

DIRECTORY = Path(__file__).parent / "results"
LIBRARIES = ("scikit-learn", "scipy", "sentencepiece", "sacrebleu", "num2words")
LIBRARIES += ("babel", "pillow")


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Writes results, a run a line."""
    runs = result["runs"]
    head = {key: value for key, value in result.items() if key != "runs"}
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    text = json.dumps(head, indent=1)[:-2]
    atomic_files.write(path, f'{text},\n "runs": [\n{lines}\n]}}\n')


def read(path: Path) -> dict[str, Any]:
    """What a file of results holds.

    Raises:
      ResultError: it is none.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not {"family", "rule", "runs", "dtype"} <= result.keys():
            raise ValueError("it lacks entries")
    except (OSError, ValueError, AttributeError) as e:
        raise unusable(path, f"no results: {e}") from e
    return dict(result)


def every(directory: Path) -> list[dict[str, Any]]:
    """All results of a directory, in the order of their names."""
    return [read(path) for path in sorted(directory.glob("*.json"))]


def unusable(path: Path, found: str) -> ResultError:
    return ResultError(
        found,
        where=path.name,
        allowed="a file that this version of the suite wrote",
        remedy="remove it and run again, without --resume",
    )


def head(
    family: Family, size: Size, *, data: str, dtype: str, emulated: bool, quick: bool
) -> dict[str, Any]:
    """Results without runs: what is to be run, on what, and under which rule."""
    return {
        "family": family.name,
        "title": family.title,
        "data": data,
        "dtype": dtype,
        "emulated": emulated,
        "quick": quick,
        "optimizer": family.optimizer,
        "size": json.loads(json.dumps(dataclasses.asdict(size))),
        "rule": {
            "metric": family.metric,
            "higher": family.higher,
            "worst": family.worst,
            "margin": family.margin,
            "floor": size.floor,
        },
        "machine": _machine(),
        "seeds": 0,
        "runs": [],
    }


def file_name(result: Mapping[str, Any]) -> str:
    """The name of a file of results."""
    words = [result["family"], result["data"], result["dtype"]]
    words += ["emulated"] * result["emulated"] + ["quick"] * result["quick"]
    return "-".join(words) + ".json"


def go_on(path: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Earlier results of the same, to be gone on with; `fresh` where there are none.

    Raises:
      ResultError: they are of another machine, other versions or other sizes.
    """
    if not path.exists():
        return fresh
    earlier = read(path)
    different = [
        key
        for key in fresh
        if key not in ("runs", "seeds") and fresh[key] != earlier.get(key)
    ]
    if different:
        raise ResultError(
            f"these results have another {', '.join(different)}",
            where=path.name,
            allowed="results of the same machine, versions and sizes",
            remedy="run without --resume, which begins anew",
        )
    return earlier


def _machine() -> dict[str, Any]:
    found = machine.machine()
    kept = {key: found[key] for key in ("cpu", "cores", "flags", "system", "gpu")}
    versions = dict(found["versions"])
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {**kept, "versions": versions}
