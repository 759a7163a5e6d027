"""Arms of a comparison: each setting, and each negative control, with what it runs in.

A table made from `settings` and `controls`; nothing is trained here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import amp
from convergence import controls, dynamics, settings
from convergence.settings import FLOAT32, MIXED, PERTURBED
from convergence.steps import Scope


@dataclasses.dataclass(frozen=True, slots=True)
class Arm:
    """One column of a comparison.

    Attributes:
      name: in results.
      setting: whose policy it has.
      control: the fault that is planted; None for the settings themselves.
    """

    name: str
    setting: str
    control: controls.Control | None = None

    def policy(self, *, dtype: str, emulate: bool, steps: int) -> amp.Policy | None:
        """The policy of its runs; None for float32."""
        found = settings.policy(self.setting, dtype=dtype, emulate=emulate, steps=steps)
        if found is None or self.control is None:
            return found
        return self.control.policy(found)

    @property
    def planted(self) -> Scope:
        return contextlib.nullcontext if self.control is None else self.control.planted

    def told(self, dtype: str, steps: int) -> dict[str, Any]:
        """What `verdict` has to know of it: of a control, that it should be sound."""
        return {
            "mixed": self.setting in MIXED,
            "must_pass": self.setting in settings.MUST_PASS[dtype],
            "scaling": _scaling(self.setting, steps),
        }


def _scaling(setting: str, steps: int) -> list[int] | None:
    if setting == "constant":
        return [round(math.log2(settings.CONSTANT)), 0]
    if setting == "dynamic":
        return [dynamics.FIRST, settings.growth_interval(steps)]
    return None


def compared() -> tuple[Arm, ...]:
    """The settings of a run."""
    return tuple(Arm(name, name) for name in settings.SETTINGS)


def calibrated() -> tuple[Arm, ...]:
    """The settings of a calibration."""
    return tuple(Arm(name, name) for name in (FLOAT32, PERTURBED))


def once() -> tuple[Arm, ...]:
    """What is trained towards a goal."""
    return tuple(Arm(name, name) for name in (FLOAT32, "dynamic"))


def controlled() -> tuple[Arm, ...]:
    """Every negative control, and the sound settings that they are held against."""
    faults = (Arm(c.name, "dynamic", c) for c in controls.CONTROLS.values())
    return (Arm(FLOAT32, FLOAT32), Arm("unscaled", "unscaled"), *faults)
