"""Whether results are multiplied by what their inputs are multiplied by.

Of nodes that were just built: a gradient that clips what comes in, takes its sign or
leaves it out is not, and loss scaling would change it. Told are those of which it is
certain; nothing is built or run here, and nothing decided. What single operations do
is in `degrees`.

A gradient has to have degree 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.graph_rewrite.graph.calls import Call
from amp.loss_scaling import degrees
from amp.loss_scaling.degrees import (
    HIDDEN,
    NONE,
    NUMBER,
    ONE,
    UNKNOWN,
    ZERO,
    Degree,
)

# Gives how an operation calls functions, and the graphs of these in the order of its
# attributes; None if it calls none, or one that is not known.
Functions: TypeAlias = Callable[[Any], tuple[Call, Sequence[Any]] | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What is known of nodes besides what they are.

    Attributes:
      functions: see there.
      made_whole: see `eager_backward.Passing`; such a result has the degree of what was
        given, whatever was built between.
      told: the degrees of what variables are told; added to.
    """

    functions: Functions = lambda operation: None
    made_whole: Mapping[Any, Sequence[tf.Tensor]] = dataclasses.field(
        default_factory=dict
    )
    told: list[Degree] = dataclasses.field(default_factory=list)


def bent(
    operations: Iterable[Any],
    given: Sequence[tf.Tensor],
    results: Sequence[tf.Tensor],
    known: Known | None = None,
    *,
    hidden: bool = False,
) -> bool:
    """Whether a result is certain not to be of degree 1 in what was given.

    One that does not depend on it is not, if none does, or if it is the same in every
    run: what is computed, beside others, may be no gradient. What is told to a variable
    is not scaled back, so that it may have no degree at all.

    Args:
      operations: those built since, in the order in which they were.
      given: the tensors that came in.
      results: of floating type.
      known: see there.
      hidden: what is said of a result that Python computes in the graph.
    """
    of: dict[Any, Degree] = {tensor.ref(): ONE for tensor in given}
    known = known or Known()
    _follow(operations, of, known)
    if not {*known.told} <= {NUMBER, ZERO, UNKNOWN, HIDDEN}:
        return True
    told = {each.ref(): _degree(each, of) for each in results}
    kinds = {*told.values()} - {ZERO}
    if HIDDEN in kinds and hidden:
        return True
    if not kinds <= {ONE, UNKNOWN, HIDDEN, NUMBER} or kinds == {NUMBER}:
        return True
    fixed = (ref.deref() for ref, degree in told.items() if degree == NUMBER)
    return any(tf.get_static_value(each) is not None for each in fixed)


def _follow(operations: Iterable[Any], of: dict[Any, Degree], known: Known) -> None:
    """Adds the degrees of what operations compute."""
    for operation in operations:  # values are looked at beside what came in alone
        outputs = operation.outputs
        if any(each.ref() in of for each in operation.inputs):
            inputs = [_degree(each, of) for each in operation.inputs]
            called = known.functions(operation)
            if called is None:
                found = degrees.of_results(operation, inputs)
                if degrees.tells(operation):
                    known.told.extend(inputs)
            else:
                found = _of_calls(*called, inputs, known) or [UNKNOWN] * len(outputs)
            of.update(zip((each.ref() for each in outputs), found, strict=True))
        for output in outputs:
            if output.ref() in known.made_whole:
                came = {_degree(each, of) for each in known.made_whole[output.ref()]}
                of[output.ref()] = came.pop() if len(came) == 1 else UNKNOWN


def _of_calls(
    call: Call, graphs: Sequence[Any], inputs: Sequence[Degree], known: Known
) -> list[Degree] | None:
    """The degrees of the results of functions for those of what calls them reads."""
    if call.each:
        return None
    given = inputs[call.skip :]
    if call.loop:
        found = [_of_trips(graphs[-1], given, known)]
        chosen = _of_call(graphs[0], found[0], known)
        # What begins as a number, a residual say, has the degree of a trip after one.
        after = _of_call(graphs[0], _of_call(graphs[-1], found[0], known), known)
        chosen = after if NONE in after else chosen
    else:
        found = [_of_call(graph, given, known) for graph in graphs]
        chosen = list(inputs[: call.skip])
    results = [degrees.alike(each) for each in zip(*found, strict=True)]
    none = degrees.least(chosen)
    return results if none is None else [none] * len(results)


def _of_trips(body: Any, first: Sequence[Degree], known: Known) -> list[Degree]:
    """The degrees of what a loop leaves, which go up to a fixed point."""
    state, before = list(first), None
    while state != before:
        before = state
        after = _of_call(body, state, known)
        state = [_either(*pair) for pair in zip(state, after, strict=True)]
    return state


def _either(first: Degree, later: Degree) -> Degree:
    """Before any trip, and after some: zeros may become anything, and stay certain."""
    if (none := degrees.least((first, later))) is not None:
        return none
    return later if first in (later, ZERO) else first if later == ZERO else UNKNOWN


def _of_call(graph: Any, inputs: Sequence[Degree], known: Known) -> list[Degree]:
    """The degrees of the results of a function for those of its arguments."""
    pairs = zip(graph.inputs, inputs, strict=True)
    of = {given.ref(): degree for given, degree in pairs if degree != NUMBER}
    _follow(graph.get_operations(), of, known)
    return [_degree(each, of) for each in graph.outputs]


def _degree(tensor: tf.Tensor, of: Mapping[Any, Degree]) -> Degree:
    """The degree of a tensor: a number, if it does not depend on what came in."""
    found = of.get(tensor.ref(), NUMBER)
    return degrees.of_number(tensor) if found == NUMBER else found
