"""`after`: something to do once a module that the job may import is loaded.

Knows import machinery only; imports nothing itself. `_tf_amp_start` loads this file by
its path, before any module is called `amp`: only the standard library may be used here.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def after(name: str, action: Callable[[], None]) -> None:
    """Calls `action` once the module `name` is loaded; now, if it is.

    A module whose loading is under way counts as loaded. A second call with the same
    two, before the module is loaded, changes nothing.
    """
    if name in sys.modules:
        action()
        return
    finder = _Finder(name, action)
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)


@dataclasses.dataclass
class _Finder(importlib.abc.MetaPathFinder):
    """Lets the ordinary finders find a module, and follows up on its loading.

    Finding is not loading (a job may only ask whether TensorFlow is there), so this
    stays in place until the module is loaded.
    """

    name: str
    action: Callable[[], None]
    searching: bool = dataclasses.field(default=False, compare=False)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(self.name)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """The module's own loader, then the action."""

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
        self._finder.action()
