"""The circumstances of each use of a function, from what is asked of `rewrite`.

Brings policy, device and graph together; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable

from amp.graph_rewrite.candidates.context import FORMATS, Context
from amp.graph_rewrite.cost.device import Resolution
from amp.graph_rewrite.graph import calls, ir, op_schema
from amp.graph_rewrite.graph.calls import FunctionUse


def contexts(
    module: ir.Module,
    settled: Resolution,
    fetches: frozenset[str],
    feeds: frozenset[str],
) -> Callable[[FunctionUse], Context]:
    """What decisions on a use depend on besides its graph, for any use of a module.

    Args:
      module: as it is analyzed.
      settled: policy and device.
      fetches, feeds: nodes of the main graph, as in `rewrite`.
    """
    policy = settled.policy
    assert policy is not None
    behind = calls.behind_markers(module)
    lookup = op_schema.lookup_of(module)
    nothing: frozenset[str] = frozenset()

    def context_of(use: FunctionUse) -> Context:
        main = use.name == module.main.name
        return Context(
            policy=policy,
            format=FORMATS[policy.dtype],
            device_type=settled.device.kind,
            native=policy.dtype in settled.device.native,
            xla=use.xla,
            behind=behind[use.name],
            fed=feeds if main else nothing,
            fetched=fetches if main else nothing,
            lookup=lookup,
        )

    return context_of
