"""Variables, files and the start are found right or wrong without TensorFlow."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from amp.integration.doctor import surroundings
from amp.integration.doctor.findings import NOTE, OK, WRONG
from amp.integration.measuring.profiles import NOWHERE

ROOT = pathlib.Path(__file__).parents[3]


def only(findings):
    (finding,) = findings
    return finding


def test_variables_that_are_set_and_understood_are_shown():
    environ = {"AMP_DTYPE": "float16", "AMP_ENABLE": "1", "PATH": "/bin"}
    finding = only(surroundings.environment(environ))
    assert finding.status == OK
    assert finding.text == "understood: AMP_DTYPE=float16 AMP_ENABLE=1"
    assert only(surroundings.environment({})).status == OK


def test_a_misspelt_variable_is_wrong_and_the_one_that_was_meant_is_named():
    environ = {"AMP_DTPYE": "float16", "AMP_API_KEY": "secret", "AMP_DENY": "Tanh"}
    finding = only(surroundings.environment(environ))
    assert finding.status == WRONG
    assert "AMP_DTPYE (did you mean AMP_DTYPE?)" in finding.text
    assert finding.remedy == "set AMP_DTYPE, not AMP_DTPYE; unset AMP_API_KEY"
    assert "secret" not in str(finding)
    assert finding.facts["unknown"] == {"AMP_API_KEY": None, "AMP_DTPYE": "AMP_DTYPE"}


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [("AMP_DTYPE", "flaot16", "one of 'auto',"), ("AMP_ENABLE", "ture", "1 or 0")],
)
def test_a_value_that_cannot_be_understood_is_wrong(name, value, takes):
    finding = only(surroundings.environment({name: value}))
    assert finding.status == WRONG
    assert finding.text == f"{name}={value} is not accepted"
    assert finding.remedy.startswith(f"{name} takes {takes}")
    assert finding.facts["understood"] == {}


def test_a_directory_that_can_be_written_is_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path / "new" / "cache"))
    finding = only(surroundings.cache())
    assert finding.status == OK
    assert finding.facts["writable"]
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_wrong(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    finding = only(surroundings.cache())
    assert finding.status == WRONG
    assert f"no file can be made in {tmp_path / 'file'}: " in finding.text
    assert "set AMP_CACHE_DIR" in finding.remedy
    assert not finding.facts["writable"]


def test_a_relative_directory_is_another_for_each_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMP_CACHE_DIR", "cache")
    finding = only(surroundings.cache())
    assert finding.status == NOTE
    assert "each job has its own" in finding.text


def test_the_directory_of_reports_is_looked_at_where_one_is_named(tmp_path):
    assert not list(surroundings.reports({}))
    (tmp_path / "file").touch()
    for name, status in (("reports", OK), ("file/reports", WRONG)):
        finding = only(surroundings.reports({"AMP_REPORT": str(tmp_path / name)}))
        assert finding.status == status
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    monkeypatch.setattr(surroundings.profiles, "cache", lambda: NOWHERE)
    finding = only(surroundings.cache())
    assert finding.status == WRONG
    assert "no home directory" in finding.text


@pytest.mark.parametrize(
    ("installed", "asked", "status"),
    [(True, "1", OK), (True, "", OK), (False, "", NOTE), (False, "1", WRONG)],
)
def test_without_the_file_that_python_reads_the_switch_does_nothing(
    installed, asked, status, tmp_path, monkeypatch
):
    site = surroundings.site
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "user"))
    if installed:
        (tmp_path / "tf_amp.pth").touch()
    finding = only(surroundings.start({"AMP_ENABLE": asked}))
    assert finding.status == status
    assert ("has no effect" in finding.text) == (not installed)
    assert ("pip install -e CLONE" in finding.remedy) == (not installed)


@pytest.mark.parametrize("enabled", [True, False, None])
def test_the_users_own_packages_count_only_where_python_reads_them(
    tmp_path, monkeypatch, enabled
):
    """Not in a virtual environment, nor with `-s`."""
    site = surroundings.site
    monkeypatch.setattr(site, "getsitepackages", lambda: [])
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", enabled)
    (tmp_path / "tf_amp.pth").touch()
    finding = only(surroundings.start({"AMP_ENABLE": "1"}))
    assert finding.status == (OK if enabled else WRONG)


@pytest.mark.parametrize("other", ["amp.py", "amp/__init__.py"])
def test_another_module_of_the_same_name_is_told_of(other, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    before = only(surroundings.start({}))
    monkeypatch.chdir(tmp_path)
    assert only(surroundings.start({})) == before
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).touch()
    finding = only(surroundings.start({}))
    assert finding.status == NOTE
    assert f"{tmp_path / other} hides this package" in finding.text


def test_versions_name_what_is_not_installed(monkeypatch):
    def missing(name):
        raise surroundings.importlib.metadata.PackageNotFoundError(name)

    assert "tensorflow 2." in only(surroundings.versions()).text
    monkeypatch.setattr(surroundings.importlib.metadata, "version", missing)
    assert "tensorflow not installed" in only(surroundings.versions()).text


@pytest.mark.processes
def test_nothing_of_tensorflow_is_imported():
    code = (
        "import sys; from amp.integration.doctor import checkup, surroundings as s\n"
        "for c in (s.versions, s.environment, s.start, s.cache): list(c())\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-O", "-c", code], env=environment, check=True)


def test_no_usable_temporary_directory_is_wrong(monkeypatch):
    assert list(surroundings.temporary()) == []

    def unusable():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", unusable)
    finding = only(surroundings.temporary())
    assert (finding.check, finding.status) == ("temporary", WRONG)
    assert "No usable temporary directory found in ['/tmp']" in finding.text
    assert finding.remedy.startswith("set TMPDIR to a directory")
