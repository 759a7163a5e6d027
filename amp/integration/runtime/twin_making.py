"""Makes the twin of a function by one of its plans, and registers it.

Used by `function_plans`, which decides when a twin is made; whether it runs, and which
precision its nodes have, is not decided here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from amp.graph_rewrite.assign.nominee import Nominee
from amp.graph_rewrite.graph import calls, generators, ir
from amp.graph_rewrite.rewrite import Begun, Prepared, Rewrite
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


def shapes_given(begun: Begun) -> list[ir.Shape]:
    """The shapes that are the call's, as the trace does not have them."""
    sized = begun.values.get("sized")
    return [] if sized is None else list(sized.given.values())


def registered(
    context: Any,
    prepared: Prepared,
    nominee: Nominee,
    later: bool = False,
    by_turns: bool = False,
) -> tuple[MadeTwin, Rewrite]:
    """Makes a function's twin by one of its plans.

    Args:
      context: TensorFlow's eager context.
      prepared: the function.
      nominee: the plan.
      later: as of `Prepared.made`.
      by_turns: whether other forms of the function run by turns with it.

    Raises:
      AmpError: what the rewrite found wrong.
    """
    given, suffix = prepared.given, definitions.new_suffix()
    result = prepared.made(nominee, suffix, later=later)
    module = result.graph
    main = module.main
    if by_turns and main is not given.main:
        module = generators.drawing_apart(module, suffix, others=given.functions)
    made = [g for key, g in module.functions.items() if key not in given.functions]
    if main is not given.main:
        made.append(module.main)
    twin = MadeTwin(
        name=str(main.name).encode(),
        functions=tuple(definitions.register(context, module, made)),
        repeatable=calls.MUST_COMPILE in main.flags
        or not definitions.has_effects(given),
    )
    return twin, result
