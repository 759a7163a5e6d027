"""Both sides of a comparison, of a graph that a test builds. No test lives here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rewriting import CPU, graph_def, module_of, settled

from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.comparison import observed
from amp.graph_rewrite.comparison.pair import Pair
from amp.graph_rewrite.graph import ir


def pair_of(build: Callable[[], object], **fields: Any) -> Pair:
    """Both sides of a graph with one result, the node `y`, as those of a function."""
    module = module_of(graph_def(build))
    result = (ir.Result("y", ir.FLOAT, ("y", 0)),)
    main = dataclasses.replace(module.main, name="f", results=result)
    module = ir.Module(main, module.functions)
    prepared = rewrite_lib.prepare(module, settled(CPU, **fields))
    sides = prepared.in_float32("_plain"), prepared.draft(rewrite_lib.CUT, "_twin")
    plain, twin = map(observed.flat, sides)
    return Pair(plain, twin, ir.BFLOAT16, frozenset())
