"""`RunReports`: what the reports say of one run of a session.

Used by `run_twins`. Every report is on what the run executes, however much of the graph
was planned for it. Nothing is planned or timed here.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Sequence
from typing import Any

from amp.graph_rewrite.outcomes import AccuracyOutcome, TrialOutcome
from amp.graph_rewrite.report import Report
from amp.integration import reports, source_lines
from amp.integration.newest_reports import NewestReports
from amp.integration.racing.race_log import FLOAT32
from amp.policy import Policy

_RACED = b"raced"  # the key of the report on a run that races
OTHER_RUNS = "each run that it changes has a race and a report of its own"


class RunReports:
    """The reports on one run.

    Args:
      name: what the run is called.
      policy: of the run.
      graph: the user's graph, which is held weakly.
    """

    def __init__(self, name: str, policy: Policy, graph: Any) -> None:
        self._name, self._policy = name, policy
        self._lines = functools.partial(source_lines.of_graph, weakref.ref(graph))
        self._newest = NewestReports(policy, self._lines)
        self._changing: list[bytes] = []  # keys of the reports on what changes the run
        self._plan = ""  # that the newest of a race is on

    def unraced(self, made: Sequence[tuple[bool, Report]], off: str) -> None:
        """Adds the reports on a run without a race.

        Args:
          made: each of them, and whether its plan changes any run.
          off: why runs that these change have no race, "" if they have one.
        """
        for number, (changes, report) in enumerate(made):
            if not changes:
                self.left(report)
                continue
            key, text = str(number).encode(), f"off: {off}" if off else OTHER_RUNS
            self._changing.append(key)
            self._newest.put(key, self._named(report, text))

    def left(self, report: Report) -> None:
        """Adds a report of which nothing more comes: no run is rewritten by it."""
        reports.add(self._named(report), self._policy.report, self._lines)

    def begin(self, plan: str, report: Report) -> None:
        """Adds the report on a run that races.

        Args:
          plan: the plan that runs first.
          report: on that plan.
        """
        self._plan, self._changing = plan, [_RACED]
        self._newest.put(_RACED, self._named(report))

    def ended(self, winner: str, report: Report | None, outcome: TrialOutcome) -> None:
        """Puts the outcome of a race or check into the report.

        Args:
          winner: the plan that runs from now on.
          report: on that plan, None for FLOAT32.
          outcome: of the race.
        """
        if report is not None and winner not in (FLOAT32, self._plan):
            self._plan = winner
            self._newest.put(_RACED, self._named(report))
        self._newest.change(_RACED, lambda newest: newest.after(outcome))

    def compared(self, outcome: AccuracyOutcome) -> None:
        """Puts into the reports what a comparison of gradients found."""
        for key in self._changing:
            self._newest.change(
                key, lambda newest: dataclasses.replace(newest, accuracy=outcome)
            )

    def lost(self, why: str) -> None:
        """Puts into the reports that float32 runs, where no race has told of it.

        Args:
          why: the plan was given up.
        """
        for key in self._changing:
            self._newest.change(key, lambda newest: newest.lost(why))

    def stopped(self, why: str) -> None:
        """Puts into the reports that float32 runs, whatever a race had come to.

        Args:
          why: it does.
        """
        for key in self._changing:
            self._newest.change(key, lambda newest: newest.stopped(why))

    def _named(self, report: Report, trial: str = "") -> Report:
        return dataclasses.replace(
            report, function=self._name, trial=trial or report.trial
        )
