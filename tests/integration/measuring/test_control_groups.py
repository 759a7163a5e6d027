"""`control_groups`: the limits of a container, a batch job, a unit of systemd."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from amp.integration.measuring import control_groups


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of control groups, empty yet."""
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(control_groups, "MEMBERSHIPS", tmp_path / "memberships")
    return tmp_path / "cgroup"


def is_in(groups: Path, memberships: str) -> None:
    """Writes which groups the process is in."""
    (groups.parent / "memberships").write_text(memberships)


def tells(group: Path, controller: str, **files: str) -> None:
    """Writes files of a control group; their names begin with the controller."""
    group.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (group / f"{controller}.{name}").write_text(f"{text}\n")


def least() -> float | None:
    """The bytes that are free."""
    return min(control_groups.free_memory(), default=None)


def test_files_that_a_container_has_read_are_no_used_memory(groups: Path) -> None:
    is_in(groups, "0::/\n")
    stat = "anon 2000\nfile 7500\nactive_file 3000\ninactive_file 4500\nshmem 0"
    tells(groups, "memory", max="10000", current="9900", stat=stat)
    assert least() == 10000 - 9900 + 3000 + 4500


def test_the_limit_of_a_group_around_the_process_own_counts(groups: Path) -> None:
    is_in(groups, "0::/system.slice/job.scope/step\n")
    job = groups / "system.slice/job.scope"
    tells(job.parent, "memory", max="8000", current="7000", stat="active_file 0")
    tells(job, "memory", max="5000", current="4800")
    tells(job / "step", "memory", max="max", current="4000")
    assert least() == 200
    tells(job / "step", "memory", max="4100", current="4000")
    assert least() == 100


def test_limits_of_the_first_version_of_groups_count(groups: Path) -> None:
    is_in(groups, "9:pids:/slurm\n4:cpuset,memory:/slurm/job\n0::/unified\n")
    stat = "cache 1\nactive_file 5\ntotal_active_file 300\ntotal_inactive_file 40"
    inner = groups / "memory/slurm/job"
    tells(inner, "memory", limit_in_bytes="2000", usage_in_bytes="1000", stat=stat)
    assert least() == 1340
    tells(inner.parent, "memory", limit_in_bytes="1500", usage_in_bytes="1400")
    assert least() == 100


def test_a_group_that_is_mounted_alone_is_found_under_any_name(groups: Path) -> None:
    is_in(groups, "0::/../../docker/0123abc\n")
    tells(groups, "memory", max="3000", current="1000")
    assert least() == 2000


def test_groups_that_do_not_say_have_no_limit(groups: Path) -> None:
    assert least() is None
    is_in(groups, "0::/a\nnonsense\n\n")
    assert least() is None
    tells(groups / "a", "memory", max="max", current="1000")
    assert least() is None
    tells(groups / "a", "memory", max="2000")
    (groups / "a/memory.current").unlink()
    assert least() is None


def test_a_quota_is_the_least_of_the_groups_around(groups: Path) -> None:
    assert control_groups.cpus() == math.inf
    is_in(groups, "0::/pod/box\n")
    tells(groups / "pod/box", "cpu", max="max 100000")
    assert control_groups.cpus() == math.inf
    tells(groups / "pod", "cpu", max="250000 100000")
    assert control_groups.cpus() == 2.5
    tells(groups / "pod/box", "cpu", max="20000 10000")
    assert control_groups.cpus() == 2.0


def test_a_quota_of_the_first_version_counts(groups: Path) -> None:
    is_in(groups, "3:cpu,cpuacct:/box\n")
    tells(groups / "cpu", "cpu", cfs_quota_us="-1", cfs_period_us="100000")
    assert control_groups.cpus() == math.inf
    tells(groups / "cpu/box", "cpu", cfs_quota_us="150000", cfs_period_us="100000")
    assert control_groups.cpus() == 1.5
