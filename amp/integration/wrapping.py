"""Puts hooks in place of names, whole or not at all, and takes them off again.

Used by `install`, and by every hook to read the arguments of a call (`reader`). Which
names there are is said in `hooks`; what a hook does is not known here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from amp.integration import conversion, hooks
from amp.integration.hooks import Row
from amp.integration.process import PROCESS

Function: TypeAlias = Callable[..., Any]
# Makes a hook: takes the original function, and returns the function to call instead.
Decorate: TypeAlias = Callable[[Function], Function]


@dataclasses.dataclass(frozen=True, slots=True)
class Wrapped:
    """A hook that is in place.

    Attributes:
      owner: the class or module.
      name: what the owner calls it.
      wrapper: the hook, which now has the name.
      original: the function that had the name before.
      inherited: whether the owner itself had no such name, but inherited it.
      exported: as of the row.
    """

    owner: Any
    name: str
    wrapper: Any
    original: Any
    inherited: bool
    exported: bool


def install(rows: Iterable[Row], decorators: Mapping[str, Decorate]) -> None:
    """Checks rows and puts their hooks in place, all of them or none.

    Args:
      rows: names to check, wrapped or not.
      decorators: by a row's key, makes its hook of the original function.

    Raises:
      TensorFlowError: listing every name that does not fit; nothing was changed.
    """
    rows = list(rows)
    hooks.require(rows)
    done: list[Row] = []
    try:
        for row in rows:
            if row.wrapped and row.key not in PROCESS.wrapped:
                wrap(row, decorators[row.key])
                done.append(row)
    except BaseException:
        for row in reversed(done):
            _take_off(row.key)
        raise


def wrap(row: Row, decorate: Decorate) -> None:
    """Puts one hook in place of what a name stands for.

    A hook of an earlier copy of the package (imported, removed from `sys.modules`, and
    imported again) is replaced. One that another library has wrapped stays in place,
    but the earlier copy forgets its state: the hook then only calls what it wraps.
    """
    owner, name = hooks.owner_of(row), hooks.current_name(row)
    found: Any = getattr(owner, name)
    earlier = getattr(found, "_amp_retire", None)
    if earlier is not None and earlier != PROCESS.reset:
        earlier()
    inherited = name not in vars(owner)
    # Another library's wrapper may copy these attributes from our hook, but `_amp_hook`
    # then returns the hook and not the wrapper.
    hook = getattr(found, "_amp_hook", None)
    if hook is not None and hook() is found:
        original, inherited = found._amp_original, found._amp_inherited
    else:
        original = found
    if row.autograph:
        wrapped = conversion.exempt(decorate(conversion.as_called(original)))
    else:
        wrapped = decorate(original)
    wrapper: Any = functools.wraps(original)(wrapped)
    # For `inspect.getfullargspec`, which does not follow `__wrapped__`.
    with contextlib.suppress(TypeError, ValueError):  # not every builtin tells it
        wrapper.__signature__ = inspect.signature(original)
    wrapper._amp_original = original
    wrapper._amp_inherited = inherited
    wrapper._amp_hook = lambda: wrapper
    wrapper._amp_retire = PROCESS.reset
    setattr(owner, name, wrapper)
    if row.exported:
        _rebind(name, found, wrapper)
    PROCESS.wrapped[row.key] = Wrapped(
        owner, name, wrapper, original, inherited, row.exported
    )


def original(key: str) -> Function:
    """The function that a row's hook wraps, for calls past the hook."""
    if key in PROCESS.wrapped:
        found: Function = PROCESS.wrapped[key].original
        return found
    row = hooks.row_of(key)
    owner, name = hooks.owner_of(row), hooks.current_name(row)
    return getattr(owner, name)  # type: ignore[no-any-return]


def unwrap() -> None:
    """Takes off every hook that no other library has wrapped since.

    A hook that is wrapped stays in place; `install` does not add a second one.
    """
    for key in reversed(list(PROCESS.wrapped)):
        _take_off(key)


def _take_off(key: str) -> None:
    hook = PROCESS.wrapped[key]
    name = hook.name
    if getattr(hook.owner, name, None) is not hook.wrapper:
        return
    if hook.inherited:
        delattr(hook.owner, name)
    else:
        setattr(hook.owner, name, hook.original)
    if hook.exported:
        _rebind(name, hook.wrapper, hook.original)
    del PROCESS.wrapped[key]


def _rebind(name: str, old: Any, new: Any) -> None:
    """Has modules of TensorFlow's API that hold a function hold another one."""
    for called, module in list(sys.modules.items()):
        of_api = called.partition(".")[0] == "tensorflow"
        if of_api and getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call, to look at and to pass on.

    Arguments that other libraries' wrappers add are included, and passed on.

    Attributes:
      names: the parameters that may be given by position, in their order.
      args, kwargs: as they were given.
    """

    names: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a parameter, `default` where the call leaves it out."""
        if name in self.kwargs:
            return self.kwargs[name]
        index = self.names.index(name)
        return self.args[index] if index < len(self.args) else default

    def replaced(self, name: str, value: Any) -> Arguments:
        """The same arguments with another value for one parameter."""
        index = self.names.index(name)
        if name in self.kwargs or index >= len(self.args):
            return dataclasses.replace(self, kwargs={**self.kwargs, name: value})
        args = (*self.args[:index], value, *self.args[index + 1 :])
        return dataclasses.replace(self, args=args)

    def call(self, function: Function) -> Any:
        """Calls a function with them."""
        return function(*self.args, **self.kwargs)


def reader(key: str, original: Function) -> Callable[..., Arguments]:
    """Returns what makes `Arguments` of a call of a hooked function.

    Args:
      key: of the function's row.
      original: the function that the hook wraps.
    """
    return reader_of(hooks.row_of(key), original)


def reader_of(row: Row, original: Function) -> Callable[..., Arguments]:
    """As `reader`. The order of the parameters is the function's own.

    Where another library's wrapper hides it, it is that of the row.
    """
    names = tuple(hooks.parameters_of(original) or row.parameters or ())

    def arguments(*args: Any, **kwargs: Any) -> Arguments:
        return Arguments(names, args, kwargs)

    return arguments
