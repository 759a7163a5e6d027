"""Whether the rule for gradients has a limit for all that was observed.

A limit is a multiple of the noise: how far float32 itself is off at weights a rounding
apart. Where that is not finite neither is the limit, and any error would pass. It
compares nothing with a frozen margin and can only refuse, so it stands beside the
frozen rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convergence.clauses import Finding
from convergence.equivalence import EQUAL, UNDECIDED
from convergence.gradient_rule import KINDS


def finding(runs: Iterable[Mapping[str, Any]]) -> Finding:
    """What is found of the runs of one setting."""
    found = {
        f"the {kind} of {variable} at step {probe['step']}"
        for probe in (probe for run in runs for probe in run["probes"])
        for kind in KINDS
        for variable, (_, noise, *_) in probe.get(kind, {}).items()
        if noise is None
    }
    if not found:
        return Finding("limits", EQUAL, "")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    text = f"{min(found)} has no limit, as float32's noise is not finite{more}"
    return Finding("limits", UNDECIDED, text)
