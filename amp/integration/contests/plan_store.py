"""Keeps what was found out about a function's plans, for the next runs of the job.

One JSON file for each function's fingerprint, beside the measured times.
`between_calls` adds which plan won its race; nothing is timed or decided here, and no
reader ever sees a file half written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import threading
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import tensorflow as tf

from amp import graph_rewrite, integration, messages
from amp.errors import ProfileError
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import fingerprint as graph_fingerprint
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.outcomes import TrialOutcome
from amp.graph_rewrite.report import Report
from amp.integration import fallback
from amp.integration.measuring import hardware, profiles
from amp.integration.racing.race_log import FLOAT32, IN_FLOAT32
from amp.integration.racing.race_rules import USED_UP
from amp.policy import Policy

# To be raised by one whenever the meaning of an entry changes.
SCHEMA = 3
# How many functions are kept, the newest; a job has some dozens, of some kilobytes.
MOST = 2000
# The winner makes the first step where it was seen to be ready for its first call in at
# most so many times as long as float32. That was with nothing known: planning takes
# half as long in a later run, and tracing, which a job waits for too, is not in it.
# First steps are to take 1.1 times float32's at most: a MobileNetV2's at 1.35 took
# 1.11 times as long, a ResNet-50's at 1.34 to 1.51 1.24, a ConvNeXt's at 1.19 1.30, a
# transformer's at 1.53 1.48 and, of another plan, at 1.01 1.17.
SOON = 1.1
# By how much sizes that a call tells differ where what was found out of one is not used
# for the other (an estimate: which nodes gain changes less within it than races err).
SCALE = 8
# What changes no plan and no time.
_IRRELEVANT = ("report", "strict", "trial", "tune_budget")
# The folders of `amp/integration/` whose code makes plans, races or checks them.
_FOLDERS = ("runtime", "racing", "contests", "observing", "functions", "sessions")

_LOCK = threading.RLock()  # held while a record is read and replaced, no longer


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What is known of one function's plans.

    Attributes:
      winner: name of the plan that won its race, "" where it is not known.
      seconds: median time of a call, by the name of the plan.
      accuracy: what was found out about the plans' accuracy.
      runs: how many runs of the job had this winner, the one of its race included.
      race: what was measured in a race that has not ended, {} if there is none.
      times: the measured times that the winner was planned by: seconds in (float32, 16
        bits; infinite where these fail) by the key of an operation.
      tried: a name of all the times by which plans were made that raced.
      ready: seconds to the end of a first call, by the name of the plan, of float32 and
        of a winner, with all that its planning took.
    """

    winner: str = ""
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    accuracy: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    runs: int = 0
    race: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    times: Mapping[str, Times] = dataclasses.field(default_factory=dict)
    tried: str = ""
    ready: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def soon(self) -> bool:
        """Whether the winner makes a first step about as soon as float32 does."""
        own, other = self.ready.get(self.winner), self.ready.get(FLOAT32)
        if self.winner == FLOAT32 or own is None or other is None:
            return False
        return own <= SOON * other

    @property
    def compared(self) -> bool:
        """Whether it is the winner whose gradients were compared, if they need be."""
        if self.winner in IN_FLOAT32:
            return True
        return bool(self.accuracy) and self.accuracy.get("name") == self.winner

    @property
    def contested(self) -> bool:
        """Whether float32, which won, is to race again in this run.

        In the 2nd run, the 4th, the 8th and so on: what was measured since then may
        give a better plan, and a machine that was busy may be quiet. All the races of
        n runs so cost the budget of log2(n) + 1 of them.
        """
        return self.winner == FLOAT32 and self.runs > 1 and self.runs.bit_count() == 1

    @property
    def doubted(self) -> bool:
        """Whether another winner is soon checked against float32 in this run.

        In the 4th run, the 8th and so on: its race may have been cut short or
        disturbed, or the machine may be another, and jobs whose runs are short, or
        compare the winner with nothing but itself, find out in no other way. Not in the
        2nd, as float32 needs memory that the winner does not.
        """
        won = self.winner not in ("", FLOAT32)
        return won and self.runs > 2 and self.runs.bit_count() == 1


def fingerprint(module: ir.Module, settled: Resolution) -> str:
    """The name of a function's record: by what changes its plans or their times.

    That is what the function computes with which shapes (not what it or its nodes are
    called), the device, TensorFlow's version, this package's version and the code that
    plans and judges plans, and the policy.
    """
    assert settled.policy is not None
    default = Policy()
    same = {name: getattr(default, name) for name in _IRRELEVANT}
    policy = dataclasses.replace(settled.policy, **same)
    with hardware.on(settled.place):
        device = f"{hardware.model()}, {settled.device.name}"
    versions = f"{tf.__version__}, {_package()}, {SCHEMA}"
    return graph_fingerprint.fingerprint(module, device, versions, str(policy))


def at_size(name: str, given: Iterable[ir.Shape]) -> str:
    """The name of a function's record for a call of about these sizes.

    What won for 512 rows says nothing of 4. Sizes that are nearer to one power of
    `SCALE` than to another share a record, so that sequences in buckets do.

    Args:
      name: the function's fingerprint, which has the sizes that the trace knows.
      given: the shapes that the call told, none if the trace knows all.
    """
    known = [shape for shape in given if shape and -1 not in shape]
    elements = sum(math.prod(size or 1 for size in shape) for shape in known)
    return f"{name}-{round(math.log(elements, SCALE))}" if elements else name


@functools.cache
def _package() -> str:
    """A name for what plans and judges plans: the version, and the code.

    An installation may change the code under one version. Reading all files takes 5 ms
    (Xeon with AMX, files in memory); where there are no source files, the version alone
    counts.
    """
    found = hashlib.blake2b(digest_size=16)
    with contextlib.suppress(metadata.PackageNotFoundError):
        found.update(metadata.version("tf-amp").encode())
    planning, beside = (
        Path(package.__file__ or "").parent for package in (graph_rewrite, integration)
    )
    for folder in (planning, *(beside / name for name in _FOLDERS)):
        for file in sorted(folder.rglob("*.py")):
            found.update(file.read_bytes())
    return found.hexdigest()


def path(name: str) -> Path:
    """The file of a fingerprint."""
    return profiles.cache() / "plans" / f"{name}.json"


def load(name: str) -> Record:
    """What is known of the function of a fingerprint; an empty record if nothing is.

    Under "", the name of what has no fingerprint, nothing is. A file that cannot be
    read counts as empty, with a warning.
    """
    if not name:
        return Record()
    file = path(name)
    part = fallback.Part(f"what is known of a function in {file} is ignored")
    return fallback.attempt(part, lambda: _loaded(file), Record)


def _loaded(file: Path) -> Record:
    if not os.path.exists(file):
        return Record()
    with profiles.reading(file):
        return _parsed(file)


def _parsed(file: Path) -> Record:
    found = json.loads(file.read_text(encoding="utf-8"))
    seconds = {str(plan): _positive(time) for plan, time in found["seconds"].items()}
    measured = found.get("times", {}).items()
    return Record(
        winner=str(found["winner"]),
        seconds=seconds,
        accuracy=dict(found["accuracy"]),
        runs=int(found.get("runs", 0)),
        race=dict(found.get("race", {})),
        times={str(key): (float(high), float(low)) for key, (high, low) in measured},
        tried=str(found.get("tried", "")),
        ready={str(k): _positive(v) for k, v in found.get("ready", {}).items()},
    )


def _positive(seconds: Any) -> float:
    found = float(seconds)
    if not 0 < found < math.inf:
        raise ValueError(f"a time of {found} s")
    return found


def next_run(name: str) -> Record:
    """What is known of a function, at its first call in a run, which is counted."""
    known = load(name)
    if known.winner:
        known = dataclasses.replace(known, runs=known.runs + 1)
        save(name, runs=known.runs)
    return known


def save(name: str, **changes: Any) -> None:
    """Replaces attributes of a function's record, and keeps the others as they are.

    Where the directory cannot be written, the log says so and the job goes on. If two
    processes save at a time, the last one's record stays.

    Args:
      name: the fingerprint; under "" nothing is stored.
      changes: new values of attributes of `Record`.
    """
    if not name:
        return
    load(name)  # tells of a damaged file, as the program's code may not under the lock
    try:
        with _LOCK:
            _replace(path(name), changes)
    except ProfileError as e:
        messages.log_once("%s", e)
        return
    _drop_oldest(path(name).parent)


def _replace(file: Path, changes: Mapping[str, Any]) -> None:
    """Reads a file and writes it anew, with `_LOCK` held.

    Raises:
      ProfileError: the directory cannot be written.
    """
    known = fallback.attempt_quietly(lambda: _loaded(file), Record())
    record = dataclasses.replace(known, **changes)
    profiles.write(file, json.dumps(dataclasses.asdict(record), indent=1))


def keep_outcome(
    name: str,
    winner: str,
    outcome: TrialOutcome,
    times: Mapping[str, Times] | None = None,
    ready: Mapping[str, float] | None = None,
) -> None:
    """Saves the winner of a race, if it was found by timing.

    Not float32 if the budget decided: the next run would never try anything else.

    Args:
      name: the fingerprint.
      winner: the name of its plan.
      outcome: of the race.
      times: the measured times that the winner was planned by, if they were noted.
      ready: as of `Record`; None where nothing new was seen of the same winner.
    """
    seconds = {p.name: p.seconds for p in outcome.plans if p.seconds is not None}
    doubtful = winner == FLOAT32 and outcome.text == USED_UP
    if len(seconds) > 1 and winner in seconds and not doubtful:
        known = load(name)
        runs = known.runs if known.winner == winner else 1
        found = {"winner": winner, "seconds": seconds, "times": dict(times or {})}
        found["ready"] = dict(known.ready if ready is None else ready)
        save(name, **found, runs=runs, race={})


def as_measured(report: Report, known: Record, plain: str = FLOAT32) -> Report:
    """A winner's report, with the times of the earlier run that it won in.

    Args:
      report: on the winner.
      known: what that run stored.
      plain: as of `Log`.
    """
    seconds = known.seconds
    high = seconds.get(plain, seconds.get(FLOAT32))
    return report.as_measured(high, seconds.get(known.winner))


def _drop_oldest(directory: Path) -> None:
    """Removes the files beyond `MOST` that were not written for longest."""
    # Another process may have removed one, or the directory; or a disk is gone.
    with contextlib.suppress(OSError):
        files = list(directory.glob("*.json"))
        if len(files) <= MOST:
            return
        files.sort(key=lambda file: file.stat().st_mtime)
        for file in files[:-MOST]:
            file.unlink(missing_ok=True)
