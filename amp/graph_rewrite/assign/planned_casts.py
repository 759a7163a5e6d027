"""The casts of an assignment: in which functions, of which tensors, in which form.

All follows from the description of the tensors and the choice; nothing is chosen here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import TypeAlias

from amp.graph_rewrite.assign.cast_graph import Tensors
from amp.graph_rewrite.assign.tensor import LOW, CutVariable
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, UseEdge
from amp.graph_rewrite.plan import Cast, CastsSaved, CastsToMake, MadeCast, Read

Late: TypeAlias = dict[Read, str]  # as in a plan


@dataclasses.dataclass(frozen=True, slots=True)
class UseCasts:
    """The casts of one use of a function, as in a plan.

    Attributes:
      casts: tensors that are read in both types.
      late: reads with a cast of their own in the backward pass, and the node that the
        cast waits for.
      saved: the casts saved by sharing, folding and hoisting.
      to_make: every cast to make, those that no price counts too.
    """

    casts: frozenset[Cast]
    late: Late
    saved: CastsSaved
    to_make: CastsToMake


def casts(
    tensors: Tensors, low: Set[CutVariable]
) -> dict[FunctionUse, frozenset[Cast]]:
    """By use, the casts of an assignment that have a price.

    Args:
      tensors: of the module.
      low: the 16-bit variables.
    """
    found: dict[FunctionUse, set[Cast]] = {use: set() for use in tensors.uses}
    for tensor in tensors.turning:
        for (use, edge), down in tensor.casts(low):
            found[use].add(Cast(edge, down))
    return {use: frozenset(casts) for use, casts in found.items()}


def inside(tensors: Tensors, low: Set[CutVariable]) -> dict[UseEdge, bool]:
    """The arguments of branches that are cast there; whether they are 16-bit."""
    return {
        place: not down
        for tensor in tensors.turning
        for place, down in tensor.casts(low)
        if place != tensor.place
    }


def use_casts(
    tensors: Tensors, low: Set[CutVariable], handed_on: Set[UseEdge]
) -> dict[FunctionUse, UseCasts]:
    """By use, its casts in the form of a plan.

    Args:
      tensors: of the module.
      low: the 16-bit variables.
      handed_on: as `interfaces.handed_on` gives it.
    """
    early, late, saved = casts(tensors, low), _late(tensors, low), _saved(tensors, low)
    made = _made(tensors, low, handed_on, late)
    given: dict[FunctionUse, set[ir.Edge]] = {use: set() for use in tensors.uses}
    for use, edge in tensors.given():
        given[use].add(edge)
    return {
        use: UseCasts(
            early[use],
            late[use],
            saved[use],
            CastsToMake(frozenset(made[use]), frozenset(given[use])),
        )
        for use in tensors.uses
    }


def _made(
    tensors: Tensors,
    low: Set[CutVariable],
    handed_on: Set[UseEdge],
    late: Mapping[FunctionUse, Late],
) -> dict[FunctionUse, set[MadeCast]]:
    """By use, every cast that is to be added, those without a price too.

    What no 16-bit node makes or reads has a cast only where a call hands it on.
    """
    found: dict[FunctionUse, set[MadeCast]] = {use: set() for use in tensors.uses}
    chosen = {tensor.place: tensor for tensor in tensors.turning}
    for place in handed_on & tensors.every.keys():
        chosen[place] = dataclasses.replace(tensors.every[place], producer=LOW)
    for (use, _), tensor in chosen.items():
        for (where, what), form in tensor.to_make(low, late[use]):
            found[where].add(MadeCast(what, form))
    return found


def _late(tensors: Tensors, low: Set[CutVariable]) -> dict[FunctionUse, Late]:
    found: dict[FunctionUse, Late] = {use: {} for use in tensors.uses}
    for tensor in tensors.turning:
        reads = tensor.waiting(low)
        if reads:
            use = tensor.place[0]
            found[use].update(dict.fromkeys(reads, tensors.lives[use].before(reads)))
    return found


def _saved(tensors: Tensors, low: Set[CutVariable]) -> dict[FunctionUse, CastsSaved]:
    sites = tensors.call_values.sites.values()
    inner = {c for site in sites if site.call.loop for c in site.callees}
    counts = {use: [0, 0, 0] for use in tensors.uses}
    for tensor in tensors.turning:
        one = tensor.casts_saved(low, inner)
        for index, count in enumerate((one.shared, one.folded, one.hoisted)):
            counts[tensor.place[0]][index] += count
    return {use: CastsSaved(*count) for use, count in counts.items()}
