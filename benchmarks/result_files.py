"""The files of results: their names, what is not replaced, how they are written."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp.integration import atomic_files

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"


def json_file(text: str) -> Path:
    """Reads the name of a file of results.

    Raises:
      ArgumentTypeError: the page or the chart could take its place.
    """
    path = Path(text)
    if path.suffix != ".json":
        raise argparse.ArgumentTypeError(
            f"{text} does not end in .json; the page and the chart are written beside "
            "it, as .md and .svg"
        )
    return path


def refuse_existing(output: Path, force: bool) -> None:
    """Keeps what was measured before.

    Raises:
      SystemExit: one of the files that would be written is there.
    """
    files = [output.with_suffix(end) for end in (".json", ".md", ".svg")]
    there = [str(file) for file in files if file.exists()]
    if there and not force:
        sys.exit(
            f"there already: {', '.join(there)}; name another file with --output, or "
            "replace them with --force"
        )


def default_output(results: Mapping[str, Any], quick: bool) -> Path:
    """A file of the machine, so that two machines do not share one."""
    if quick:
        return ROOT / "build/bench/quick.json"
    machine = results["machine"]
    name = machine["gpu"] or f"{machine['cpu']} {machine['cores']} cores"
    slug = re.sub(r"\W+", "_", name.lower()).strip("_")
    return RESULTS / f"{slug}_{results['settings']['dtype']}.json"


def as_json(results: Mapping[str, Any]) -> str:
    """The results with one run a line."""
    head = {key: value for key, value in results.items() if key != "runs"}
    runs = ",\n".join(json.dumps(run) for run in results["runs"])
    return f'{json.dumps(head, indent=1)[:-2]},\n "runs": [\n{runs}\n ]\n}}\n'


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    with atomic_files.beside(path) as part:
        part.write_text(text, encoding="utf-8")
