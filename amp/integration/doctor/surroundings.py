"""Checks what can be known without TensorFlow: versions, variables, files.

Reads the environment and the file system; a file is made only to see whether one can
be, and removed. Nothing of TensorFlow is imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import site
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from amp import variables
from amp.errors import PolicyError
from amp.integration.doctor.findings import NOTE, OK, WRONG, Finding
from amp.integration.measuring import profiles
from amp.policy import FIELDS

PTH = "tf_amp.pth"


def versions() -> Iterator[Finding]:
    """What is installed, as the package index names it."""
    names = ("tf-amp", "tensorflow", "keras", "numpy", "scipy")
    found = {"python": platform.python_version()}
    found |= {name: _version(name) for name in names}
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    facts = {**found, "platform": platform.platform()}
    yield Finding("versions", OK, f"{shown}; {platform.platform()}", facts=facts)


def _version(name: str) -> str:
    for distribution in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def environment(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """The `AMP_*` variables: which are understood, and which mean nothing.

    Values of variables that are not ours are not shown.
    """
    named = variables.known()
    ours = {name: environ[name] for name in named if environ.get(name, "").strip()}
    strange, malformed = variables.unknown(environ), dict(_malformed(ours))
    understood = {name: ours[name] for name in ours if name not in malformed}
    facts = {"understood": understood, "unknown": strange, "malformed": malformed}
    said = " ".join(f"{name}={value}" for name, value in understood.items())
    if not (strange or malformed):
        text = f"understood: {said}" if said else "no AMP_* variable is set"
        yield Finding("variables", OK, text, facts=facts)
        return
    faults = [f"{name}={ours[name]} is not accepted" for name in malformed]
    told = [variables.complaint(environ), *faults, said and f"understood: {said}"]
    remedies = [f"{name} takes {allowed}" for name, allowed in malformed.items()]
    remedies += [f"set {meant}, not {name}" for name, meant in strange.items() if meant]
    remedies += [f"unset {name}" for name, meant in strange.items() if not meant]
    text = "; ".join(filter(None, told))
    yield Finding("variables", WRONG, text, "; ".join(remedies), facts)


def _malformed(ours: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables whose values cannot be understood, each with what it takes."""
    for field in FIELDS.values():
        if field.variable in ours:
            try:
                field.parse(ours[field.variable], field.variable)
            except PolicyError as e:
                yield field.variable, e.allowed
    if variables.switch(ours) is None:
        yield "AMP_ENABLE", "1 or 0"


def start(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Whether `AMP_ENABLE=1` reaches jobs, by a file that Python reads at its start."""
    places = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:  # not in a virtual environment, nor with `-s`
        places.append(site.getusersitepackages())
    files = [str(Path(path, PTH)) for path in places]
    found = [file for file in files if os.path.isfile(file)]
    asked = bool(variables.switch(environ))
    facts = {"file": found[0] if found else None, "asked": asked}
    other = _other_amp(Path.cwd())
    if other is not None:
        text = f"{other} hides this package from scripts in this directory, which run "
        remedy = "start jobs from elsewhere, or rename it"
        yield Finding("start", NOTE, f"{text}as they are", remedy, facts)
    elif found:
        text = f"AMP_ENABLE=1 takes effect, by {found[0]}"
        yield Finding("start", OK, text, facts=facts)
    else:
        text = f"AMP_ENABLE=1 has no effect: no {PTH} in site-packages"
        remedy = "pip install -e CLONE, the clone of this project, into this Python; "
        remedy += "amp run works without"
        yield Finding("start", WRONG if asked else NOTE, text, remedy, facts)


def _other_amp(place: Path) -> Path | None:
    """What `import amp` finds in a directory instead of this package, if anything."""
    for path in (place / "amp.py", place / "amp" / "__init__.py"):
        ours = path.parent / "integration" / "launch" / "autostart.py"
        if os.path.isfile(path) and not os.path.isfile(ours):
            return path
    return None


def cache() -> Iterator[Finding]:
    """Whether what is measured can be kept for the next run of a job."""
    place = profiles.cache()
    facts = {"directory": str(place), "writable": False}
    fault = _unwritable(place)
    if fault:
        text = f"nothing measured can be kept: {fault}"
        yield Finding("cache", WRONG, text, f"set {profiles.VARIABLE} to a directory "
                      "that can be written", facts)  # fmt: skip
        return
    facts["writable"] = True
    text = str(place) if place.exists() else f"{place}, which the first job makes"
    chosen = os.environ.get(profiles.VARIABLE)
    if chosen and not os.path.isabs(chosen):
        text += "; each job has its own below where it starts"
        remedy = f"give {profiles.VARIABLE} a path that begins with /"
        yield Finding("cache", NOTE, text, remedy, facts)
        return
    yield Finding("cache", OK, text, facts=facts)


def reports(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Whether the directory of AMP_REPORT takes reports, if it is set."""
    given = environ.get("AMP_REPORT", "")
    if not given:
        return
    facts = {"directory": given}
    fault = _unwritable(Path(given))
    if fault:
        text = f"no report can be written: {fault}"
        yield Finding("reports", WRONG, text, "set AMP_REPORT to another", facts)
    else:
        yield Finding("reports", OK, given, facts=facts)


def temporary() -> Iterator[Finding]:
    """Whether temporary files can be made, if they cannot."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"written by amp doctor")
            file.flush()
    except OSError as e:
        text = f"no temporary file can be made: {e.strerror}"
        remedy = "set TMPDIR to a directory that can be written, and has space"
        yield Finding("temporary", WRONG, text, remedy, {"error": e.strerror})


def _unwritable(place: Path) -> str:
    """Why no file can be made in a directory or, where it is not there, above it."""
    if place == profiles.NOWHERE:
        return "this user has no home directory"
    there = place.absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"written by amp doctor")
            file.flush()
    except OSError as e:
        return f"{place} (no file can be made in {there}: {e.strerror})"
    return ""
