"""`Decision`: the type of one node and why; and what many of them come to in all.

The report has one for each node that touches float32 or 16 bits. Nothing is decided or
priced here.
"""

from __future__ import annotations

import collections
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from amp.graph_rewrite.ops import op_table

MOST = 5  # nodes and reasons that a summary names


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """One node's type and why.

    Attributes:
      node: the node's name, after "function::" if it is in a function.
      op: its op.
      dtype: the type it computes in.
      rule: name of the rule that decided (see `plan.RULES`).
      cause: the node, pattern or figure that made the rule apply.
      seconds32, seconds16: predicted seconds a step in float32 and in 16 bits, without
        casts; 0 where nothing was priced.
      elements: of its floating results, of one run.
      reads: the decisions, by their place in the report, of the nodes that it reads.
      source: file and line of the user's code that made the node, "" if unknown.
      sizes: of what it reads and makes, as "4x8, 8x2 -> 4x2"; "" if unknown.
      layer: the Keras layer that it belongs to, with its class, and the layers and
        model around it; "" for none.
      change: what would change it, as a key of `explanation.CHANGES`; "" for what would
        change any node of its rule.
    """

    node: str
    op: str
    dtype: str
    rule: str
    cause: str
    seconds32: float = 0.0
    seconds16: float = 0.0
    elements: int = 0
    reads: tuple[int, ...] = ()
    source: str = ""
    sizes: str = ""
    layer: str = ""
    change: str = ""

    @property
    def seconds(self) -> float:
        """Predicted seconds a step in the type that was decided."""
        return self.seconds32 if self.dtype == "float32" else self.seconds16


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """The nodes that one rule keeps in float32.

    Attributes:
      rule: its name.
      nodes: how many they are.
      seconds: what they take in a step, predicted.
    """

    rule: str
    nodes: int
    seconds: float


def costliest(decisions: Sequence[Decision]) -> list[int]:
    """The places of the few nodes that take most time as decided, the longest first."""
    places = range(len(decisions))
    found = sorted(places, key=lambda place: -decisions[place].seconds)[:MOST]
    return [place for place in found if decisions[place].seconds]


def kept_in_float32(decisions: Sequence[Decision]) -> list[Kept]:
    """Each rule that keeps nodes in float32, the one that keeps most time first."""
    kept = [one for one in decisions if one.dtype == "float32"]
    nodes = Counter(one.rule for one in kept)
    seconds = dict.fromkeys(nodes, 0.0)
    for one in kept:
        seconds[one.rule] += one.seconds32
    found = [Kept(rule, count, seconds[rule]) for rule, count in nodes.items()]
    return sorted(found, key=lambda one: (-one.seconds, -one.nodes))


def costliest_op(decisions: Sequence[Decision], rule: str) -> tuple[str, float]:
    """The op that takes most of the time that a rule keeps in float32, and its seconds.

    Args:
      decisions: of which at least one is float32 by the rule.
      rule: its name.
    """
    seconds: dict[str, float] = {}
    for one in decisions:
        if one.dtype == "float32" and one.rule == rule:
            seconds[one.op] = seconds.get(one.op, 0.0) + one.seconds32
    return max(seconds.items(), key=lambda item: item[1])


def nodes_by_type(decisions: Sequence[Decision]) -> dict[str, int]:
    """How many nodes were decided to be of each type."""
    return dict(Counter(one.dtype for one in decisions))


def bytes_by_type(decisions: Sequence[Decision], *, emulated: bool) -> dict[str, int]:
    """The bytes of the results of the nodes of each type, of one run of each.

    Args:
      decisions: of the nodes.
      emulated: whether 16-bit values are held in float32.
    """
    found = dict.fromkeys((one.dtype for one in decisions), 0)
    for one in decisions:
        wide = emulated or one.dtype == "float32"
        found[one.dtype] += (4 if wide else 2) * one.elements
    return found


# Of these the cause is an op, a pattern or a figure, even where a node has that name.
_NO_NODE = frozenset(
    {
        *("unlisted", "listed", "deny", "variable", "kernel", "cost", "keep"),
        *("optimizer", "custom", "unguarded"),
    }
)


def causes(decisions: Sequence[Decision]) -> list[int | None]:
    """For each decision the place of the decision on the node that its cause names.

    None where the cause names no node, or the node itself: the chain of causes ends
    there. Names are those of the same function. The cause of a node that no 16-bit
    product reaches is the nearest product before it, if there is one.
    """
    places = {one.node: place for place, one in enumerate(decisions)}
    found = [_cause(one, places) for one in decisions]
    if any(one.rule == "unreached" for one in decisions):
        products = _products_before(decisions)
        for place, one in enumerate(decisions):
            if one.rule == "unreached":
                found[place] = products.get(place)
    return found


def _products_before(decisions: Sequence[Decision]) -> dict[int, int]:
    """By place, the place of the nearest product in float32 that a node depends on."""
    readers: dict[int, list[int]] = {}
    for place, one in enumerate(decisions):
        for read in one.reads:
            readers.setdefault(read, []).append(place)
    nearest: dict[int, int] = {}
    waiting = collections.deque(
        (place, place)
        for place, one in enumerate(decisions)
        if one.dtype == "float32" and _is_product(one.op)
    )
    while waiting:
        place, product = waiting.popleft()
        for reader in readers.get(place, ()):
            if reader not in nearest:
                nearest[reader] = product
                waiting.append((reader, product))
    return nearest


def _is_product(op: str) -> bool:
    row = op_table.TABLE.get(op)
    return row is not None and row.role is op_table.Role.COMPUTE


def chain(place: int, found: Sequence[int | None]) -> list[int]:
    """The places from a decision to its root cause.

    Args:
      place: of the decision.
      found: the cause of each, as `causes` has it.
    """
    places = [place]
    while (cause := found[places[-1]]) is not None and cause not in places:
        places.append(cause)
    return places


def _cause(decision: Decision, places: Mapping[str, int]) -> int | None:
    function, separator, name = decision.node.rpartition("::")
    first = decision.cause.partition(" ")[0].rstrip(",:")
    if decision.rule in _NO_NODE or first == name:
        return None
    return places.get(f"{function}{separator}{first}")


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What the decisions of a report come to.

    Attributes:
      nodes, bytes: by type, as `nodes_by_type` and `bytes_by_type` have it.
      bytes32: bytes of all results if every one were float32.
      costliest: places of the nodes that take most time as decided.
      kept: the rules that keep most time in float32.
    """

    nodes: Mapping[str, int]
    bytes: Mapping[str, int]
    bytes32: int
    costliest: tuple[int, ...]
    kept: tuple[Kept, ...]


def summarize(decisions: Sequence[Decision], *, emulated: bool) -> Summary:
    """Adds up the decisions of a report.

    Args:
      decisions: of its nodes.
      emulated: whether 16-bit values are held in float32.
    """
    return Summary(
        nodes=nodes_by_type(decisions),
        bytes=bytes_by_type(decisions, emulated=emulated),
        bytes32=sum(4 * one.elements for one in decisions),
        costliest=tuple(costliest(decisions)),
        kept=tuple(kept_in_float32(decisions)[:MOST]),
    )
