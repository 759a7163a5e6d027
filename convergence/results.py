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
from convergence import audit, margins, settings
from convergence.errors import ResultError
from convergence.families import Family, Size

PROTOCOL = 2  # files of the first lack this entry, and are not judged
DIRECTORY = Path(__file__).parent / "results"
RULED = ("margin", "scale", "seeds", "goal", "tag")  # what results hold of an entry
LIBRARIES = (
    *("scikit-learn", "scipy", "sentencepiece", "sacrebleu", "num2words"),
    *("babel", "pillow"),
)


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


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """What is run on what: what files of results are named by.

    Attributes:
      family, size: the row.
      data: name of the data.
      dtype: "float16" or "bfloat16".
      emulated: whether values are rounded in float32.
      quick: whether the size is a quick one.
      controls: whether faults are planted.
    """

    family: Family
    size: Size
    data: str
    dtype: str
    emulated: bool
    quick: bool
    controls: bool = False

    @property
    def key(self) -> str:
        """The name of its margins."""
        return margins.key(self.family.name, self.data, quick=self.quick)


def head(
    subject: Subject, settings_: Mapping[str, Any], entry: Mapping[str, Any]
) -> dict[str, Any]:
    """Results without runs: what is to be run, on what, and under which rule.

    Args:
      subject: what is run.
      settings_: what `verdict` has to know of each setting.
      entry: frozen margins, or a goal.
    """
    family, size = subject.family, subject.size
    return {
        "protocol": PROTOCOL,
        "family": family.name,
        "title": family.title,
        "data": subject.data,
        "dtype": subject.dtype,
        "emulated": subject.emulated,
        "quick": subject.quick,
        "controls": subject.controls,
        "optimizer": family.optimizer,
        "size": json.loads(json.dumps(dataclasses.asdict(size))),
        "rule": rule(family, size, subject.dtype, entry),
        "settings": dict(settings_),
        "code": audit.code(family.task),
        "commit": audit.commit(),
        "machine": made_on(),
        "begun": margins.now(),
        "seeds": 0,
        "drills": {},
        "runs": [],
    }


def rule(
    family: Family, size: Size, dtype: str, entry: Mapping[str, Any]
) -> dict[str, Any]:
    """What results hold of what they are judged by.

    Args:
      family, size: the row.
      dtype: the 16-bit type.
      entry: frozen margins, or a goal.
    """
    worse = size.needs_scaling and dtype == "float16"
    return {
        "metric": family.metric,
        "higher": family.higher,
        "worst": family.worst,
        "floor": size.floor,
        "unit": settings.UNIT[dtype],
        "worse": "unscaled" if worse else None,
        **{key: entry[key] for key in RULED if key in entry},
    }


def file_name(result: Mapping[str, Any]) -> str:
    """The name of a file of results."""
    words = [result["family"], result["data"], result["dtype"]]
    words += ["emulated"] * result["emulated"] + ["quick"] * result["quick"]
    words += ["controls"] * result.get("controls", False)
    words += ["goal"] * ("goal" in result["rule"])
    return "-".join(words) + ".json"


def go_on(path: Path, fresh: dict[str, Any], *, any_commit: bool) -> dict[str, Any]:
    """Earlier results of the same, to be gone on with; `fresh` where there are none.

    Args:
      path: their file.
      fresh: a head of results.
      any_commit: whether they may be of another commit. What each run was made by
        stands with it.

    Raises:
      ResultError: they are of another commit, machine, version, size or rule.
    """
    if not path.exists():
        return fresh
    earlier = read(path)
    free = {"runs", "seeds", "begun", "drills"} | (
        {"commit", "code"} if any_commit else set()
    )
    different = [k for k in fresh if k not in free and fresh[k] != earlier.get(k)]
    if different:
        other = not set(different) - {"commit", "code"}
        raise ResultError(
            f"these results have another {', '.join(different)}",
            where=path.name,
            allowed="results of the same commit, machine, versions, sizes and rule",
            remedy="--any-commit goes on all the same, and says so in the results"
            if other
            else "run without --resume, which begins anew",
        )
    return {"drills": {}, **earlier}


def made_on() -> dict[str, Any]:
    """The machine at hand, and the versions of what results depend on."""
    found = machine.machine()
    kept = {key: found[key] for key in ("cpu", "cores", "flags", "system", "gpu")}
    versions = dict(found["versions"])
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {**kept, "versions": versions}
