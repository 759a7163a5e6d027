"""A check that ends its process, hangs or raises is a finding; the doctor goes on."""

from __future__ import annotations

import os
import tempfile

import pytest

from amp.integration.doctor import probe
from amp.integration.doctor.findings import OK, WRONG
from amp.integration.doctor.probe import Check

pytestmark = pytest.mark.processes


def found(*functions, module="doctor_checks"):
    checks = [Check(name, module, name) for name in functions]
    return list(probe.run(checks))


def test_checks_are_made_in_another_process_which_prints_nothing_here(capfd):
    first, second = found("well", "well")
    assert first.status == OK
    assert first.facts["id"] == second.facts["id"] != os.getpid()
    assert capfd.readouterr() == ("", "")


def test_where_the_process_ends_the_finding_says_at_what_and_its_last_words():
    well, ended, after = found("well", "ends", "well")
    assert (well.status, after.status) == (OK, OK)
    assert well.facts["id"] != after.facts["id"]
    assert (ended.check, ended.status) == ("ends", WRONG)
    assert "ended its process here (SIGABRT): terminate called after" in ended.text
    assert ended.facts["exit"] == -6


@pytest.fixture
def no_temporary_directory(monkeypatch):
    """As where none of those that Python tries can be written."""

    def unusable():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", unusable)


@pytest.mark.usefixtures("no_temporary_directory")
def test_without_a_temporary_directory_only_the_last_words_are_lost():
    well, ended, after = found("well", "ends", "well")
    assert (well.status, after.status) == (OK, OK)
    assert ended.text == "TensorFlow ended its process here (SIGABRT)"


def test_a_process_that_ends_at_once_is_not_started_again():
    (ended,) = found("ends", "well")
    assert ended.status == WRONG


def test_a_check_that_hangs_is_stopped_and_nothing_else_is_tried(monkeypatch):
    monkeypatch.setattr(probe, "PATIENCE_SECONDS", 5.0)
    well, hung = found("well", "hangs", "well")
    assert well.status == OK
    assert (hung.check, hung.status) == ("hangs", WRONG)
    assert "no answer for 5 s" in hung.text


def test_a_check_that_raises_does_not_keep_others_from_being_made():
    raised, well = found("raises", "well")
    assert (raised.check, raised.status) == ("raises", WRONG)
    assert raised.text == "could not be checked: LookupError: no driver"
    assert well.status == OK


def test_without_the_module_nothing_after_it_is_tried():
    (missing,) = found("check", "check", module="amp_no_such_module")
    assert missing.status == WRONG
    assert "cannot be imported" in missing.text


def test_a_tensorflow_that_is_not_installed_is_called_so():
    error = ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
    (finding,) = probe._failed("tensorflow", error)
    assert finding.text == "not installed"
    assert "pip install tensorflow" in finding.remedy


def test_the_doctors_own_steps_are_no_job(monkeypatch):
    monkeypatch.setenv("AMP_ENABLE", "1")
    (finding,) = found("enabled")
    assert finding.text == "unset"
