"""`Plan`: the type decided for every node of a graph, and why.

Frozen data only: `assign` makes plans and `apply` carries them out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from amp.graph_rewrite.graph.ir import Edge

Read: TypeAlias = tuple[str, int]  # a node and which of its inputs


class Cast(NamedTuple):
    """A cast of a tensor.

    Attributes:
      edge: the edge on which the tensor is made.
      down: whether it is cast to 16 bits; otherwise to float32.
    """

    edge: Edge
    down: bool


CastForm: TypeAlias = Literal["down", "up", "late", "folded"]


class MadeCast(NamedTuple):
    """A cast as `apply` makes it.

    Attributes:
      edge: the tensor that is cast, by the edge on which it is made.
      form: "down" to 16 bits and "up" to float32 as soon as the tensor is made; "late"
        up to float32 once a later node has run; "folded" a constant that is rounded to
        16 bits when the graph is written.
    """

    edge: Edge
    form: CastForm


@dataclasses.dataclass(frozen=True, slots=True)
class CastsToMake:
    """The casts that `apply` is to add to one graph, for `verify` to compare.

    Attributes:
      casts: each of them.
      open: tensors that the graph given has casts of. Which casts are added to those
        is not told: a given cast may serve a reader, or be left over.
    """

    casts: frozenset[MadeCast] = frozenset()
    open: frozenset[Edge] = frozenset()


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
    "keep": "kept in float32 by the user",
    "optimizer": "part of an optimizer's update",
    "custom": "has a gradient of its own, which expects float32",
    "deny": "denied by the policy",
    "unlisted": "not in the white-list",
    "listed": "listed as float32",
    "kernel": "no 16-bit kernel for this op and device",
    "device": "placed on another kind of device than the plan is for",
    "tied": "tied to a node that stays float32, by a comparison or by opaque bytes",
    "unscale": "the gradient unscale or downstream of it",
    "unscaled": "a training step whose gradients were taken without a loss scale",
    "unguarded": "computes a gradient that no loss scale keeps in range",
    "computation": "in a graph with computations of XLA that attributes delimit",
    "searched": "loss and gradient at a point that a search outside of TensorFlow sets",
    "zeroed": "an update by hand that keeps NaN where an overflow leaves zeros",
    "state": "only updates variables",
    "decision": "only decides: on an index, a mask, an integer, a target",
    "settles": "what a loop waits for to settle comes from it",
    "given": "moves a value that nobody rounded to a reader that needs it exactly",
    "range": "a value that the 16-bit type cannot hold",
    "count": "sums more terms than its kernel adds up well in 16 bits",
    "loss": "computes the loss or its gradient: not between two products",
    "result": "a sum after all products, whose rounding would reach the results",
    "cancels": "a difference that rounded operands would spoil, or what computes them",
    "steep": "a function that a rounded operand would spoil, or what computes it",
    "solve": "computes a matrix to factor, invert or solve by, or reads what came out",
    "recurrence": (
        "a product by which a loop goes on from trip to trip, one of several if it is "
        "trained, or a variable from call to call"
    ),
    "decay": "a factor near 1 that the 16-bit type cannot hold, or what it multiplies",
    "scalar": "sums to one figure, where 16 bits save nothing and cost digits",
    "list": "one element type for a whole tensor list, array or stack",
    "loop": "one type for all of a loop variable of TensorFlow 1",
    "variable": "reads a float32 variable in place, or at a set time",
    "fed": "fed by the caller",
    "products": "not a product, in a plan of products only",
    "rewritten": "in a plan that is rewritten in float32",
    "accuracy": "found at fault where gradients, or results, were compared",
    "unreached": "not downstream of a product in 16 bits",
    "cost": "16 bits would not be faster",
    "gain": "the whole function would gain too little",
    "first": "the function was called once, which was not by a plan",
    "trial": "the whole function was tried and runs as it was",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Interface:
    """The arguments and results that become 16-bit, of a function and of calls in it.

    Attributes:
      args: names of float32 arguments that become 16-bit.
      given: for an argument that stays float32, the name of a further argument with its
        16-bit form.
      returns: whether the function returns these further arguments (a loop's body).
      results: numbers of the results that become 16-bit.
      takes, gives: by calling node, the numbers of its inputs and outputs that become
        16-bit.
      adds: by calling node, the edges whose 16-bit form it passes as further arguments.
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
    """The casts that a plan saves, compared with one cast for each read that needs one.

    Attributes:
      shared: reads that use the cast made for another read.
      folded: reads of constants, of which a rounded copy is made instead.
      hoisted: casts made once before a loop instead of in it.
    """

    shared: int = 0
    folded: int = 0
    hoisted: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The decisions for one graph.

    Attributes:
      dtype: DataType number of the 16-bit type.
      low: nodes to make 16-bit.
      attrs: for each of these, the type attributes that change.
      reasons: why each node with float32 or 16-bit tensors has its type.
      casts: the casts to make.
      seconds32, seconds16: predicted time of one run before and after, casts included.
      spared: further seconds of the function as given, of what its twin has not to do
        for other reasons than its types; 0 if the function stays as it is.
      tie: seconds per step by which the choice may exceed the optimum due to rounding;
        -inf if costs were not compared.
      interface: the arguments and results that become 16-bit.
      casts_saved: the casts that the plan saves.
      late: float32 reads in the backward pass of tensors stored in 16 bits, each with
        the node that its cast waits for ("" for none).
      to_make: every cast to make, those that no price counts too.
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
    to_make: CastsToMake = CastsToMake()
    spared: float = 0.0

    @property
    def seconds_given(self) -> float:
        """Predicted seconds of one run of the function as given."""
        return self.seconds32 + self.spared
