"""Whether a gradient is lost: 0 at a probed step of every run, where float32 has one.

The rule for gradients allows an error of 8 times what rounding alone does. Where that
is over 1/8 a gradient of 0, whose error is 1, passes. But its error is 1 to the three
digits that results hold, at every step or at the same one in every run, and rounding
does no such thing. So is that of a gradient that is nearly 0, as one that is unscaled
twice. It compares nothing with a frozen margin and can only refuse, so it stands
beside the frozen rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from convergence.clauses import Finding
from convergence.equivalence import DIFFERENT, EQUAL

# Where other roundings change a gradient in float32 by its whole size, it is rounding
# alone (that by the bias of a key in attention), and may be 0.
OWN = 1.0
# Probes of all steps, or runs at one step: once, an error of about 1 may be 1.00 by
# chance.
LEAST = 2


def finding(runs: Iterable[Mapping[str, Any]]) -> Finding:
    """What is found of the runs of one setting."""
    runs = list(runs)
    seen = _errors(runs)
    every = [name for name, steps in seen.items() if _zero(sum(steps.values(), []))]
    lost = [(name, "at every probed step") for name in every]
    lost += [
        (name, f"at step {step} of every run")
        for name, steps in seen.items()
        for step, errors in steps.items()
        if name not in every and len(errors) == len(runs) and _zero(errors)
    ]
    if not lost:
        return Finding("zeros", EQUAL, "")
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    text = f"the gradient of {lost[0][0]} is 0 or nearly so {lost[0][1]}{more}"
    return Finding("zeros", DIFFERENT, text)


def _zero(errors: Sequence[float | None]) -> bool:
    return len(errors) >= LEAST and all(error == 1.0 for error in errors)


def _errors(
    runs: Iterable[Mapping[str, Any]],
) -> dict[str, dict[int, list[float | None]]]:
    """Errors of gradients, by variable and step; not of those that are rounding."""
    found: dict[str, dict[int, list[float | None]]] = {}
    for probe in (probe for run in runs for probe in run["probes"]):
        for variable, (error, noise, *_) in probe.get("gradient", {}).items():
            if noise is not None and noise < OWN:
                steps = found.setdefault(variable, {})
                steps.setdefault(probe["step"], []).append(error)
    return found
