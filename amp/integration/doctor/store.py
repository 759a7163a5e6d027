"""Checks what is stored of this device: profiles of `amp tune`, measured times, plans.

Files are read and left as they are; nothing is measured.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from amp.errors import ProfileError
from amp.graph_rewrite.cost.device_profile import EXECUTORS, Profile
from amp.integration import fallback
from amp.integration.doctor.findings import NOTE, OK, WRONG, Finding
from amp.integration.measuring import hardware, profiles, stored_times

# Kernels, drivers and neighbours on a shared machine change within half a year.
OLD_DAYS = 180


def profile() -> Iterator[Finding]:
    """Which figures plans are made with: of `amp tune`, how old, or those shipped."""
    model = hardware.model()
    facts: dict[str, Any] = {
        "device": model,
        "tensorflow": tf.__version__,
        "directory": str(profiles.directory()),
        "figures": hardware.shipped().source,
        "used": [],
        "others": [],
    }
    mine = {x: profiles.path(model, tf.__version__, x) for x in EXECUTORS}
    for executor, file in mine.items():
        if os.path.exists(file):
            try:
                points = _points(file, (model, tf.__version__, executor))
            except ProfileError as e:
                fault = f"{file} cannot be used: {e.found}"
                yield Finding("profile", WRONG, fault, "amp tune measures anew", facts)
                return
            used = {"executor": executor, "points": points, "days": days_old(file)}
            facts["used"].append(used)
    others = set(_files(profiles.directory())) - set(mine.values())
    facts["others"] = [_head(file) for file in sorted(others)]
    yield _of(facts)


def _of(facts: dict[str, Any]) -> Finding:
    stale = [one for one in facts["others"] if one]
    told = "; ".join(
        f"{one['device']}, TensorFlow {one['tensorflow']}" for one in stale
    )
    if not facts["used"]:
        text = f"none of {facts['device']}, TensorFlow {facts['tensorflow']}"
        if stale:
            text += f"; those stored are of other devices or versions: {told}"
        text += f". Plans use the figures shipped: {facts['figures']}"
        return Finding("profile", NOTE, text, "amp tune measures, in 45 s", facts)
    oldest = max(one["days"] for one in facts["used"])
    which = " and ".join(
        f"{one['executor']} ({one['points']} points)" for one in facts["used"]
    )
    text = f"{which} measured by amp tune {_ago(oldest)} for {facts['device']}"
    if oldest > OLD_DAYS:
        return Finding("profile", NOTE, text, "amp tune measures anew", facts)
    return Finding("profile", OK, text, facts=facts)


def _points(file: Path, wanted: tuple[str, str, str]) -> int:
    """How many times a stored profile holds.

    Raises:
      ProfileError: it cannot be used.
    """
    with profiles.reading(file):
        found = Profile.parse(file.read_text(encoding="utf-8"), str(file))
        return len(profiles.of(found, wanted, file).points)


def _head(file: Path) -> dict[str, Any]:
    """What a profile of another device or version is of; empty if that is not clear."""

    def read() -> dict[str, Any]:
        found = json.loads(file.read_text(encoding="utf-8"))
        kept = {key: str(found[key]) for key in ("device", "tensorflow", "executor")}
        return {**kept, "days": days_old(file)}

    return fallback.attempt_quietly(read, {})


def measured() -> Iterator[Finding]:
    """What earlier jobs measured and found out, which the next run begins with."""
    file, plans = stored_times.path(), profiles.cache() / "plans"
    facts: dict[str, Any] = {"file": str(file), "operations": 0, "plans": 0}
    facts["plans"] = len(_files(plans))
    if not os.path.exists(file):
        text = f"no operation of past jobs on this device, {facts['plans']} plans"
        yield Finding("measured", OK, text, facts=facts)
        return

    try:
        facts["operations"] = len(stored_times.read(file))
    except ProfileError as e:
        yield Finding("measured", WRONG, f"{file}: {e.found}", e.remedy, facts)
        return
    facts["days"] = days_old(file)
    text = f"{facts['operations']} operations of past jobs, the newest "
    text += f"{_ago(facts['days'])}; {facts['plans']} plans"
    yield Finding("measured", OK, text, facts=facts)


def _files(directory: Path) -> list[Path]:
    """The files of a directory of the cache, none where they cannot be looked for."""
    return list(directory.glob("*.json")) if os.path.isdir(directory) else []


def days_old(file: Path) -> int:
    """Whole days since a file was written."""
    return max(0, int((time.time() - file.stat().st_mtime) / 86400))


def _ago(days: int) -> str:
    return "today" if days < 1 else f"{days} day{'s'[: days > 1]} ago"
