"""`NewestReports`: the newest report on each function under one policy.

Used by `twins` and `run_reports`. What a report says is not decided here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

from amp.graph_rewrite.report import Report
from amp.integration import fallback, reports
from amp.policy import Policy


class _Reported(NamedTuple):
    """A report, and its number among the process's reports."""

    number: int
    report: Report


class NewestReports:
    """The newest report on each function of which a later state is to come.

    Of others nothing is kept here: the process keeps a bounded number (`reports`).

    Args:
      policy: says where reports are written.
      lines: finds source lines, as of `reports.add`.
    """

    def __init__(self, policy: Policy, lines: reports.Lines | None = None) -> None:
        self._policy, self._lines = policy, lines
        self._newest: dict[bytes, _Reported] = {}

    def put(self, name: bytes, report: Report) -> None:
        """Adds a function's report, or puts it in the place of the one before.

        What is known of the accuracy stays, if the new one tells nothing of it.
        """
        before = self._newest.get(name)
        if before is None:
            number = reports.keep(report, self._lines)
            # Before it is written: Ctrl-C meanwhile must not have it reported twice.
            self._newest[name] = _Reported(number, report)
            reports.write(report, number, self._policy.report)
        else:
            known = report.accuracy or before.report.accuracy
            self.change(name, lambda _: dataclasses.replace(report, accuracy=known))

    def change(self, name: bytes, change: Callable[[Report], Report]) -> None:
        """Replaces the report on a function, if it is kept, by a later state of it."""
        before = self._newest.get(name)
        if before is None:
            return
        report = change(before.report)
        self._newest[name] = _Reported(before.number, report)
        part = fallback.Part("what came later is in no report", self._policy.strict)
        replace = functools.partial(reports.replace, before.number, report)
        fallback.attempt(part, lambda: replace(self._policy.report), lambda: None)

    def forget(self, name: bytes) -> None:
        """Keeps a report no longer, as nothing more is to come; takes no lock."""
        self._newest.pop(name, None)
