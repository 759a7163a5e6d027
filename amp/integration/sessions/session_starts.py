"""Decides at a session's first run whether it runs its own graph or the twin.

The decision holds for the session's life, since its variables then live in that graph.
Called by `session_hooks`. Knows how TensorFlow opens sessions; no hook lives here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session

from amp import messages
from amp.integration import fallback
from amp.integration.functions.twins import Twins
from amp.integration.runtime import failures
from amp.integration.sessions import graph_views, skipped_counts
from amp.integration.sessions.session_stalls import SessionStalls
from amp.integration.sessions.session_twins import SessionTwin

# The attribute of a session that has run: its `SessionTwin`, or `Untwinned`.
TWIN = "_amp_twin"


class Untwinned:
    """Marks a session whose first run had no policy. It always runs its own graph.

    Attributes:
      warned: whether the user was told that a policy came too late for it.
    """

    def __init__(self) -> None:
        self.warned = False


def begin(
    session: Any,
    twins: Twins | None,
    first: Callable[[SessionTwin], None] = lambda twin: None,
) -> SessionTwin | Untwinned:
    """Decides, at a session's first run, whether it runs the twin of its graph.

    Args:
      session: a `tf.compat.v1` session.
      twins: of the policy of its first run; None if it runs without a policy.
      first: adds to a new twin what the first run needs. If that fails, the session
        runs its own graph.

    Returns:
      The session's `SessionTwin` or `Untwinned`; at later calls what it was at first.
    """
    with graph_views.lock_of(session._graph):
        twin: SessionTwin | Untwinned | None = session.__dict__.get(TWIN)
        if twin is None:
            twin = Untwinned() if twins is None else _made(session, twins, first)
            setattr(session, TWIN, twin)
        return twin


def _made(
    session: Any, twins: Twins, first: Callable[[SessionTwin], None]
) -> SessionTwin | Untwinned:
    def make() -> SessionTwin | Untwinned:
        twin = SessionTwin(session._graph, tf.compat.as_str(session._target))
        twin.stalls = SessionStalls(session, twin.views)
        first(twin)
        _switch(session, twin)
        skipped_counts.begun(session)
        return twin

    def otherwise() -> SessionTwin | Untwinned:
        untwinned = Untwinned()
        untwinned.warned = True
        return untwinned

    policy = twins.settled.policy
    strict = policy is not None and policy.strict
    part = failures.as_it_was("a session", strict)
    return fallback.attempt(part, make, otherwise)


def _switch(session: Any, twin: SessionTwin) -> None:
    """Replaces the runtime's session in a Python session by one of the twin's graph.

    The session must not have run. Whatever is done with it later (closing it, deleting
    it, listing its devices) is then done with the new one.
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
    """Warns, once for each session, that it had run before a policy was switched on."""
    if twins is not None and not untwinned.warned:
        untwinned.warned = True
        messages.warn(
            "a session runs in float32, as it was: it had run before mixed "
            "precision was switched on, and its variables are in that graph. Switch on "
            "before a session's first run, its initialisation included."
        )
