"""Where a session's state is to be: in its graph or in its twin, once and for all.

Knows how TensorFlow opens sessions; holds no hook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.client import pywrap_tf_session

from amp.integration import fallback, messages
from amp.integration.functions import twins as twins_lib
from amp.integration.functions.twins import Twins
from amp.integration.sessions import session_twins
from amp.integration.sessions.session_twins import SessionTwin

TWIN = "_amp_twin"  # of a session that has run: its SessionTwin, or Untwinned


class Untwinned:
    """Of a session whose first run was without a policy: its state is in its graph."""

    def __init__(self) -> None:
        self.told = False


def begin(
    session: Any,
    twins: Twins | None,
    first: Callable[[SessionTwin], None] = lambda twin: None,
) -> SessionTwin | Untwinned:
    """Decides, once, where a session's state is to be: in its twin, or in its graph.

    Args:
      session: the session, of which nothing has run.
      twins: the policy, None for its graph.
      first: makes of the twin what the first run needs.
    """
    with session_twins.lock_of(session._graph):
        twin: SessionTwin | Untwinned | None = session.__dict__.get(TWIN)
        if twin is None:
            twin = Untwinned() if twins is None else _made(session, twins, first)
            setattr(session, TWIN, twin)
        return twin


def _made(
    session: Any, twins: Twins, first: Callable[[SessionTwin], None]
) -> SessionTwin | Untwinned:
    def make() -> SessionTwin | Untwinned:
        twin = SessionTwin(session._graph)
        first(twin)
        _switch(session, twin)
        return twin

    def otherwise() -> SessionTwin | Untwinned:
        untwinned = Untwinned()
        untwinned.told = True
        return untwinned

    policy = twins.settled.policy
    strict = policy is not None and policy.strict
    part = twins_lib.as_it_was("a session", strict)
    return fallback.attempt(part, make, otherwise)


def _switch(session: Any, twin: SessionTwin) -> None:
    """Gives a session that has not run the runtime's session of its twin.

    Closing, deleting and listing devices concern that one from now on.
    """
    api = pywrap_tf_session
    options = api.TF_NewSessionOptions(target=session._target, config=session._config)
    try:
        with twin.graph._c_graph.get() as c_graph:
            made = api.TF_NewSessionRef(c_graph, options)
    finally:
        api.TF_DeleteSessionOptions(options)
    idle, session._session = session._session, made
    api.TF_CloseSession(idle)
    api.TF_DeleteSession(idle)


def tell(untwinned: Untwinned, twins: Twins | None) -> None:
    """Warns, once, of a session that a policy comes too late for."""
    if twins is not None and not untwinned.told:
        untwinned.told = True
        messages.warn(
            "a session runs in float32, as it was: it had run before mixed "
            "precision was switched on, and its variables are in that graph. Switch on "
            "before a session's first run, its initialisation included.",
            stacklevel=4,
        )
