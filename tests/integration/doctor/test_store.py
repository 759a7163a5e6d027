"""A profile is of this device and version, or the finding says of which it is."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest
import tensorflow as tf

from amp.graph_rewrite.cost.device_profile import EXECUTORS, Point, Profile
from amp.integration.doctor import store
from amp.integration.doctor.findings import NOTE, OK, WRONG
from amp.integration.measuring import hardware, profiles, stored_times


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Profiles of this device; the cache is empty."""
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    point = Point("matmul", "arithmetic", "MatMul 8 8", "float32", 192, 1024.0, 1e-6)
    here = hardware.model(), tf.__version__
    return [Profile(*here, executor, (point,)) for executor in EXECUTORS]


def only(findings):
    (finding,) = findings
    return finding


def aged(file, days):
    then = time.time() - 86400 * days
    os.utime(file, (then, then))


def test_what_is_stored_of_this_device_is_used_and_its_age_told(mine):
    for profile in mine:
        aged(profiles.save(profile), 3.5)
    finding = only(store.profile())
    assert finding.status == OK
    told = "kernels (1 points) and xla (1 points) measured by amp tune 3 days ago for"
    assert told in finding.text
    assert finding.facts["used"] == [
        {"executor": executor, "points": 1, "days": 3} for executor in EXECUTORS
    ]


def test_without_a_profile_plans_use_shipped_figures_and_that_is_no_fault(mine):
    finding = only(store.profile())
    assert finding.status == NOTE
    assert hardware.shipped().source in finding.text
    assert finding.remedy.startswith("amp tune")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tensorflow": "2.18.0"}, "TensorFlow 2.18.0"),
        ({"device": "Another CPU, 64 cores"}, "Another CPU, 64 cores"),
    ],
)
def test_a_profile_of_another_device_or_version_is_stale(mine, change, told):
    profiles.save(dataclasses.replace(mine[0], **change))
    finding = only(store.profile())
    assert finding.status == NOTE
    assert "those stored are of other devices or versions" in finding.text
    assert told in finding.text
    assert change.items() <= finding.facts["others"][0].items()


def test_a_profile_that_is_too_old_is_told_of(mine):
    aged(profiles.save(mine[0]), store.OLD_DAYS + 1)
    finding = only(store.profile())
    assert finding.status == NOTE
    assert "181 days ago" in finding.text


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 99}', "[" * 9])
def test_a_damaged_profile_is_wrong(mine, text):
    profiles.save(mine[0]).write_text(text)
    finding = only(store.profile())
    assert finding.status == WRONG
    assert "cannot be used" in finding.text
    assert finding.remedy == "amp tune measures anew"


def test_a_profile_under_another_name_is_wrong(mine):
    other = dataclasses.replace(mine[0], tensorflow="2.18.0")
    profiles.save(mine[0]).write_text(other.to_json())
    finding = only(store.profile())
    assert finding.status == WRONG
    assert "2.18.0" in finding.text


def test_measured_operations_are_counted(mine):
    assert only(store.measured()).facts["operations"] == 0
    file = stored_times.add({"MatMul": (2e-3, 1e-3)})
    aged(file, 2)
    finding = only(store.measured())
    assert finding.status == OK
    assert finding.text.startswith("1 operations of past jobs, the newest 2 days ago")


def test_a_damaged_file_of_times_is_wrong(mine):
    stored_times.add({"MatMul": (2e-3, 1e-3)}).write_text("{")
    finding = only(store.measured())
    assert finding.status == WRONG
    assert finding.remedy.startswith("remove the file")
