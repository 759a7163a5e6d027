"""`amp compare`: a comparison of a function that was saved in a file.

Puts the parts together for the command; nothing is printed here.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import tensorflow as tf

from amp.errors import GraphError
from amp.graph_rewrite.comparison.comparison import Comparison
from amp.graph_rewrite.comparison.range_report import RangeReport
from amp.integration.comparing import compare, dry_run, saved_functions, traced
from amp.integration.comparing.saved_functions import SavedFunction
from amp.policy import Policy

_OURS = re.compile(r"\{\{function_node \S*_compared_\d+\}\} ")  # the copy that runs


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What to compare.

    Attributes:
      path: of a GraphDef or SavedModel.
      signature: of a SavedModel, which one; None for the default.
      tags: of a SavedModel, those of the graph, separated by commas.
      inputs: an .npz file, None for inputs at random.
      suggest: the error to suggest nodes for, None for no suggestion.
      dry_run: whether only float32 is looked at.
    """

    path: Path
    signature: str | None
    tags: str | None
    inputs: Path | None
    suggest: float | None
    dry_run: bool


def compare_file(asked: Asked, policy: Policy) -> Comparison | RangeReport:
    """Compares the function in a file.

    Raises:
      GraphError: no such file, graph, signature or input, or a function that fails.
      PolicyError: a pattern that matches nothing.
    """
    saved = saved_functions.load(asked.path, asked.signature, asked.tags)
    if asked.inputs is None:
        values, note = saved_functions.made_up(saved)
    else:
        values, note = saved_functions.inputs_from(asked.inputs, saved), ""
    try:
        found = _compared(asked, policy, saved, values)
    except tf.errors.OpError as e:
        takes = ", ".join(f"{n} {s.shape}" for n, s in saved.specs.items())
        raise GraphError(
            f"the function fails: {_OURS.sub('', e.message)}",
            where=str(asked.path),
            allowed=f"inputs that it can compute with: {takes}",
            remedy="pass real inputs with --inputs FILE.npz",
        ) from e
    if note:
        found = dataclasses.replace(found, notes=(note, *found.notes))
    return dataclasses.replace(found, function=str(asked.path))  # as the user calls it


def _compared(
    asked: Asked, policy: Policy, saved: SavedFunction, values: dict[str, Any]
) -> Comparison | RangeReport:
    args = () if saved.by_name else tuple(values.values())
    named = values if saved.by_name else {}
    how = dry_run.traced if asked.dry_run else traced.traced
    call = how(saved.function, args, named, policy)
    if asked.dry_run:
        return dry_run.look(call)
    return compare.of_call(call, asked.suggest)
