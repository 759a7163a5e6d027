"""What Linux' control groups leave to this process: a container's, a batch job's.

Only files are read here. What does not say has no limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

# Where Linux shows control groups, and says which ones this process is in.
GROUPS, MEMBERSHIPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

# By version of control groups, the files with the limit of memory and what is used of
# it, and what the names of the fields for a group and those below begin with:
# https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
# https://docs.kernel.org/admin-guide/cgroup-v2.html
_MEMORY = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("memory.max", "memory.current", ""),
}

# The time that a group may use of every period, and the period, in the first version:
# https://docs.kernel.org/scheduler/sched-bwc.html
_QUOTA = ("quota", "period")


def free_memory() -> Iterator[float]:
    """The bytes that each group around the process has left, if it has a limit.

    Files that were read count as used, but give way to what needs memory.
    """
    for version, group in _around("memory"):
        most, current, prefix = _MEMORY[version]
        limit, used = _number(group / most), _number(group / current)
        if limit is not None and used is not None:
            yield limit - max(0.0, used - _of_files(group, prefix))


def cpus() -> float:
    """How many CPUs' time the process may have, whatever it may run on; inf: any."""
    return min(_quotas(), default=math.inf)


def _quotas() -> Iterator[float]:
    for version, group in _around("cpu"):
        if version == 1:
            quota, period = (_number(group / f"cpu.cfs_{n}_us") for n in _QUOTA)
            if quota and period:  # a quota of -1 is none
                yield quota / period
        else:
            for line in _lines(group / "cpu.max"):
                allowed, _, of = line.partition(" ")
                if allowed.isdecimal() and of.isdecimal():
                    yield int(allowed) / int(of)


def _of_files(group: Path, prefix: str) -> float:
    """The bytes of a group that hold what is in files."""
    fields = {f"{prefix}{state}_file" for state in ("active", "inactive")}
    lines = (line.partition(" ") for line in _lines(group / "memory.stat"))
    return sum(float(number) for name, _, number in lines if name in fields)


def _around(controller: str) -> Iterator[tuple[int, Path]]:
    """The version and directory of each group that the process is in, outermost first.

    A limit holds for all groups below. A path that is not below the directory of all
    groups is that of a container, whose group is mounted there in its place.

    Args:
      controller: what is limited. Groups of the second version name none.
    """
    for line in _lines(MEMBERSHIPS):
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        version, root = (1, GROUPS / controller) if controllers else (2, GROUPS)
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            yield version, root.joinpath(*parts[:depth])


def _number(file: Path) -> float | None:
    """The number in a file; None if there is another word, or no such file."""
    found = _lines(file)
    return float(found[0]) if found and found[0].isdecimal() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
