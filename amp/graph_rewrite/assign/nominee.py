"""`Nominee`: which of a module's possible plans is asked for.

One analysis gives several plans: the cheapest by the cost model, and others to race it
or to check it against. What a nominee leaves out is refused before the cut; no price
and no graph may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.cost.priced import Priced
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops.op_table import Role
from amp.graph_rewrite.plan import Reason
from amp.policy import Policy

Nodes = Mapping[FunctionUse, Mapping[str, Reason]]  # with the reason for each


@dataclasses.dataclass(frozen=True, slots=True)
class Nominee:
    """A plan to make.

    Attributes:
      name: what reports call it.
      everything: whether every candidate becomes 16-bit, whatever it costs.
      products_only: whether nothing becomes 16-bit but products and what only moves
        their values.
      clusters: whether XLA may compile fused neighbours.
      lengths: whether XLA may also compile those whose sizes differ from call to call
        where these may be any: it takes longer than they save if few lengths recur.
      in_float32: whether nothing becomes 16-bit, so that only kernels are others.
      unscaled: whether it does without the loss scale that 16 bits need.
      kept: further nodes that stay float32, by the use of the function as given.
    """

    name: str
    everything: bool = False
    products_only: bool = False
    clusters: bool = True
    lengths: bool = True
    in_float32: bool = False
    unscaled: bool = False
    kept: Nodes = dataclasses.field(default_factory=dict)

    def keeping(self, kept: Nodes) -> Nominee:
        """The same plan with further nodes in float32."""
        uses = [*self.kept, *(use for use in kept if use not in self.kept)]
        both = {use: {**self.kept.get(use, {}), **kept.get(use, {})} for use in uses}
        return dataclasses.replace(self, kept=both)

    def forced(self, policy: Policy) -> bool:
        """Whether every candidate is converted, by the nominee or by the policy."""
        asked = policy.assignment == "all" and not self.in_float32
        return self.everything or asked


CUT = Nominee("the cheapest")
EVERYTHING = Nominee("everything", everything=True)
PRODUCTS = Nominee("products only", everything=True, products_only=True)
UNCLUSTERED = Nominee("without clusters", clusters=False)
# What a rewrite does besides choosing types: batch norms made one kernel (decision 29),
# rows of variables read without a copy (decision 27), and no loss scale where the user
# asked for none (decision 32). XLA has nothing to compile.
REWRITTEN = Nominee("float32, rewritten", clusters=False, in_float32=True)

_ONLY = Reason("products", "a plan of products only, to compare others with")
_NONE = Reason("rewritten", "a plan in float32, of other kernels than as given")


def nominated(priced: Priced, nominee: Nominee) -> Priced:
    """The module without the candidates that a nominee leaves in float32."""
    return nominated_again(priced, nominee, {use: use for use in priced.uses})


def nominated_again(
    priced: Priced, nominee: Nominee, originals: Mapping[FunctionUse, FunctionUse]
) -> Priced:
    """The same for a rewritten module.

    Args:
      priced: the module's candidates and prices.
      nominee: the plan that was asked for.
      originals: the use that each use was made from; the nominee's `kept` is by those.
    """
    analysis, refused = priced.analysis, {}
    for use, one in analysis.uses.items():
        reasons = _refused(one, nominee, nominee.kept.get(originals[use], {}))
        if reasons:
            refused[use] = analysis.eligible[use].refusing(reasons)
    return priced.narrowed(analysis.without(refused)) if refused else priced


def _refused(
    one: UseAnalysis, nominee: Nominee, kept: Mapping[str, Reason]
) -> dict[str, Reason]:
    found = one.found
    reasons = dict.fromkeys(found.allowed, _NONE) if nominee.in_float32 else {}
    reasons |= {name: why for name, why in kept.items() if name in found.allowed}
    if nominee.products_only:
        for name in found.allowed:
            row = found.typed[name].row
            if row is not None and row.role is Role.FOLLOW:
                reasons[name] = _ONLY
    return reasons
