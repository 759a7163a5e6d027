"""`AMP_ENABLE=1`: switches mixed precision on in a job that never imports this package.

Called by the `.pth` file at start-up; imports no TensorFlow before the job does.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_ON = frozenset({"1", "true", "on", "yes"})
_OFF = frozenset({"", "0", "false", "off", "no"})


def install() -> None:
    """Arranges for `Policy.from_env()` to be in force once TensorFlow is imported.

    Where TensorFlow is imported already, that is now. A second call changes nothing.
    """
    value = os.environ.get("AMP_ENABLE", "").strip().lower()
    if value in _OFF:
        return
    if value not in _ON:
        _say(f"AMP_ENABLE={value!r} is not understood (1 or 0); mixed precision is off")
        return
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "tensorflow" in sys.modules:
        _enable()
    else:
        sys.meta_path.insert(0, _Finder())


@functools.cache
def _say(text: str) -> None:
    """Says a thing once: Python may run a `.pth` file several times."""
    sys.stderr.write(f"amp: {text}\n")


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the ordinary finders find TensorFlow, and follows up on its loading.

    Finding is not loading (a job may only ask whether TensorFlow is there), so this
    stays in place until TensorFlow is loaded.
    """

    def __init__(self) -> None:
        self._searching = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow" or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec("tensorflow")
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """TensorFlow's own loader, then `enable`."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _enable()


def _enable() -> None:
    """Switches on; a job never fails because of it unless AMP_STRICT asks for that."""
    try:
        from amp.integration import activation
        from amp.policy import Policy

        activation.enable_at_first_use(Policy.from_env())
        # Only at the end is it known that a pattern of AMP_KEEP matched nothing.
        atexit.register(activation.disable)
    except Exception as e:
        if os.environ.get("AMP_STRICT", "").strip().lower() in _ON:
            raise
        _say(f"mixed precision is off: {type(e).__name__}: {e}")
