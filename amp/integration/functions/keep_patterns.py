"""Warns of `keep` patterns of a policy that match no node: most likely a misspelling.

Filled by `Twins` and by sessions with what runs. What a pattern does is not decided
here.
"""

from __future__ import annotations

from collections.abc import Sequence

from amp import messages
from amp.errors import PolicyError
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import inline
from amp.policy import FIELDS, Policy


class KeepPatterns:
    """The `keep` patterns of one policy that matched no node so far.

    Args:
      patterns: of the policy.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._unmatched = set(patterns)
        self._ran = False

    def met(self, module: ir.Module) -> None:
        """Records which patterns match a node of a function or session's graph."""
        self._ran = True
        for pattern in list(self._unmatched):
            one = Policy(keep=(pattern,))
            if any(map(one.keeps, inline.names(module))):
                self._unmatched.discard(pattern)

    def warn(self) -> None:
        """Warns, once, of patterns that matched no node of anything that ran.

        Called when a scope ends, and by `amp.disable`.
        """
        if self._unmatched and self._ran:
            patterns = ", ".join(sorted(self._unmatched))
            self._unmatched.clear()
            error = PolicyError(
                f"keep pattern {patterns} matched no node of the functions that ran",
                where=FIELDS["keep"].places,
                allowed="patterns (fnmatch) that match the name of at least one node",
                remedy="print(amp.reports()[-1].decisions) for the names there are",
            )
            messages.warn(str(error), UserWarning)
