"""Makes the twin of a function: has it rewritten, and registers the result.

Used by `twins`, which decides when a twin is made and whether it runs. No choice of
precision is made here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from amp.graph_rewrite.assign.nominee import Nominee
from amp.graph_rewrite.cost.op_instance import Timer
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.normalize.sizes import SizesAtCall
from amp.graph_rewrite.rewrite import Begun, Prepared, Rewrite, begin
from amp.integration.runtime import definitions


@dataclasses.dataclass(frozen=True, slots=True)
class MadeTwin:
    """A twin that is registered in TensorFlow's runtime.

    Attributes:
      name: its name; the original's if the plan converts nothing.
      functions: the names of all functions that were registered.
      repeatable: whether it leaves nothing behind if it fails: it only computes, or XLA
        compiles it as a whole and writes variables after all has succeeded.
    """

    name: bytes
    functions: tuple[str, ...]
    repeatable: bool


def begun(
    module: ir.Module, settled: Resolution, sizes: SizesAtCall | None = None
) -> Begun:
    """Inlines the calls of a function and finds its sizes.

    Args:
      module: the function, as `definitions` read it.
      settled: policy and device.
      sizes: of the call that plans are made for.

    Raises:
      AmpError: what was found wrong.
    """
    return begin(module, settled, sizes=sizes)


def told(begun: Begun) -> list[ir.Shape]:
    """The shapes that are the call's, as the trace does not have them."""
    sized = begun.values.get("sized")
    return [] if sized is None else list(sized.given.values())


def prepared(begun: Begun, timer: Timer) -> Prepared:
    """Analyzes and prices a function.

    Args:
      begun: the function.
      timer: gives measured times of its operations.

    Raises:
      AmpError: what was found wrong.
    """
    return begun.prepared(timer)


def registered(
    context: Any, prepared: Prepared, nominee: Nominee, later: bool = False
) -> tuple[MadeTwin, Rewrite]:
    """Makes a function's twin by one of its plans.

    Args:
      context: TensorFlow's eager context.
      prepared: the function.
      nominee: the plan.
      later: as of `Prepared.made`.

    Raises:
      AmpError: what the rewrite found wrong.
    """
    given = prepared.given
    result = prepared.made(nominee, definitions.new_suffix(), later=later)
    made = [
        g for key, g in result.graph.functions.items() if key not in given.functions
    ]
    if result.graph.main is not given.main:
        made.append(result.graph.main)
    main = result.graph.main
    twin = MadeTwin(
        name=str(main.name).encode(),
        functions=tuple(definitions.register(context, made, result.graph)),
        repeatable=calls.MUST_COMPILE in main.flags
        or not definitions.has_effects(given),
    )
    return twin, result


def removed(context: Any, made: MadeTwin) -> None:
    """Takes a twin that never runs again out of TensorFlow's runtime."""
    for function in made.functions:
        if context.has_function(function):
            context.remove_function(function)
