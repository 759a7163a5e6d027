"""Checks each name that hooks need: patched, intact, or replaced, and by whom.

Puts the hooks in place in this process, as a job would. What they do is not known here.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from typing import Any

from amp.errors import AmpError
from amp.integration import hooks, install
from amp.integration.doctor.findings import NOTE, OK, WRONG, Finding
from amp.integration.hooks import Row
from amp.integration.process import PROCESS

STATES = ("patched", "intact", "replaced", "missing")
PATCHED, INTACT, REPLACED, MISSING = STATES


@dataclasses.dataclass(frozen=True, slots=True)
class HookState:
    """What became of one name.

    Attributes:
      name: class or module, and the name in it.
      state: `PATCHED` (our hook is in place), `INTACT` (we only read or call it),
        `REPLACED` (another library's function stands where our hook was put), or
        `MISSING` (not there, or with other parameters).
      by: the module of another library that changed the name too, "" if none did.
      use: what the package uses it for.
      fault: what is wrong with it, "" if nothing.
    """

    name: str
    state: str
    by: str
    use: str
    fault: str = ""


def check() -> Iterator[Finding]:
    """Installs the hooks and looks at each."""
    try:
        install.install()
        fault = ""
    except AmpError as e:
        fault = f"{e.found}: {e.where}"
    rows = hooks.of_tensorflow()
    if _import_keras():
        rows += hooks.of_keras()
        if hooks.keras_is_there(library=hooks.KERAS_MULTI):
            rows += hooks.of_keras(hooks.KERAS_MULTI)
    yield finding([state(row) for row in rows], fault)


def finding(states: Sequence[HookState], fault: str) -> Finding:
    """What all names come to.

    Args:
      states: of every name.
      fault: why the hooks could not be installed, "" if they could.
    """
    facts = {"hooks": [dataclasses.asdict(one) for one in states], "error": fault}
    count = {kind: sum(one.state == kind for one in states) for kind in STATES}
    text = f"{count[PATCHED]} patched, {count[INTACT]} intact"
    bad = [one for one in states if one.fault]
    others = [one for one in states if one.by and not one.fault]
    if others:
        shared = ", ".join(f"{one.name} (by {one.by})" for one in others)
        text += f"; other libraries changed too: {shared}"
    if not (bad or fault):
        return Finding("hooks", NOTE if others else OK, text, facts=facts)
    told = "; ".join(one.fault for one in bad) or fault
    remedy = (
        "install a supported TensorFlow and Keras, or a newer version of this package"
    )
    if any(one.state == REPLACED for one in bad):
        remedy = "import the other library before mixed precision is switched on"
    return Finding("hooks", WRONG, f"{text}; {told}", remedy, facts)


# Modules by which a library decorates its own functions, and those of compiled types.
_PYTHONS = frozenset({"builtins", "contextlib", "functools", "pybind11_builtins"})


def _import_keras() -> bool:
    """Whether jobs here may use Keras 3 on TensorFlow; it is imported then."""
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        return False
    if importlib.util.find_spec("keras") is None:
        return False
    keras = importlib.import_module("keras")
    return bool(keras.backend.backend() == "tensorflow" and hooks.keras_is_there())


def state(row: Row) -> HookState:
    """What became of one name, once the hooks were to be in place."""
    misfits = list(hooks.misfits(row))
    if misfits:
        return HookState(row.key, MISSING, "", row.use, misfits[0])
    found = getattr(hooks.owner_of(row), hooks.current_name(row), None)
    if not row.wrapped:
        return HookState(row.key, INTACT, _stranger(found, row), row.use)
    ours = PROCESS.wrapped.get(row.key)
    if ours is None:
        fault = f"{row.key} has no hook"
        return HookState(row.key, MISSING, _stranger(found, row), row.use, fault)
    if found is ours.wrapper:
        return HookState(row.key, PATCHED, _stranger(ours.original, row), row.use)
    by = _stranger(found, row) or "an unknown module"
    if ours.wrapper in _wrapped_by(found):
        return HookState(row.key, PATCHED, by, row.use)
    fault = f"{row.key} was replaced by {by}, and our hook is gone"
    return HookState(row.key, REPLACED, by, row.use, fault)


def _wrapped_by(function: Any) -> Iterator[Any]:
    """The functions that a function says it wraps, one inside the other."""
    while getattr(function, "__wrapped__", None) is not None:
        function = function.__wrapped__
        yield function


def _stranger(value: Any, row: Row) -> str:
    """The module that a name's value comes from, "" if that is the row's own library.

    By the code that runs: `functools.wraps` copies all other names from what it wraps.
    """
    own = {row.owner.partition(".")[0], "tensorflow", "amp", ""}
    kind = type(value).__module__.partition(".")[0]  # of a proxy, which copies all else
    if row.parameters is not None and kind not in own | _PYTHONS:
        return kind
    module = _module(value)
    while module in _PYTHONS and getattr(value, "__wrapped__", None) is not None:
        value = value.__wrapped__
        module = _module(value)
    return "" if module.partition(".")[0] in own else module


def _module(value: Any) -> str:
    """The module of a function's code, "" for what is none or compiled."""
    names = getattr(value, "__globals__", None)
    return str(names.get("__name__", "")) if isinstance(names, dict) else ""
