"""What earlier runs of a job found out about the accuracy of a function's plan.

Used by `functions`, so that a check is not made again, and by `sessions` for the names
of plans. Nodes are told by their number in their graph, as their names differ between
runs. Nothing is compared here.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from amp.graph_rewrite.assign.nominee import Nodes, Nominee
from amp.graph_rewrite.graph import fingerprint
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.outcomes import AccuracyOutcome, GradientError
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.rewrite import Prepared
from amp.integration import fallback
from amp.integration.contests import plan_store
from amp.integration.contests.entrants import NOMINEES

# By the use of a function, its 16-bit nodes.
Low: TypeAlias = Mapping[FunctionUse, frozenset[str]]


def covers(fine: Iterable[Low], low: Low) -> bool:
    """Whether all nodes of a plan are among those of another one.

    Args:
      fine: the nodes of the others, each.
      low: the nodes of the plan.
    """
    nothing: frozenset[str] = frozenset()
    return any(
        all(names <= other.get(use, nothing) for use, names in low.items())
        for other in fine
    )


@dataclasses.dataclass(frozen=True, slots=True)
class StoredCheck:
    """The result of the checks of a plan.

    Attributes:
      outcome: the figures, for the report.
      kept: the nodes that were found at fault.
      plan: the name, in the next run of the job, of the plan that was compared.
      later: how many checks were made after the first.
      alone: whether plans with further 16-bit nodes were found at fault.
    """

    outcome: AccuracyOutcome
    kept: Nodes
    plan: str
    later: int = 0
    alone: bool = False


def recall(key: str, prepared: Prepared, low: Low) -> StoredCheck | None:
    """What is known of a plan; None if it was not checked.

    Args:
      key: the function's fingerprint, "" if none of its records are to be used.
      prepared: the function.
      low: the nodes that the plan makes 16-bit, before any was kept in float32 for its
        accuracy; nothing for a plan in float32, beside which others may race.
    """
    part = fallback.Part("what was found out about a function's accuracy is not known")
    return fallback.attempt(part, lambda: _recalled(key, prepared, low), lambda: None)


def _recalled(key: str, prepared: Prepared, low: Low) -> StoredCheck | None:
    found = plan_store.load(key).accuracy
    if not found:
        return None
    if not any(low.values()):
        low = prepared.foreseen(NOMINEES[found["name"]]).low
    if found["plan"] != digest(prepared, low):
        return None
    if found.get("values") != fingerprint.values(prepared.given):
        return None
    places = {number: place for place, number in _numbered(prepared)}
    kept: dict[FunctionUse, dict[str, Reason]] = {}
    for number, cause in found["kept"]:
        use, name = places[number]
        kept.setdefault(use, {})[name] = Reason("accuracy", cause)
    told = dict(found["outcome"])
    told["worst"] = tuple(GradientError(**one) for one in told["worst"])
    outcome = AccuracyOutcome(**told)
    later, alone = int(found["later"]), bool(found["alone"])
    return StoredCheck(outcome, kept, found["name"], later, alone)


def keep(key: str, prepared: Prepared, plan: Nominee, check: StoredCheck) -> None:
    """Stores what was found out about a plan.

    Args:
      key: the function's fingerprint, "" if nothing is to be stored.
      prepared: the function.
      plan: the plan, before any node was kept in float32 for its accuracy.
      check: what was found out.
    """
    if not key:
        return
    kept = [
        [number, check.kept[use][name].cause]
        for (use, name), number in _numbered(prepared)
        if name in check.kept.get(use, {})
    ]
    accuracy: dict[str, Any] = {
        "name": check.plan,
        "plan": digest(prepared, prepared.foreseen(plan).low),
        "values": fingerprint.values(prepared.given),
        "kept": kept,
        "later": check.later,
        "alone": check.alone,
        "outcome": dataclasses.asdict(check.outcome),
    }
    plan_store.save(key, accuracy=accuracy)


def _numbered(prepared: Prepared) -> Iterator[tuple[tuple[FunctionUse, str], int]]:
    """Every node with its number."""
    uses = prepared.priced.analysis.uses.items()
    places = ((use, name) for use, one in uses for name in one.graph.nodes)
    return ((place, number) for number, place in enumerate(places))


def digest(prepared: Prepared, low: Low) -> str:
    """A name for a plan: of which nodes, by number and op, it makes 16-bit."""
    graphs = {use: one.graph for use, one in prepared.priced.analysis.uses.items()}
    parts = (
        f"{number} {graphs[use].nodes[name].op}"
        for (use, name), number in _numbered(prepared)
        if name in low.get(use, ())
    )
    text = "\n".join(parts).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
