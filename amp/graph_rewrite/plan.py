"""`Plan`: what was decided for every node of a graph, and why. Frozen, and only data.

Neither deciding nor doing may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from amp.graph_rewrite.graph.ir import Edge

Read: TypeAlias = tuple[str, int]  # a node and which of its inputs


class Cast(NamedTuple):
    """A tensor that is also needed in the other type.

    Attributes:
      edge: the tensor, by the edge on which it is made.
      down: whether the other type is the 16-bit one; else float32.
    """

    edge: Edge
    down: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why a node has its type.

    Attributes:
      rule: the name of the rule that decided (RULES says what each means).
      cause: the node, pattern, constant or figure that made the rule apply.
    """

    rule: str
    cause: str


RULES: Mapping[str, str] = {
    "compute": "a product that 16-bit arithmetic speeds up",
    "follow": "arithmetic beside 16-bit nodes",
    "move": "moves 16-bit values",
    "already": "held in 16 bits before",
    "keep": "kept in float32 by the user or as part of an optimizer",
    "deny": "denied by the policy",
    "unlisted": "not in the white-list",
    "listed": "listed as float32",
    "kernel": "no 16-bit kernel for this op and device",
    "unscale": "the gradient unscale or downstream of it",
    "state": "only updates variables",
    "decision": "only decides: on an index, a mask, an integer, a target",
    "range": "a value that the 16-bit type cannot hold",
    "count": "sums more elements than the 16-bit type can count",
    "scalar": "sums to one figure, where 16 bits save nothing and cost digits",
    "list": "one element type for a whole tensor list",
    "variable": "reads a float32 variable in place, or at a set time",
    "fed": "fed by the caller",
    "unreached": "not downstream of a product in 16 bits",
    "cost": "16 bits would not be faster",
    "gain": "the whole function would gain too little",
    "trial": "the whole function was tried and runs as it was",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Interface:
    """How the boundary of a function, and of the calls in it, turns 16-bit.

    Attributes:
      args: float32 arguments that turn.
      given: by argument that stays, the new one that brings its 16-bit form.
      returns: whether the new arguments are results as well (a loop's body).
      results: results that turn.
      takes, gives: by calling node, its inputs and outputs that turn.
      adds: by calling node, the edges whose 16-bit form it passes besides.
    """

    args: frozenset[str] = frozenset()
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    returns: bool = False
    results: frozenset[int] = frozenset()
    takes: Mapping[str, frozenset[int]] = dataclasses.field(default_factory=dict)
    gives: Mapping[str, frozenset[int]] = dataclasses.field(default_factory=dict)
    adds: Mapping[str, tuple[Edge, ...]] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.args or self.given or self.results or self.takes or self.gives
        ) or bool(self.adds)


@dataclasses.dataclass(frozen=True, slots=True)
class CastsSaved:
    """Casts that a plan does without, against one for every read in another type.

    Attributes:
      shared: reads that a cast made for another read serves.
      folded: reads of constants, which are rounded when the graph is written.
      hoisted: casts made once before a loop and not in it.
    """

    shared: int = 0
    folded: int = 0
    hoisted: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The decisions for one graph.

    Attributes:
      dtype: number of the 16-bit type.
      low: nodes to hold in 16 bits.
      attrs: for each low node, the type attributes that turn.
      reasons: for every node that touches float32, why it is as it is.
      casts: tensors read in a type other than they are made in.
      seconds32, seconds16: predicted time before and after, casts included.
      tie: seconds that the choice may be over the cheapest; -inf: none was weighed.
      interface: how the boundary turns.
      casts_saved: casts that the plan does without.
      late: reads in float32 of tensors that are held in 16 bits until then, with a node
        that each cast up waits for ("": none).
    """

    dtype: int
    low: frozenset[str]
    attrs: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, Reason]
    casts: frozenset[Cast]
    seconds32: float
    seconds16: float
    tie: float
    interface: Interface = Interface()
    casts_saved: CastsSaved = CastsSaved()
    late: Mapping[Read, str] = dataclasses.field(default_factory=dict)
