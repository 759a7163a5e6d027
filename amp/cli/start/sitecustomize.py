"""Starts the plugin in the process of `amp run`: Python imports it before the job.

`amp run` puts this folder first on PYTHONPATH and becomes Python, running the job.
Python imports the first `sitecustomize` that it finds: this one. It takes its folder
off the path again, so that no child of the job comes here, and imports the job's own
`sitecustomize`. Nothing called `amp` is imported: a job may have a module of that name.
"""

from __future__ import annotations

import importlib
import os
import sys

_PLACE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_PLACE)))


def _leave() -> None:
    """Takes the folder off the path of this process and of its children."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _PLACE]
    _, _, others = os.environ.pop("PYTHONPATH", "").partition(os.pathsep)
    if others:
        os.environ["PYTHONPATH"] = others


def _start() -> None:
    if _ROOT not in sys.path:  # an installation that the job finds nowhere else
        sys.path.append(_ROOT)
    importlib.import_module("_tf_amp_start").install(by_command=True)


def _import_next() -> None:
    """Imports the `sitecustomize` that Python would have found; its errors are its own.

    Where there is none, this one stays in `sys.modules`, as Python requires.
    """
    this = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as e:
        if e.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, this)


if __name__ == "sitecustomize":
    _leave()
    _start()
    _import_next()
