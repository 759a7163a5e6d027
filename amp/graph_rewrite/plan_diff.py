"""`Difference`: what two reports decide differently, the most time first.

Made by `amp explain --diff`. Only reports are compared; no graph is known here.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator

from amp.graph_rewrite import explanation, figures
from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.report import Report

SHOWN = 20  # nodes that the text lists


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """A node that has another type in the second report.

    Attributes:
      before, after: what the two reports say of it.
    """

    before: Decision
    after: Decision

    @property
    def seconds(self) -> float:
        """Predicted seconds a step that the second takes more, without casts."""
        return self.after.seconds - self.before.seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """How two plans differ. `str` is for people, `to_json` for programs.

    Attributes:
      reports: the two reports, by what they are called.
      changed: nodes whose types differ, the largest difference of time first.
      only: names of the nodes that only the first has, and only the second.
    """

    reports: tuple[tuple[str, Report], tuple[str, Report]]
    changed: tuple[Changed, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]

    def __str__(self) -> str:
        return "\n".join([*self._heads(), *self._total(), *self._nodes()])

    def _heads(self) -> Iterator[str]:
        for letter, (name, report) in zip("AB", self.reports, strict=True):
            low = f"{report.nodes_low} of {report.nodes_total} nodes in 16 bits"
            dtype = report.dtype or "off"
            yield f"{letter}  {name}"
            yield f"     {report.verdict}"
            yield f"     {dtype} on {report.device}, {low}, {report.casts} casts"

    def _total(self) -> Iterator[str]:
        (_, one), (_, two) = self.reports
        before, after = one.seconds16, two.seconds16
        if before and after:
            times = f"A {figures.time(before)}, B {figures.time(after)}"
            yield f"predicted  {times}: B is {figures.gain(before, after)}"
        if one.measured16 and two.measured16:
            before, after = one.measured16, two.measured16
            times = f"A {figures.time(before)}, B {figures.time(after)}"
            yield f"measured   {times}: B is {figures.gain(before, after)}"

    def _nodes(self) -> Iterator[str]:
        if not self.changed:
            yield "no node that both have differs in its type"
        else:
            yield f"{len(self.changed)} nodes have another type; by time, without casts"
        for one in self.changed[:SHOWN]:
            change = figures.change(one.before.seconds, one.after.seconds)
            yield f"  {change:>10}  {one.after.node} ({one.after.op})"
            yield f"    A  {_why(one.before)}"
            yield f"    B  {_why(one.after)}"
        if len(self.changed) > SHOWN:
            yield f"  {len(self.changed) - SHOWN} more: --json lists all"
        for letter, names in zip("AB", self.only, strict=True):
            if names:
                yield f"{len(names)} nodes are only in {letter}, as {names[0]}"

    def to_json(self) -> str:
        """The difference as JSON."""
        (a, one), (b, two) = self.reports
        changed = [
            {
                "node": each.after.node,
                "op": each.after.op,
                "seconds": each.seconds,
                "before": dataclasses.asdict(each.before),
                "after": dataclasses.asdict(each.after),
            }
            for each in self.changed
        ]
        found = {
            "reports": [a, b],
            "predicted": [one.seconds16, two.seconds16],
            "measured": [one.measured16, two.measured16],
            "changed": changed,
            "only": [list(names) for names in self.only],
        }
        return json.dumps(found, indent=1)


def difference(one: tuple[str, Report], two: tuple[str, Report]) -> Difference:
    """Compares two reports node by node.

    Nodes are the same if their names are. The number that TensorFlow puts after a
    function's name, which differs from run to run, does not count.

    Args:
      one, two: what they are called, and the reports.
    """
    before, after = _by_name(one[1]), _by_name(two[1])
    changed = [
        Changed(before[name], after[name])
        for name in before.keys() & after.keys()
        if before[name].dtype != after[name].dtype
    ]
    changed.sort(key=lambda each: (-abs(each.seconds), each.after.node))
    only = (
        tuple(before[name].node for name in before if name not in after),
        tuple(after[name].node for name in after if name not in before),
    )
    return Difference((one, two), tuple(changed), only)


def _by_name(report: Report) -> dict[str, Decision]:
    found: dict[str, Decision] = {}
    for one in report.decisions:
        function, separator, node = one.node.rpartition("::")
        name = f"{re.sub(r'_[0-9]+(?=::|$)', '', function)}{separator}{node}"
        found.setdefault(name if name not in found else one.node, one)
    return found


def _why(one: Decision) -> str:
    return explanation.reason(one).removeprefix(f"{one.node} ({one.op}) is ")
