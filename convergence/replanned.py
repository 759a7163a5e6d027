"""What planning steps anew gave, kept beside results: planning takes a minute a result.

No step is planned here and no result judged.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from amp.integration import atomic_files
from convergence import audit, results
from convergence.families import FAMILIES
from convergence.staleness import Replan

FILE = Path("replanned") / "plans.json"  # below a directory of results
# What makes plans of results, beside the code that `audit.code` has digests of.
MODULES = ("again", "arms", "controls", "plans", "replanning", "traced")
LIBRARIES = ("tensorflow", "tensorflow-cpu", "keras")


@contextlib.contextmanager
def kept(replan: Replan, directory: Path) -> Iterator[Replan]:
    """A `Replan` that asks another one only for what is not known yet.

    What is known holds while the package, the suite, the family's row and the versions
    of TensorFlow and Keras are the same. At the end what was found is written, also if
    the scope is left by an error.

    Args:
      replan: plans a result anew; several threads may ask.
      directory: of results.
    """
    file = directory / FILE
    known = _read(file)
    found: dict[str, dict[str, Any]] = {}

    def again(result: Mapping[str, Any]) -> Mapping[str, str] | None:
        name, made_by = results.file_name(result), _made_by(result)
        entry = known.get(name)
        if entry is not None and entry["made by"] == made_by:
            plans: Mapping[str, str] | None = entry["plans"]
        else:
            plans = replan(result)
        if plans is not None:
            found[name] = {"made by": made_by, "plans": dict(plans)}
        return plans

    try:
        yield again
    finally:
        if found:
            every = dict(sorted({**known, **found}.items()))
            file.parent.mkdir(exist_ok=True)
            atomic_files.write(file, json.dumps(every, indent=1) + "\n")


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Entries by the name of a result's file; none where they cannot be read."""
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return {
            name: {key: e[key] for key in ("made by", "plans")}
            for name, e in held.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # They are planned anew.


def _made_by(result: Mapping[str, Any]) -> str:
    """A digest of all that the plans of a result depend on."""
    family = FAMILIES[result["family"]]
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    parts = ("data", "dtype", "emulated", "quick", "settings")
    return audit.of(
        [
            audit.code(family.task),
            audit.digest(audit.ROOT / "convergence" / f"{name}.py" for name in MODULES),
            repr(family),
            [result[part] for part in parts],
            result["machine"]["flags"],
            versions,
        ]
    )
