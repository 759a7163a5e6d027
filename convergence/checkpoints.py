"""Checkpoints of a run: one file, replaced as a whole.

Variables in order, the step, and what was recorded so far. Knows no model.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from amp.integration import atomic_files
from convergence import results


def save(
    place: Path, step: int, state: Sequence[tf.Variable], history: dict[str, Any]
) -> None:
    """Writes a checkpoint; killed at any point, it leaves the old one or the new one.

    Args:
      place: the file.
      step: the next one to take.
      state: every variable that a step may change.
      history: what was recorded; JSON keeps its numbers exactly.
    """
    values = {f"v{index}": v.numpy() for index, v in enumerate(state)}
    told = np.array(json.dumps({"step": step, "history": history}))
    with atomic_files.beside(place) as partial, partial.open("wb") as file:
        np.savez(file, told=told, **values)


def restore(
    place: Path, state: Sequence[tf.Variable]
) -> tuple[int, dict[str, Any]] | None:
    """Reads a checkpoint into variables; None where there is none.

    Returns:
      The next step, and what was recorded.

    Raises:
      ResultError: it cannot be read, or is of another model.
    """
    if not place.exists():
        return None
    try:
        with np.load(place, allow_pickle=False) as held:
            told = json.loads(str(held["told"]))
            values = [held[f"v{index}"] for index in range(len(state))]
        if len(held.files) != len(state) + 1:
            raise ValueError(f"{len(held.files) - 1} variables, not {len(state)}")
        for variable, value in zip(state, values, strict=True):
            variable.assign(value)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as e:
        raise results.unusable(place, f"the checkpoint cannot be used: {e}") from e
    return int(told["step"]), told["history"]
