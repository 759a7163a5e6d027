"""A rewrite is the same in every process, whatever order sets have there."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import hash_seeds


def printed(seed: int) -> str:
    root = pathlib.Path(__file__).parents[2]
    paths = os.pathsep.join((str(root), str(root / "tests/support")))
    changed = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, hash_seeds.__file__],
        env={**os.environ, **changed},
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout


def test_graphs_and_reports_do_not_depend_on_the_seed_of_hashes() -> None:
    first = printed(1)
    assert first
    assert printed(2) == first
