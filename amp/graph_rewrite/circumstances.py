"""Makes the `Context` of each use of a function from the arguments of `rewrite`.

Nothing is decided here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from amp.graph_rewrite.candidates import inner_gradients
from amp.graph_rewrite.candidates.context import FORMATS, Context
from amp.graph_rewrite.candidates.searches import searched
from amp.graph_rewrite.candidates.unscaled import unscaled
from amp.graph_rewrite.candidates.zeroed import zeroed
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import calls, ir, op_schema, unscale_markers
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import Reason
from amp.policy import Policy


def contexts(
    module: ir.Module,
    settled: Resolution,
    fetches: frozenset[str],
    feeds: frozenset[str],
) -> Callable[[FunctionUse], Context]:
    """Returns a function that gives the context of any use in a module.

    Args:
      module: the module to be analyzed.
      settled: policy and device; the policy is not None.
      fetches, feeds: names of nodes of the main graph, as in `rewrite`.
    """
    policy = settled.policy
    assert policy is not None
    behind = unscale_markers.behind_markers(module)
    before = unscale_markers.before_markers(module)
    kept = inner_gradients.kept(module, behind, before, FORMATS[policy.dtype])
    held = _held(module, policy, behind)
    devices = calls.devices_called_on(module)
    lookup = op_schema.lookup_of(module)
    nothing: frozenset[str] = frozenset()

    def context_of(use: FunctionUse) -> Context:
        main = use.name == module.main.name
        context = Context(
            policy=policy,
            format=FORMATS[policy.dtype],
            device_type=settled.device.kind,
            native=policy.dtype in settled.device.native,
            xla=use.xla,
            behind=kept[use.name],
            updates=behind[use.name] - before[use.name],
            fed=feeds if main else nothing,
            fetched=fetches if main else nothing,
            lookup=lookup,
            held=held,
            kinds=settled.kinds,
        )
        others = filter(context.is_elsewhere, sorted(devices.get(use, ())))
        return dataclasses.replace(context, called_on=next(others, ""))

    return context_of


def _held(
    module: ir.Module, policy: Policy, behind: Mapping[str, frozenset[str]]
) -> Reason | None:
    """Why a module stays float32 as a whole, None if it need not."""
    found = {
        "computation": calls.has_computations(module) and "tf.xla.experimental.compile",
        "unscaled": unscaled(module, policy),
        "searched": searched(module, behind),
        "zeroed": zeroed(module, policy, behind),
    }
    reasons = (Reason(rule, cause) for rule, cause in found.items() if cause)
    return next(reasons, None)
