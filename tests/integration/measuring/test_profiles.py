"""`profiles`: where the cache is, what it keeps of two measurements, and no cache."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from amp.errors import ProfileError
from amp.graph_rewrite.cost.device_profile import Point, Profile
from amp.integration import report_directories
from amp.integration.contests import plan_store
from amp.integration.doctor import findings, store
from amp.integration.measuring import profiles, stored_times

POINT = Point("matmul", "arithmetic", "MatMul 8 8", "float32", 192, 1024.0, 1e-6)
PROFILE = Profile("a device", "2.21.0", "kernels", (POINT,))


@pytest.fixture
def homeless(tmp_path, monkeypatch):
    """A user of whom the system knows no home directory, as in some containers."""
    pwd = pytest.importorskip("pwd")

    def unknown(uid: int):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", profiles.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())  # such as a directory named "~"


def test_a_relative_cache_stays_where_it_is_when_the_job_goes_elsewhere(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(profiles.VARIABLE, "cache")
    before = profiles.cache()
    assert before == Path.cwd() / "cache"
    monkeypatch.chdir(tmp_path)
    assert profiles.cache() == before


@pytest.mark.usefixtures("homeless")
def test_without_a_home_directory_nothing_is_known_or_kept_and_the_job_goes_on():
    assert profiles.cache() == profiles.NOWHERE
    assert profiles.load("a device", "2.21.0", "kernels") is None
    assert stored_times.load() == {}
    assert plan_store.load("name") == plan_store.Record()
    plan_store.save("name", winner="float32")
    assert report_directories.of_job() is None


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize(
    "keep", [lambda: profiles.save(PROFILE), profiles.require_writable]
)
def test_whoever_asks_to_keep_something_is_told_of_the_home_directory(keep):
    with pytest.raises(ProfileError, match="no home directory") as caught:
        keep()
    assert caught.value.remedy == "set AMP_CACHE_DIR to one"


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A cache below a directory of somebody else's, that may not even be searched."""
    place = tmp_path / "closed"

    def refusing(call):
        def refuse(path, *args, **kwargs):
            if not isinstance(path, int) and Path(os.fsdecode(path)).is_relative_to(
                place
            ):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return call(path, *args, **kwargs)

        return refuse

    for name in ("stat", "mkdir", "open", "access", "scandir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    monkeypatch.setenv(profiles.VARIABLE, str(place / "cache"))


@pytest.mark.usefixtures("closed")
def test_a_cache_that_may_not_be_searched_is_as_one_that_is_not_there():
    """Every warning is an error in tests."""
    assert profiles.load("a device", "2.21.0", "kernels") is None
    assert stored_times.load() == {}
    assert plan_store.load("name") == plan_store.Record()
    plan_store.save("name", winner="float32")
    assert report_directories.of_job() is None
    for finding in (*store.profile(), *store.measured()):
        assert finding.status != findings.WRONG


def test_a_relative_cache_of_the_system_is_none(monkeypatch):
    """Earlier releases of platformdirs leave `~/.cache` as it is."""
    monkeypatch.delenv(profiles.VARIABLE, raising=False)
    relative = profiles.Path("~", ".cache", "tf-amp")
    monkeypatch.setattr(
        profiles.platformdirs, "user_cache_path", lambda *_, **__: relative
    )
    assert profiles.cache() == profiles.NOWHERE


def test_what_is_measured_again_replaces_what_was_and_nothing_else():
    low = dataclasses.replace(POINT, dtype="bfloat16")
    other = dataclasses.replace(POINT, case="MatMul 16 16")
    newer = dataclasses.replace(POINT, seconds=3e-6)
    first = dataclasses.replace(PROFILE, points=(POINT, low))
    second = dataclasses.replace(PROFILE, points=(newer, other))
    assert first.updated(second).points == (newer, low, other)
    assert first.updated(first) == first
