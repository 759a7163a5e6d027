"""Whether a gradient is lost: 0 at every probed step, where float32 has one.

The rule for gradients allows an error of 8 times what rounding alone does. Where that
is over 1/8 a gradient of 0, whose error is 1, passes. But its error is 1 at every step,
to all digits that results hold, and rounding does no such thing. It compares nothing
with a frozen margin and can only refuse, so it stands beside the frozen rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convergence.clauses import Finding
from convergence.equivalence import DIFFERENT, EQUAL

# Where other roundings change a gradient in float32 by its whole size, it is rounding
# alone (that by the bias of a key in attention), and may be 0.
OWN = 1.0
LEAST = 2  # probes: in one, an error of about 1 may be 1.00 by chance


def finding(runs: Iterable[Mapping[str, Any]]) -> Finding:
    """What is found of the runs of one setting."""
    lost = _lost([probe for run in runs for probe in run["probes"]])
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    text = f"the gradient of {lost[0]} is 0 at every probed step{more}" if lost else ""
    return Finding("zeros", DIFFERENT if lost else EQUAL, text)


def _lost(probes: Iterable[Mapping[str, Any]]) -> list[str]:
    errors: dict[str, list[float | None]] = {}
    for probe in probes:
        for variable, (error, noise, *_) in probe.get("gradient", {}).items():
            if noise is not None and noise < OWN:
                errors.setdefault(variable, []).append(error)
    return [
        variable
        for variable, seen in errors.items()
        if len(seen) >= LEAST and all(error == 1.0 for error in seen)
    ]
