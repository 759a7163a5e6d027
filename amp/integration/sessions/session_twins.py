"""`SessionTwin`: translates the runs of one session to the twin of its graph.

Used by `session_hooks`, which then makes the runs. No hook and no private name of
sessions is here.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from amp.integration import fallback
from amp.integration.functions import definitions, failures
from amp.integration.functions.twins import Twins
from amp.integration.process import PROCESS
from amp.integration.sessions.policy_view import PolicyView, Run, Uncastable
from amp.integration.sessions.twin_graph import TwinGraph


def lock_of(graph: Any) -> threading.RLock:
    """The lock that is held while nodes are added to the twin of a graph.

    All sessions of the graph share the twin, and may run in several threads.
    """
    lock: threading.RLock = PROCESS.session_locks.setdefault(graph, threading.RLock())
    return lock


# Nodes that the rewrite added are named after the user's node, with such an ending.
_ADDED = re.compile(
    r"/amp_(?:to|given|read|b?float(?:16|32)|barrier|cluster|enter|\d)\w*"
)


def as_the_user_has_it(message: str) -> str:
    """An error's message with the names of the user's nodes instead of the twin's."""
    return definitions.without_suffix(_ADDED.sub("", message))


class _GraphViews:
    """The twin of a graph, and its `PolicyView` for each policy asked for."""

    def __init__(self, user: tf.Graph) -> None:
        self.twin = TwinGraph(user)
        self._views: dict[Twins | None, PolicyView] = {}

    def view(self, twins: Twins | None) -> PolicyView:
        if twins not in self._views:
            self._views[twins] = PolicyView(self.twin, twins)
        return self._views[twins]


def _views_of(graph: Any) -> _GraphViews:
    views: _GraphViews | None = PROCESS.sessions.get(graph)
    if views is None or views.twin.outdated():
        views = PROCESS.sessions[graph] = _GraphViews(graph)
    return views


class SessionTwin:
    """Translates the runs of one session, and remembers the translations.

    All sessions of a graph share its twin, and each has an object of this class. It
    stores what each combination of operations, fetches and feeds is in the twin.

    Args:
      graph: the user's graph.

    Attributes:
      partial: by the handle of each partial run, the twins of its policy.
    """

    def __init__(self, graph: Any) -> None:
        self._views = _views_of(graph)
        self._found: dict[tuple[Any, ...], Run] = {}
        self._refused: set[Twins] = set()
        self.partial: dict[Any, Twins | None] = {}

    @property
    def graph(self) -> Any:
        """The twin of the user's graph, a `tf.Graph`."""
        return self._views.twin.graph

    def policy_of(self, handle: Any, twins: Twins | None) -> Twins | None:
        """The twins of the policy of a run.

        Args:
          handle: of a partial run, whose later parts run by the policy of its first;
            None for an ordinary run.
          twins: of the active policy.
        """
        return twins if handle is None else self.partial.get(handle, twins)

    def find(
        self,
        twins: Twins | None,
        targets: Sequence[Any],
        fetches: Sequence[Any],
        feeds: Iterable[Any],
    ) -> Run:
        """Translates a run of the user's graph to one of the twin; remembers it.

        Args:
          twins: the policy's twins, None for float32.
          targets, fetches: the user's operations and tensors.
          feeds: references (`tensor.ref()`) of the user's tensors that are fed.

        Raises:
          InvalidArgumentError: the user changed a node that a session had run.
        """
        # The graph keeps them, so that no other object has their ids.
        key = (twins, *map(id, targets), None, *map(id, fetches), None, *feeds)
        found = self._found.get(key)
        if found is None:
            tensors = [reference.deref() for reference in feeds]
            prepare = functools.partial(
                self.prepare, targets=targets, fetches=fetches, feeds=tensors
            )
            # In float32 too it is the twin that runs, because the state is there.
            found = fallback.attempt(
                _later(twins), lambda: prepare(twins), lambda: prepare(None)
            )
            self._found[key] = found
        return found

    def prepare(
        self,
        twins: Twins | None,
        targets: Sequence[Any],
        fetches: Sequence[Any],
        feeds: Sequence[Any],
    ) -> Run:
        """Translates a run, and adds to the twin the nodes that it lacks.

        A run that is not possible under the policy (it feeds a tensor that is 16-bit in
        the twin, say) becomes a run of float32 nodes. Nothing is remembered.

        Args:
          twins, targets, fetches: as of `find`.
          feeds: the user's tensors that are fed.
        """
        with lock_of(self._views.twin.user):
            view = self._views.view(twins)
            if not all(map(view.accepts, feeds)):
                view = self._views.view(None)
            try:
                return view.run(targets, fetches, feeds)
            except Uncastable:
                return self._views.view(None).run(targets, fetches, feeds)

    def guarded(
        self,
        run: Callable[[Twins | None], Any],
        twins: Twins | None,
        starts: Callable[[Twins | None], bool],
    ) -> Any:
        """Makes a run under a policy, or in float32 if TensorFlow cannot start that.

        After such a failure the session runs float32 nodes under that policy.

        Args:
          run: makes the run; takes the twins of a policy, or None for float32.
          twins: of the policy; None for float32.
          starts: takes the same; whether TensorFlow can make the kernels of that run.

        Returns:
          What `run` returned.
        """
        if twins is None or twins in self._refused:
            return run(None)
        try:
            return run(twins)
        except tf.errors.OpError as e:
            policy = twins.settled.policy
            strict = policy is not None and policy.strict
            rewritten = self._views.view(twins).rewritten
            if strict or not rewritten or starts(twins) or not starts(None):
                raise
            refusal = e
        outputs = run(None)
        self._refused.add(twins)
        fallback.failed(failures.as_it_was("a session").says, refusal)
        return outputs

    def callable(self, twins: Twins | None, graph: Any, fetched: Any, run: Any) -> Run:
        """As `find`, for outputs and operations given as C API handles."""
        fetches = [graph._get_tensor_by_tf_output(output) for output in fetched]
        targets = [graph._get_operation_by_tf_operation(op) for op in run]
        return self.find(twins, targets, fetches, ())

    def options(self, twins: Twins | None, graph: Any, given: Any) -> Any:
        """Translates CallableOptions for the user's graph into those for the twin."""
        pairs = given.tensor_connection
        fed = [*given.feed, *(pair.to_tensor for pair in pairs)]
        fetched = [*given.fetch, *(pair.from_tensor for pair in pairs)]
        feeds = [_tensor(graph, name).ref() for name in fed]
        fetches = [_tensor(graph, name) for name in fetched]
        targets = [graph.as_graph_element(n.partition(":")[0]) for n in given.target]
        found = self.find(twins, targets, fetches, feeds)
        twin_feeds = [found.feeds[reference].deref().name for reference in feeds]
        feed = dict(zip(fed, twin_feeds, strict=True))
        fetch = dict(zip(fetched, (t.name for t in found.fetches), strict=True))
        made = type(given)()
        made.CopyFrom(given)
        made.feed[:] = [feed[name] for name in given.feed]
        made.fetch[:] = [fetch[name] for name in given.fetch]
        made.target[:] = [operation.name for operation in found.targets]
        for pair in made.tensor_connection:
            pair.to_tensor, pair.from_tensor = (
                feed[pair.to_tensor],
                fetch[pair.from_tensor],
            )
        for devices, names in ((made.feed_devices, feed), (made.fetch_devices, fetch)):
            renamed = {
                names.get(name, name): device for name, device in devices.items()
            }
            devices.clear()
            devices.update(renamed)
        return made


def _later(twins: Twins | None) -> fallback.Part:
    """What `fallback` is to do if a run after the first cannot be translated."""
    policy = None if twins is None else twins.settled.policy
    strict = policy is None or policy.strict
    says = "a session's run is in float32: its rewrite failed"
    return fallback.Part(says, strict, raises=(tf.errors.OpError,))


def _tensor(graph: Any, name: str) -> Any:
    return graph.as_graph_element(name if ":" in name else f"{name}:0")
