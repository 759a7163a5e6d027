"""`Suggestion`: the nodes to keep in float32, as data and as text.

Nothing is searched for here.
"""

from __future__ import annotations

import dataclasses

from amp.graph_rewrite.comparison import wording


@dataclasses.dataclass(frozen=True, slots=True)
class Suggestion:
    """The nodes to keep in float32, so that the results are within a bound.

    Attributes:
      bound: the relative error that was asked for.
      keep: patterns for `Policy.keep` and `AMP_KEEP`, by which it was run again.
      nodes: how many nodes that are; as many as the last search could not do without.
      error: the largest relative error of a result or gradient with them.
      all: whether the plan converts everything (`assignment="all"`).
      left: how many nodes are still 16-bit.
      tried: number of plans that were run.
      complete: whether the search ended by itself, and not for want of time.
    """

    bound: float
    keep: tuple[str, ...]
    nodes: int
    error: float
    all: bool
    left: int
    tried: int
    complete: bool

    @property
    def reached(self) -> bool:
        """Whether the error is within the bound."""
        return self.error <= self.bound

    @property
    def variables(self) -> str:
        """What to set in the environment of the job."""
        forced = "AMP_ASSIGNMENT=all " if self.all else ""
        return f"{forced}AMP_KEEP='{','.join(self.keep)}'"

    def lines(self, width: int) -> list[str]:
        """What `Comparison` prints of it, in so many columns but for the last line."""
        if not self.keep:
            text = f"nothing to keep: off by {self.error:.2g} as it is"
            return wording.fact("suggest", text, width)
        how = f"off by {self.error:.2g} (asked for {self.bound:.2g})"
        if not self.left:
            how += ", and then the plan converts nothing at all"
        if not self.reached:
            how += ", which no set of nodes brings under the bound"
        if not self.complete:
            how += "; the search was cut short, a smaller set may do"
        many = f"{self.nodes} node{'s' if self.nodes != 1 else ''} in float32"
        text = f"{many}: {how}, run again with"
        return [*wording.fact("suggest", text, width), f"    {self.variables}"]
