"""The whole judgement of results: the frozen rule, and the clauses beside it.

Those beside it have no margin and can only refuse: that a scale has an effect, that no
gradient is lost and each has a limit, that recovery hides no difference, that drills
find nothing, and that a goal is reached. So results that the rule judged before there
was such a clause stay counted, once they are drilled, and its code is no part of the
rule's tag. No statistics are made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from convergence import (
    drilled,
    effect,
    goals,
    unlimited,
    unrecovered,
    verdict,
    zeros,
)
from convergence.clauses import Finding
from convergence.equivalence import DIFFERENT, EQUAL, UNDECIDED
from convergence.settings import FLOAT32, PERTURBED, SETTINGS
from convergence.verdict import Row, Verdict

# Clauses.
BESIDE = ("effect", "zeros", "limits", "recovery", "drill", "goal")
BASES = (FLOAT32, PERTURBED)  # what others are held against


def rows(result: Mapping[str, Any]) -> list[Row]:
    """What is said of each setting that has runs, in the order of the settings."""
    return [_with(row, result) for row in verdict.rows(result)]


def _with(row: Row, result: Mapping[str, Any]) -> Row:
    return dataclasses.replace(row, findings=(*row.findings, *_beside(row, result)))


def _beside(row: Row, result: Mapping[str, Any]) -> list[Finding]:
    """What the clauses beside the rule say of a setting."""
    own = [run for run in result["runs"] if run["setting"] == row.setting]
    found = [effect.finding(result, row.setting), zeros.finding(own)]
    found.append(unlimited.finding(own))
    found.append(unrecovered.finding(result, row.setting))
    found.append(drilled.finding(result, row.setting))
    return found + ([goals.finding(result, row)] if goals.is_of(result) else [])


def judged(result: Mapping[str, Any]) -> Verdict:
    """Judges the results of one family.

    Args:
      result: what a file of results holds.
    """
    found = verdict.verdict(result)
    whole = tuple(_with(row, result) for row in found.rows)
    more: dict[str, list[str]] = {DIFFERENT: [], UNDECIDED: [], EQUAL: []}
    for row in whole:
        beside = [each for each in row.findings if each.clause in BESIDE]
        for each in beside if row.must_pass or row.setting in BASES else ():
            # Noise that is not equal refutes no setting, and leaves all undecided.
            noise = row.setting == PERTURBED and each.outcome != EQUAL
            told = UNDECIDED if noise else each.outcome
            more[told].append(f"{row.setting}: {each.text}")
    return Verdict(
        whole,
        (*found.reasons, *more[DIFFERENT]),
        (*found.undecided, *more[UNDECIDED]),
    )


def found(result: Mapping[str, Any]) -> dict[str, str]:
    """What was found of each negative control that has runs; "" if nothing was.

    A control is found if a clause says that it is different: an interval that is merely
    too wide finds nothing.
    """
    return {
        row.setting: "; ".join(f.text for f in row.findings if f.outcome == DIFFERENT)
        for row in rows(result)
        if row.setting not in SETTINGS
    }
