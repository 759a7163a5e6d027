"""`amp tune`: calibrates this device and stores its profiles; lists what is stored.

How a case is measured is in `calibration`; no figure of a device is written here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from amp.graph_rewrite.cost.device_profile import Point, Profile
from amp.integration.measuring import calibration, hardware, profiles, stopwatch


def tune(
    executors: Sequence[str], seconds: float, progress: calibration.Progress
) -> Iterator[tuple[Path, Profile]]:
    """Measures one executor after the other, and stores what it measures.

    What an earlier profile has beyond that is kept, as the figures shipped are for what
    was never measured. An interruption loses no case that was measured.

    Args:
      executors: "kernels", "xla", or both.
      seconds: time for all of them; what one does not use goes to the next.
      progress: as `calibration.calibrate` calls it.

    Yields:
      The profile of each executor for which there was time, and the file that it is in.

    Raises:
      PolicyError: there is no time to measure in.
      ProfileError: the profile cannot be stored; then nothing was measured.
    """
    stopwatch.require_time(seconds, "--seconds")
    profiles.require_writable()
    end = time.perf_counter() + seconds
    for done, executor in enumerate(executors):
        left = max(end - time.perf_counter(), 0.0)
        share = left / (len(executors) - done)
        points: list[Point] = []
        try:
            for point in calibration.calibrate(executor, share, progress=progress):
                points.append(point)
        finally:
            kept = _kept(executor, points)
        if kept is not None:
            yield kept


def _kept(executor: str, points: Sequence[Point]) -> tuple[Path, Profile] | None:
    """Stores points, if there are any, beside those of an earlier profile."""
    if not points:
        return None
    new = Profile(hardware.model(), tf.__version__, executor, tuple(points))
    known = profiles.load(new.device, new.tensorflow, executor)
    profile = new if known is None else known.updated(new)
    file = profiles.save(profile)
    hardware.device.cache_clear()
    return file, profile


def stored(executors: Sequence[str]) -> list[tuple[Path, Profile]]:
    """The profiles of this device and TensorFlow, each with the file that it is in."""
    found = []
    for executor in executors:
        key = (hardware.model(), tf.__version__, executor)
        profile = profiles.load(*key)
        if profile is not None:
            found.append((profiles.path(*key), profile))
    return found
