"""The checks of `amp doctor`, in their order; how each is made is not said here."""

from __future__ import annotations

from collections.abc import Iterator

from amp.integration.doctor import probe, surroundings
from amp.integration.doctor.findings import Finding
from amp.integration.doctor.probe import Check

_HERE = "amp.integration.doctor"
# Made in a process of their own, because they need TensorFlow.
CHECKS = (
    Check("tensorflow", f"{_HERE}.machine", "tensorflow"),
    Check("hooks", f"{_HERE}.hook_states", "check"),
    Check("device", f"{_HERE}.machine", "devices"),
    Check("onednn", f"{_HERE}.machine", "onednn"),
    Check("precision", f"{_HERE}.machine", "precision"),
    Check("profile", f"{_HERE}.store", "profile"),
    Check("measured", f"{_HERE}.store", "measured"),
    Check("xla", f"{_HERE}.machine", "xla"),
    Check("self_test", f"{_HERE}.self_test", "check"),
)


def findings() -> Iterator[Finding]:
    """Everything that is found, as soon as it is found; no fault of one ends it."""
    yield from surroundings.versions()
    yield from surroundings.environment()
    yield from surroundings.start()
    yield from surroundings.cache()
    yield from surroundings.reports()
    yield from surroundings.temporary()
    yield from probe.run(CHECKS)
