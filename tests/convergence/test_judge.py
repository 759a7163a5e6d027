"""Clauses beside the rule can refuse what it passes, and never pass what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from convergence_runs import made_up

from convergence import judge, verdict
from convergence.clauses import Finding
from convergence.equivalence import DIFFERENT, EQUAL


def test_without_a_finding_it_is_the_rule() -> None:
    for result in (made_up(), made_up(dynamic=[0.1] * 5), made_up(float32=[0.1] * 5)):
        judged, rule = judge.judged(result), verdict.verdict(result)
        told = (judged.word, judged.reasons, judged.undecided)
        assert told == (rule.word, rule.reasons, rule.undecided)


@pytest.mark.parametrize(
    ("setting", "fails"),
    [("dynamic", True), ("float32", True), ("unscaled", False), ("perturbed", False)],
)
def test_what_must_pass_is_refused(
    setting: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finding(result: Any, name: str) -> Finding:
        return Finding("effect", DIFFERENT if name == setting else EQUAL, "told")

    monkeypatch.setattr("convergence.effect.finding", finding)
    judged = judge.judged(made_up())
    assert judged.reasons == ((f"{setting}: told",) if fails else ())
    (row,) = (row for row in judged.rows if row.setting == setting)
    assert (row.outcome, row.reasons) == ("different", ("told",))
    assert judge.rows(made_up()) == list(judged.rows)


def test_of_controls_every_clause_that_finds_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = made_up(dynamic=[0.1] * 5)
    result["settings"]["zeroed"] = result["settings"].pop("dynamic")
    for run in result["runs"]:
        run["setting"] = {"dynamic": "zeroed"}.get(run["setting"], run["setting"])
    assert list(judge.found(result)) == ["zeroed"]
    assert judge.found(result) == {
        name: text for name, text in verdict.found(result).items() if name == "zeroed"
    }
    found = Finding("effect", DIFFERENT, "told")
    monkeypatch.setattr("convergence.effect.finding", lambda *_: found)
    assert judge.found(result)["zeroed"].endswith("; told")
