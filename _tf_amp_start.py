"""What starts with Python, by `tf_amp.pth` or `amp run`: waits for TensorFlow.

Then `amp` is imported; at the end of the process a line says what became of the job.
Nothing called `amp` is imported before TensorFlow is, and none but ours ever: a project
may have a module of that name. Not part of the package, so that it is found either way.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType

_OFF = ("", "0", "false", "off", "no")
_ON = ("1", "true", "on", "yes")
_ASKED: set[bool] = set()  # with what `install` was called
_SAYS: list[Callable[[bool], None]] = []  # our `job_lines.end`, once we have started
_NOTHING = "nothing was rewritten: the job imported no TensorFlow, or see above"


def install(*, by_command: bool = False) -> None:
    """Arranges for `AMP_ENABLE` to be answered once the job has imported TensorFlow.

    A second call changes nothing: Python may run a `.pth` file several times.

    Args:
      by_command: whether this is the process of `amp run`, whose last line comes also
        where nothing ran in mixed precision. Not with `AMP_ENABLE=1`, which every
        process that a job starts inherits, also those that compute nothing.
    """
    if os.environ.get("AMP_ENABLE", "").strip().lower() in _OFF:
        return
    if not _ASKED:  # before the job's own handlers, so as to come last
        _keep_places()
        atexit.register(_say_at_end, os.getpid())
    _ASKED.add(by_command)
    _imports().after("tensorflow", _start, package="amp")


def _keep_places() -> None:
    """Makes directories absolute: they mean where the job starts, not where it goes."""
    for name in ("AMP_CACHE_DIR", "AMP_REPORT"):
        given = os.environ.get(name, "")
        if given.strip():
            with contextlib.suppress(OSError):  # the working directory may be gone
                os.environ[name] = os.path.abspath(given)


def _say_at_end(process: int) -> None:
    """Says what became of the job; a child made by `fork` only if it had work."""
    always = True in _ASKED and os.getpid() == process
    for say in _SAYS:
        say(always)
    if always and not _SAYS:
        _say(_NOTHING)


@functools.cache
def _imports() -> ModuleType:
    """Our `amp/integration/imports.py`, loaded by its path, without `amp`."""
    place = os.path.dirname(os.path.abspath(__file__))
    file = os.path.join(place, "amp", "integration", "imports.py")
    spec = importlib.util.spec_from_file_location("_tf_amp_imports", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _start() -> None:
    """Starts `amp`; of our errors only those under AMP_STRICT leave the job's import.

    What `amp` cannot report itself, because it cannot be imported, is told here.
    """
    try:
        _start_now()
    except Exception as e:
        if os.environ.get("AMP_STRICT", "").strip().lower() in _ON:
            raise
        _say(f"mixed precision is off: {type(e).__name__}: {e}")


def _start_now() -> None:
    other = _other()
    if other is None:
        from amp.integration.launch import autostart, job_lines

        _SAYS[:] = [job_lines.end]
        autostart.install()
    else:
        _say(f"mixed precision is off: another module is called amp ({other})")


def _other() -> str | None:
    """Where `import amp` leads, None if that is to us; nothing is imported."""
    module = sys.modules.get("amp")
    try:
        spec = importlib.util.find_spec("amp") if module is None else module.__spec__
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        return "which cannot be found" if module is None else repr(module)
    for place in spec.submodule_search_locations or ():
        if os.path.isfile(os.path.join(place, "integration", "launch", "autostart.py")):
            return None
    places = list(spec.submodule_search_locations or ())
    return spec.origin or ", ".join(places)


@functools.cache
def _say(text: str) -> None:
    """Says a thing once, where anybody still listens."""
    if sys.__stderr__ is not None:  # the job may have replaced and closed its own
        with contextlib.suppress(OSError, ValueError):
            sys.__stderr__.write(f"amp: {text}\n")
            sys.__stderr__.flush()
