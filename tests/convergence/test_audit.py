"""Digests change with what code does, and with nothing else."""

from __future__ import annotations

import pathlib
import re

import pytest

from convergence import audit

BEFORE = '"""Says."""\n\n\ndef f(x):\n    """Says more."""\n    return x + 1\n'


@pytest.mark.parametrize(
    ("after", "same"),
    [
        ("def f(x):\n    # why\n    return (x + 1)\n", True),
        ("def f(x):\n    return x + 2\n", False),
        ("def f(x):\n    'a value'\n    return 'a value'\n", False),
    ],
)
def test_a_digest_is_of_what_code_does(
    after: str, same: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    file = tmp_path / "a.py"
    file.write_text(BEFORE)
    before = audit.digest([file])
    audit._code.cache_clear()
    file.write_text(after)
    assert (audit.digest([file]) == before) is same


def test_a_run_depends_on_its_task_its_model_and_the_loop() -> None:
    found = audit.reached((*audit.RUNS, "convergence.tasks.ssd"))
    expected = {"convergence.tasks.detection", "models.ssd", "convergence.data.scenes"}
    assert expected | {"convergence.steps", "convergence.probe"} <= set(found)
    assert not {"convergence.families", "models.bert", "convergence.report"} & set(
        found
    )


def test_every_file_of_the_rule_is_there() -> None:
    assert len(audit.rule()) == 16
    ssd, bert = audit.code("ssd"), audit.code("bert")
    assert ssd["suite"] != bert["suite"]
    assert ssd["package"] == bert["package"]


def test_the_commit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"\S+?(-dirty)?", audit.commit())
    monkeypatch.setattr(audit, "ROOT", pathlib.Path("/"))
    assert audit.commit() == "unknown"
