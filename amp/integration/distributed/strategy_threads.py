"""The hooks by which mixed-precision scopes hold in the threads of strategies.

MirroredStrategy runs each replica, and a ClusterCoordinator each scheduled step, in a
thread of its own. Scopes belong to a thread, so these threads enter the scopes of the
thread that made them. How replicas agree is not known here.
"""

from __future__ import annotations

from typing import Any

from amp.integration import active, wrapping

# The attribute with the scopes, of a replica's thread or a coordinator's closure.
_SCOPES = "_amp_state"


def _made(original: wrapping.Function) -> wrapping.Function:
    """Wraps `__init__`: notes the scopes that the maker of the object is in."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        scopes = active.scopes()
        if scopes:
            setattr(self, _SCOPES, scopes)

    return __init__


def _run(original: wrapping.Function) -> wrapping.Function:
    """Wraps the method that runs in the other thread: enters the noted scopes there."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        scopes, before = getattr(self, _SCOPES, ()), active.scopes()
        if scopes == before:
            return original(self, *args, **kwargs)
        active.restore(scopes)
        try:
            return original(self, *args, **kwargs)
        finally:
            active.restore(before)  # this thread runs other steps later

    return run


HOOKS: dict[str, wrapping.Decorate] = {
    "_MirroredReplicaThread.__init__": _made,
    "_MirroredReplicaThread.run": _run,
    "Closure.__init__": _made,
    "Closure.execute_on": _run,
}
