"""`Standstills`: which functions stand still, and so are to run in float32.

Used by `function_twins`, and its rule by sessions. `loss_scaling.stalls` tells which
scalers have gradients that are never finite and a scale that cannot fall; here, which
functions use them. Nothing is called or made here.
"""

from __future__ import annotations

from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.graph import ir
from amp.integration import fallback
from amp.integration.observing import gradient_check
from amp.integration.racing import exemptions
from amp.integration.runtime import definitions
from amp.loss_scaling.process import SCALING
from amp.policy import Policy

_NOT_KNOWN = fallback.Part("whether a function stands still is not known")


def watched(policy: Policy) -> bool:
    """Whether a step that stands still is to run in float32 under a policy.

    When that is found out depends on timing, as what races does, and it is a check of
    accuracy: who does without either does without this.
    """
    return not gradient_check.why_not(policy) and not exemptions.repeats(policy)


class Standstills:
    """The functions of one policy.

    Args:
      policy: with every "auto" settled.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._scalers: dict[bytes, frozenset[int]] = {}

    def of(self, name: bytes) -> str:
        """What the user is to be told of a function that stands still; else "".

        Args:
          name: of the function as the user's program has it.
        """
        if not SCALING.standing or not watched(self._policy):
            return ""
        if name not in self._scalers:
            none: frozenset[int] = frozenset()
            found = fallback.attempt(_NOT_KNOWN, lambda: _scalers(name), lambda: none)
            self._scalers[name] = found
        own = self._scalers[name]
        standing = list(SCALING.standing.items())
        return next((text for number, text in standing if number in own), "")

    def forget(self, name: bytes) -> None:
        """Drops what is kept for a function that is going; takes no lock."""
        self._scalers.pop(name, None)


def _scalers(name: bytes) -> frozenset[int]:
    """The numbers of the scalers whose gradients a function takes."""
    module = definitions.read(context_lib.context(), name.decode())
    nodes = (node for graph in module.graphs() for node in graph.nodes.values())
    labels = filter(None, (node.text(ir.SOURCE) for node in nodes))
    return frozenset(int(label.partition(":")[0]) for label in labels)
