"""Finds and runs a job as Python's own command would: `amp run`.

For `amp run`: scripts, archives and directories with a `__main__.py`, modules, text.
What a job prints, raises or exits with is not changed; TensorFlow is not imported here.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from amp.errors import GraphError


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """Code that is to run as `__main__`.

    Attributes:
      name: what `sys.argv[0]` becomes.
      load: returns the code; its errors are shown as the job's own.
      names: the attributes that the module `__main__` gets (`__file__`, ...).
    """

    name: str
    load: Callable[[], CodeType]
    names: dict[str, Any]


def at(target: str) -> Script:
    """The script, directory or archive at a path; `sys.path[0]` becomes its place.

    Raises:
      GraphError: nothing is there, or a directory without `__main__.py`.
    """
    path = os.path.join(os.getcwd(), target)
    if not os.path.exists(path):
        raise GraphError(
            "there is no such file",
            where=target,
            allowed="a Python script, or a directory or archive with __main__.py",
            remedy="name the script itself, without `python`; for a module, "
            "amp run -m MODULE",
        )
    importer: Any = pkgutil.get_importer(path)
    if importer is None:
        _set_first_path(os.path.dirname(os.path.realpath(path)))
        return _file(target, path)
    spec = importer.find_spec("__main__")
    if spec is None:
        raise GraphError(
            "there is no __main__.py",
            where=target,
            allowed="a directory or archive that holds one",
            remedy="name a script in it",
        )
    if _is_safe():
        sys.path.insert(0, path)
    _set_first_path(path)
    return _of_spec(target, spec)


def module(name: str, arguments: Sequence[str]) -> Script:
    """A module, or the `__main__` of a package, found from the current directory.

    Packages around it are imported, and see the arguments.

    Raises:
      GraphError: Python does not find it.
    """
    _set_first_path(os.getcwd())
    sys.argv[:] = ["-m", *arguments]
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, AttributeError, ValueError) as e:
        raise _no_module(f"there is no module {name!r} ({e})") from e
    if spec is None or spec.origin is None:
        raise _no_module(f"there is no module {name!r} that can be run")
    return _of_spec(spec.origin, spec)


def _no_module(found: str) -> GraphError:
    return GraphError(
        found,
        where="amp run -m MODULE",
        allowed="a module, or package with __main__, that Python finds from here",
        remedy="check the name; for a file, amp run FILE",
    )


_TEXT = {"__loader__": importlib.machinery.BuiltinImporter}


def text(source: str) -> Script:
    """Code that is given itself, as by `python -c`."""
    _set_first_path("")
    return Script("-c", lambda: _compiled(source, "<string>"), _TEXT)


def standard_input() -> Script:
    """Code that is read from the standard input, as by `python -`."""
    _set_first_path("")
    return Script("-", lambda: _compiled(sys.stdin.read(), "<stdin>"), _TEXT)


def run(script: Script, arguments: Sequence[str]) -> None:
    """Runs a script as `__main__`, which it stays, as under Python's own command.

    An uncaught exception goes on to the interpreter, which then prints it, exits and
    answers signals as ever; its traceback begins with the job's own lines.
    """
    main = ModuleType("__main__")
    vars(main).update(script.names, __builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv[:] = [script.name, *arguments]
    try:
        exec(script.load(), vars(main))
    except BaseException as e:
        _print_without_us(e)
        raise


def _print_without_us(error: BaseException) -> None:
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    hook = sys.excepthook  # the job may have set it

    def printed(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        if value is error:
            trace = inner
            value = value.with_traceback(trace)
        hook(kind, value, trace)

    sys.excepthook = printed


def _is_safe() -> bool:
    """Whether Python (-P, -I) is to put no directory of a script into `sys.path`."""
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def _set_first_path(place: str) -> None:
    if not _is_safe():
        sys.path[0] = place


def _file(target: str, path: str) -> Script:
    names: dict[str, Any] = {"__file__": path, "__cached__": None}
    if path.endswith(".pyc"):
        bare = importlib.machinery.SourcelessFileLoader("__main__", path)
        return Script(target, lambda: _code(bare), {**names, "__loader__": bare})
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    names["__loader__"] = loader
    return Script(target, lambda: _compiled(Path(path).read_bytes(), path), names)


def _of_spec(name: str, spec: importlib.machinery.ModuleSpec) -> Script:
    names = {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return Script(name, lambda: _code(spec.loader, spec.name), names)


def _code(loader: Any, name: str = "__main__") -> CodeType:
    code: CodeType = loader.get_code(name)
    return code


def _compiled(source: str | bytes, name: str) -> CodeType:
    code: CodeType = compile(source, name, "exec", dont_inherit=True)
    return code
