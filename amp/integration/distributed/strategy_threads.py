"""Threads of strategies: what holds for the thread that starts them holds in them too.

MirroredStrategy runs each replica in a thread of its own, and a coordinator what was
scheduled with it; agreeing on overflows is not the work of this room's file.
"""

from __future__ import annotations

from typing import Any

from amp.integration import active, hooks

_SCOPES = "_amp_state"  # of an object that runs in another thread


def _made(original: hooks.Function) -> hooks.Function:
    """Notes the scopes that hold where a replica's thread or a closure is made."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        scopes = active.scopes()
        if scopes:
            setattr(self, _SCOPES, scopes)

    return __init__


def _run(original: hooks.Function) -> hooks.Function:
    """Has those scopes hold in the thread that runs it."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        scopes, before = getattr(self, _SCOPES, ()), active.scopes()
        if scopes == before:
            return original(self, *args, **kwargs)
        active.restore(scopes)
        try:
            return original(self, *args, **kwargs)
        finally:
            active.restore(before)  # a coordinator's thread goes on with something else

    return run


HOOKS: dict[str, hooks.Decorate] = {
    "_MirroredReplicaThread.__init__": _made,
    "_MirroredReplicaThread.run": _run,
    "Closure.__init__": _made,
    "Closure.execute_on": _run,
}
