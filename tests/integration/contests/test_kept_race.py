"""`kept_race`: the next run goes on with a race, if it is the same one."""

from __future__ import annotations

import pathlib

import pytest

from amp.integration.contests import plan_store
from amp.integration.contests.kept_race import KeptRace

NAME = "0123456789abcdef"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))


def test_a_race_is_gone_on_with_where_it_begins_with_the_same_plan() -> None:
    KeptRace(NAME, "a").advanced({"rounds": 4})
    known = plan_store.load(NAME)
    assert KeptRace(NAME, "a").earlier(known)["rounds"] == 4
    assert KeptRace(NAME, "b").earlier(known) == {}


def test_nothing_is_stored_of_what_has_no_fingerprint(tmp_path: pathlib.Path) -> None:
    KeptRace("", "a").advanced({"rounds": 4})
    assert not list(tmp_path.rglob("*.json"))
