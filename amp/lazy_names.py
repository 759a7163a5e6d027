"""Public names of a package that are imported when they are first used.

A package names the modules that hold them; none is known here, and nothing is imported
before a name is asked for (PEP 562).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def getter(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns what a package assigns to its `__getattr__`.

    Args:
      package: its `__name__`.
      homes: by each public name the module that holds it; the name itself where it is
        a module of the package.

    Raises:
      AttributeError: by what is returned, of a name without a home.
    """

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home)
        value = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get
