"""What `tf_amp.pth` calls when Python starts: waits for TensorFlow, then for `amp`.

Nothing called `amp` is imported before TensorFlow is, and none but ours ever: a project
may have a module of that name. Not part of the package, so that it is found either way.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from types import ModuleType

_OFF = ("", "0", "false", "off", "no")


def install() -> None:
    """Arranges for `AMP_ENABLE` to be answered once the job has imported TensorFlow."""
    if os.environ.get("AMP_ENABLE", "").strip().lower() not in _OFF:
        _imports().after("tensorflow", _start)


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
    other = _other()
    if other is None:
        from amp.integration import autostart

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
        if os.path.isfile(os.path.join(place, "integration", "autostart.py")):
            return None
    places = list(spec.submodule_search_locations or ())
    return spec.origin or ", ".join(places)


@functools.cache
def _say(text: str) -> None:
    """Says a thing once: Python may run a `.pth` file several times."""
    if sys.stderr is not None:
        sys.stderr.write(f"amp: {text}\n")
