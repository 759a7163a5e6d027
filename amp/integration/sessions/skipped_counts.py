"""How many updates the sessions of this process skipped, for the last line of a job.

Only a session can read the variables of its graph, so they are read when it is closed,
or when the process ends. Called by `session_starts`, `session_hooks` and `job_lines`.
Nothing is read in a job that has no such line, and no step waits for anything here.
"""

from __future__ import annotations

from typing import Any

from amp.integration import fallback
from amp.integration.process import PROCESS
from amp.integration.sessions import scaler_reads
from amp.loss_scaling import group


def begun(session: Any) -> None:
    """Is told of a session that runs a twin of its graph."""
    counts = PROCESS.session_counts
    counts.open.add(session)
    counts.begun += 1


def note(session: Any) -> None:
    """Reads the counts of a session that is about to be closed, if it has a twin."""
    counts = PROCESS.session_counts
    if PROCESS.begun_in is None or session not in counts.open:
        return
    counts.open.discard(session)
    fallback.attempt_quietly(lambda: _note(session), None)


def _note(session: Any) -> None:
    counts = PROCESS.session_counts
    wanted = [(one, [one.skipped_steps]) for one in group.of_graph(session.graph)]
    found = scaler_reads.read(session, wanted)
    for (_, (variable,)), got in zip(wanted, found, strict=True):
        skipped = 0 if got is None else int(got[0])
        # Sessions of one master share its variables; of others each has its own.
        if session.sess_str:
            key = (session.sess_str, variable.name)
            counts.skipped[key] = max(skipped, counts.skipped.get(key, 0))
        else:
            counts.skipped_alone += skipped
    counts.read += 1


def total() -> tuple[int, bool]:
    """Reads the sessions that are open.

    Returns:
      The updates skipped in all sessions, and whether every session could be read: not
      if one was dropped without being closed, or is out of reach.
    """
    counts = PROCESS.session_counts
    for session in list(counts.open):
        note(session)
    skipped = counts.skipped_alone + sum(counts.skipped.values())
    return skipped, counts.read == counts.begun
