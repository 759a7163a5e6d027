"""What a check found, as a value that becomes JSON; nothing is checked here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

# Raised by one when a key of the JSON is renamed or goes; new keys may come any time.
SCHEMA = 1

OK = "ok"
NOTE = "note"  # worth knowing; nothing is broken
WRONG = "wrong"  # what was asked for does not work, or not as it should
STATUSES = (WRONG, NOTE, OK)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
      check: the name of the check, the same in every version.
      status: `OK`, `NOTE` or `WRONG`.
      text: what was found, in a sentence or two.
      remedy: what the user can do, "" where there is nothing to do.
      facts: the same for programs: values that JSON has.
    """

    check: str
    status: str
    text: str
    remedy: str = ""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def worst(findings: Iterable[Finding]) -> str:
    """The status of several findings together."""
    found = {finding.status for finding in findings}
    return next((status for status in STATUSES if status in found), OK)


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings as `amp doctor --json` prints them."""
    findings = list(findings)
    return {
        "schema": SCHEMA,
        "status": worst(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
