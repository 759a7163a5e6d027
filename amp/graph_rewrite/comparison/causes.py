"""Says why a function and its twin part where they do.

From figures alone; nothing is run here and no source line is looked up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from amp.graph_rewrite.candidates.context import Format
from amp.graph_rewrite.comparison import wording
from amp.graph_rewrite.comparison.alone import KernelError
from amp.graph_rewrite.comparison.comparison import ComparedTensor
from amp.graph_rewrite.comparison.pair import Pair, Watched
from amp.graph_rewrite.graph import calls, ir
from amp.graph_rewrite.ops.op_table import facts


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All that was found, by which a cause is told.

    Attributes:
      pair: the function and its twin.
      watched: the tensors that were compared.
      tensors: their figures.
      kernels: of the 16-bit nodes by themselves, by name.
      limits: of the 16-bit type.
      given: by argument, the errors that the arguments came with.
    """

    pair: Pair
    watched: Sequence[Watched]
    tensors: Sequence[ComparedTensor]
    kernels: Mapping[str, KernelError]
    limits: Format
    given: Mapping[str, float] = dataclasses.field(default_factory=dict)


def cause(seen: Seen, index: int) -> tuple[str, str]:
    """Why a tensor that parted first has parted.

    Case 1: its kernel is wrong by itself. Case 2: it holds values that the type cannot
    hold. Case 3: what it reads lost values to 0. Case 4: neither; errors that came in
    have grown.

    Returns:
      "kernel", "range" or "sensitive", and the same in words.
    """
    tensor, limits = seen.tensors[index], seen.limits
    alone = seen.kernels.get(seen.watched[index].edge[0])
    if alone is not None and alone.wrong:
        return "kernel", (
            f"conversion fault: by itself, on the same rounded inputs, this "
            f"{limits.name} kernel is off by {alone.error:.2g}, where rounding "
            f"explains {alone.allowed:.2g}"
        )
    held = _out_of_range(tensor, limits)
    if held:
        return "range", f"range: {held}"
    inputs = _inputs(seen, index)
    lost = [each for each in inputs if each.underflowed or each.overflowed]
    if lost and tensor.overflowed:
        share = wording.share(lost[0].underflowed or lost[0].overflowed)
        what = f"{share} of its input {lost[0].name}"
        return "range", f"range: {what} left {limits.name}'s range"
    return "sensitive", _grown(seen, index, inputs)


def _out_of_range(tensor: ComparedTensor, limits: Format) -> str:
    """Which values the type cannot hold, "" if those do not make the error."""
    if tensor.overflowed and tensor.largest > limits.largest:
        return f"values reach {tensor.largest:.3g}, {limits.name} {limits.largest:g}"
    if tensor.small_error < tensor.error / 2:
        return ""
    if tensor.underflowed:
        return (
            f"{wording.share(tensor.underflowed)} of its values are too small for "
            f"{limits.name} and become 0; the largest is {tensor.largest:.3g}"
        )
    return (
        f"{wording.share(tensor.denormal)} of its values are below "
        f"{limits.smallest:.2g}, where {limits.name} has fewer digits"
    )


def _inputs(seen: Seen, index: int) -> list[ComparedTensor]:
    places = {watched.edge: place for place, watched in enumerate(seen.watched)}
    node = seen.pair.plain.main.nodes.get(seen.watched[index].edge[0])
    edges: Sequence[ir.Edge] = () if node is None else node.inputs
    return [seen.tensors[places[edge]] for edge in edges if edge in places]


def _grown(seen: Seen, index: int, inputs: Sequence[ComparedTensor]) -> str:
    tensor = seen.tensors[index]
    node = seen.pair.plain.main.nodes.get(seen.watched[index].edge[0])
    functions = seen.pair.plain.functions
    if node is not None and calls.call_of(node, functions) is not None:
        return (
            "sensitive: a loop or branch, of which only the results are seen; errors "
            f"grow inside it to {tensor.error:.2g}"
        )
    came = [each.error for each in inputs]
    came += [] if node is None else [seen.given.get(e[0], 0.0) for e in node.inputs]
    worst = max(came, default=0.0)
    checked = ", no conversion fault" if seen.kernels else ""
    text = f"sensitive model{checked}: its inputs are off by {worst:.2g}"
    if worst:
        text += f", its result {tensor.error / worst:.3g} times as much"
    if facts(tensor.op).subtracts:
        text += " (a difference of nearly equal values)"
    elif facts(tensor.op).steep:
        text += " (a steep function)"
    return text
