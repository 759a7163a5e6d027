"""Has the 16-bit nodes of a function checked by themselves.

Which nodes stand beside them, and how they are judged, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from amp.graph_rewrite.candidates.context import FORMATS
from amp.graph_rewrite.comparison import alone
from amp.graph_rewrite.comparison.alone import KernelError
from amp.graph_rewrite.comparison.pair import Pair
from amp.graph_rewrite.comparison.tensor_errors import Array
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.ops.op_table import facts
from amp.integration.comparing.traced import Traced


def checked(
    call: Traced,
    pair: Pair,
    values: Callable[[ir.Module, Sequence[ir.Edge]], Iterator[Array]],
) -> list[KernelError]:
    """The 16-bit nodes by themselves; none where kernels are float32's.

    Args:
      call: whose policy and device it is.
      pair: the function and its twin.
      values: runs a side and returns some of its tensors.
    """
    if call.policy.emulate:
        return []
    module, beside = alone.with_float32_beside(pair)
    arrays = values(module, [edge for each in beside for edge in each.edges])
    kind, name = call.settled.device.kind, call.policy.dtype
    native = name in call.settled.device.native
    return [
        alone.kernel_error(
            each,
            arrays,
            FORMATS[name],
            low=name in facts(each.op).adds_up_low(kind, native=native),
        )
        for each in beside
    ]
