"""`after`: something to do once a module that the job may import is loaded.

Knows import machinery only; imports nothing itself. `_tf_amp_start` loads this file by
its path, before any module is called `amp`: only the standard library may be used here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any


def after(name: str, action: Callable[[], None], package: str = "") -> None:
    """Calls `action` once the module `name` is loaded; now, if it is.

    A module whose loading is under way counts as loaded. A second call with the same
    arguments, before the module is loaded, changes nothing.

    Args:
      name: of the module.
      action: what to do.
      package: one whose modules `action` imports. Where one of them is what imports
        `name`, only a part of it is there yet, and `action` waits until it is loaded.
    """
    if name in sys.modules:
        action()
        return
    finder = _Finder(name, action, package)
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
    package: str
    searching: set[str] = dataclasses.field(default_factory=set, compare=False)
    loaded: bool = dataclasses.field(default=False, compare=False)
    under_way: set[tuple[int, str]] = dataclasses.field(
        default_factory=set, compare=False
    )

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        inside = self.package and fullname.startswith(f"{self.package}.")
        if not (inside or fullname == self.name) or fullname in self.searching:
            return None
        self.searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    @contextlib.contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Where a module is loaded; the action follows on this thread's outermost."""
        thread = threading.get_ident()
        self.under_way.add((thread, name))
        try:
            yield
            if name == self.name:
                self.loaded = True
        finally:
            self.under_way.discard((thread, name))
            waits = any(other == thread for other, _ in tuple(self.under_way))
            if self.loaded and not waits and self._is_first():
                self.action()

    def _is_first(self) -> bool:
        """Takes the finder from its place; whether no other thread has before."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return False
        return True


class _Loader(importlib.abc.Loader):
    """The module's own loader, which the finder is told of."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._loader, name)  # `python -m` asks it for the code

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        with self._finder.loading(module.__name__):
            self._loader.exec_module(module)
