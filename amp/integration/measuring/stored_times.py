"""Where the times of a job's operations are stored: one file per device and TensorFlow.

Beside the device profiles. Nothing is measured here, and no file is ever half written.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf
from absl import logging

from amp.graph_rewrite.cost.op_instance import Times
from amp.integration.measuring import hardware, profiles

try:
    import fcntl
except ImportError:  # no POSIX: the last of two writers at a time wins
    fcntl = None  # type: ignore[assignment]

# Raised when keys or times mean something else than before.
SCHEMA = 1
# The newest are kept; a job has some hundreds.
MOST = 10_000

_warned: set[Path] = set()


def path() -> Path:
    """The file for this device and TensorFlow."""
    file = profiles.path(hardware.model(), tf.__version__, "operations")
    return file.with_suffix(".jsonl")


def load() -> dict[str, Times]:
    """What is stored for this device and TensorFlow, by the key of an instance.

    A file that cannot be read, or is of something else, gives nothing and a warning.
    """
    file = path()
    try:
        return _parsed(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        if file not in _warned:
            _warned.add(file)
            text = "amp: the measured operations in %s are ignored (%s)"
            logging.warning(text, file, e)
        return {}


def add(times: Mapping[str, Times]) -> Path:
    """Adds to what is stored, and returns the file.

    One process at a time reads, adds and moves the new file over the old one, so that
    none loses what another has added.

    Raises:
      ProfileError: the directory cannot be written.
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
    """A head, then one instance a line; null where it fails in 16 bits."""
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
    """Holds the file's lock, where the system and the file system have locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(file.with_suffix(".lock"), "a"))
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
