"""Stores measured times of operations: one file per device and TensorFlow version.

The files lie beside the device profiles. `job_timer` and `tune_function` read and add;
nothing is measured here, and no reader ever sees a file half written.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from amp.errors import ProfileError
from amp.graph_rewrite.cost.op_instance import Times
from amp.integration import fallback
from amp.integration.measuring import hardware, profiles
from amp.integration.process import PROCESS

try:
    import fcntl
except ImportError:  # no POSIX: the last of two writers at a time wins
    fcntl = None  # type: ignore[assignment]

# To be raised by one whenever the meaning of keys or times changes.
SCHEMA = 2  # products measured with cold operands
# How many operations a file holds, the newest; a job has some hundreds.
MOST = 10_000

# A process holds the lock while it reads and writes a file of at most 10,000 lines,
# about 0.1 s. One that holds it ten times as long is assumed to be stopped: others then
# give up storing, and keep what they measured in memory.
PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 0.02


def path() -> Path:
    """The file for this device and TensorFlow."""
    file = profiles.path(hardware.model(), tf.__version__, "operations")
    return file.with_suffix(".jsonl")


def load() -> Mapping[str, Times]:
    """The stored times for this device and TensorFlow, by the key of an `Instance`.

    The file is parsed again only after it has changed. One that cannot be read, or is
    of another device, counts as empty, with a warning.
    """
    file = path()
    part = fallback.Part(f"the measured operations in {file} are ignored")
    nothing: dict[str, Times] = {}
    return fallback.attempt(part, lambda: _loaded(file), lambda: nothing)


def _loaded(file: Path) -> Mapping[str, Times]:
    if not os.path.exists(file):
        return {}
    status = os.stat(file)
    version = status.st_mtime_ns, status.st_size, status.st_ino
    known: tuple[tuple[int, int, int], dict[str, Times]] | None
    known = PROCESS.stored_times.get(file)
    if known is None or known[0] != version:
        with profiles.reading(file):
            known = version, _parsed(file.read_text(encoding="utf-8"))
        PROCESS.stored_times[file] = known
    return known[1]


def read(file: Path) -> Mapping[str, Times]:
    """The times in a file, as `load` returns those of `path()`.

    Raises:
      ProfileError: it cannot be read, or is of another device.
    """
    return _loaded(file)


def add(times: Mapping[str, Times]) -> Path:
    """Adds times to the file, and returns its path.

    One process at a time reads the file, adds, and moves the new file over the old one,
    so that none loses what another has added. A process that is stopped meanwhile makes
    the others wait for `PATIENCE_SECONDS` at most.

    Raises:
      ProfileError: the directory cannot be written, or another process holds the lock
        for longer than `PATIENCE_SECONDS`.
    """
    file = path()
    with _locked(file):
        every = {k: t for k, t in load().items() if k not in times} | dict(times)
        profiles.write(file, _text(dict(list(every.items())[-MOST:])))
    return file


def _head() -> dict[str, object]:
    device, version = hardware.model(), tf.__version__
    return {"schema": SCHEMA, "device": device, "tensorflow": version}


def _text(times: Mapping[str, Times]) -> str:
    """The file's text: a head, then one operation a line; null where 16 bits fail."""
    lines = [json.dumps(_head())]
    for key, (high, low) in times.items():
        seconds = [high, None if math.isinf(low) else low]
        lines.append(json.dumps({"key": key, "seconds": seconds}))
    return "\n".join(lines) + "\n"


def _parsed(text: str) -> dict[str, Times]:
    head, *rows = map(json.loads, text.splitlines())
    if head != _head():
        raise ValueError(f"they are of {head}")
    found = {}
    for row in rows:
        high, low = row["seconds"]
        times = (float(high), math.inf if low is None else float(low))
        if not (
            0 < times[0] < math.inf and times[1] > 0 and isinstance(row["key"], str)
        ):
            raise ValueError(f"a time that cannot be, in {row}")
        found[row["key"]] = times
    return found


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Holds the file's lock, where the system and the file system have locks.

    Raises:
      ProfileError: another process holds it for longer than `PATIENCE_SECONDS`.
    """
    lock = _opened(file.with_suffix(".lock"))
    try:
        if lock is not None:
            _wait_for(lock, file)
        yield
    finally:
        if lock is not None:
            _release(lock)


def _opened(file: Path) -> int | None:
    """Opens the lock's file, which started programs do not inherit; None: no locks."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        if fcntl is not None:
            lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            PROCESS.open_locks.add(lock)
            return lock
    return None


def _wait_for(lock: int, file: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            if time.monotonic() >= end:
                raise ProfileError(
                    f"another process has held the lock for {PATIENCE_SECONDS:g} s",
                    where=str(file.with_suffix(".lock")),
                    allowed="holding it for as long as one file is written",
                    remedy="look for a job that is stopped; this one goes on, and what "
                    "it measured is measured again by the next",
                ) from e
        except OSError:  # a file system without locks: the last of two writers wins
            return None
        time.sleep(_PAUSE_SECONDS)


def _release(lock: int) -> None:
    """Releases the lock, even if a forked child of this process has the file open."""
    PROCESS.open_locks.discard(lock)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):
        os.close(lock)


def _close_in_child() -> None:
    """Closes the locks in a fork, which would keep them if its parent were killed."""
    while PROCESS.open_locks:
        with contextlib.suppress(OSError):
            os.close(PROCESS.open_locks.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
