"""Which arguments a function gets that runs for each element of a dataset.

`for x in dataset` in a `tf.function` is a `ScanDataset` with the loop's body as its
function, and a `ReduceDataset` that takes the last state. Only the places of arguments
and results are here; nothing is planned and no size is known.
"""

from __future__ import annotations

from collections.abc import Iterable

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import Call


def arguments_of(node: ir.Node, call: Call, index: int, count: int) -> range:
    """The arguments of a calling node's functions that come of one of its inputs.

    Args:
      node: the calling node.
      call: how it calls.
      index: of the input.
      count: of the arguments that each function has.
    """
    first = index - call.skip
    if not call.each:
        return range(max(first, 0), first + 1)
    states, passed = _states(node), len(node.inputs) - call.skip
    elements = count - passed
    if index < call.skip:
        return range(states, states + elements)
    moved = first if first < states else first + elements
    return range(moved, moved + 1)


def _states(node: ir.Node) -> int:
    """How many arguments an op that runs for each element carries on."""
    return len(node.types("Tstate") or node.types("output_types"))


def carried(node: ir.Node, call: Call, results: Iterable[int]) -> set[int]:
    """Of the results of a loop's body, those that are arguments of its next trip."""
    if call.each:
        return {index for index in results if index < _states(node)}
    return set(results) if call.loop else set()
