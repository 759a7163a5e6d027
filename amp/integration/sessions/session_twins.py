"""`SessionTwin`: what one session runs in place of its graph.

Runs by a function that it is given; holds no hook and no private name of sessions.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from amp.integration import fallback
from amp.integration.functions import definitions
from amp.integration.functions import twins as twins_lib
from amp.integration.functions.twins import Twins
from amp.integration.process import PROCESS
from amp.integration.sessions.policy_view import PolicyView, Run, Uncastable
from amp.integration.sessions.twin_graph import TwinGraph


def lock_of(graph: Any) -> threading.RLock:
    """Held while the twin of a graph grows, which sessions of several threads share.

    TensorFlow lets one thread at a time add to a graph as well. Sessions of other
    graphs go on.
    """
    lock: threading.RLock = PROCESS.session_locks.setdefault(graph, threading.RLock())
    return lock


# Added nodes are called after the user's node that they belong to.
_ADDED = re.compile(
    r"/amp_(?:to|given|read|b?float(?:16|32)|barrier|cluster|enter|\d)\w*"
)


def as_the_user_has_it(message: str) -> str:
    """A message of TensorFlow's with the names of the user's nodes and functions."""
    return definitions.without_suffix(_ADDED.sub("", message))


class _Layers:
    """The twin of a graph, and its views by policy."""

    def __init__(self, user: tf.Graph) -> None:
        self.twin = TwinGraph(user)
        self._views: dict[Twins | None, PolicyView] = {}

    def view(self, twins: Twins | None) -> PolicyView:
        if twins not in self._views:
            self._views[twins] = PolicyView(self.twin, twins)
        return self._views[twins]


def _layers_of(graph: Any) -> _Layers:
    views: _Layers | None = PROCESS.sessions.get(graph)
    if views is None or views.twin.outdated():
        views = PROCESS.sessions[graph] = _Layers(graph)
    return views


class SessionTwin:
    """One session's view of the twin of its graph.

    Args:
      graph: the user's graph.

    Attributes:
      partial: the policy that each partial run under way began with.
    """

    def __init__(self, graph: Any) -> None:
        self._views = _layers_of(graph)
        self._found: dict[tuple[Any, ...], Run] = {}
        self._refused: set[Twins] = set()
        self.partial: dict[Any, Twins | None] = {}

    @property
    def graph(self) -> Any:
        """The twin."""
        return self._views.twin.graph

    def policy_of(self, handle: Any, twins: Twins | None) -> Twins | None:
        """The policy of a run: a partial one goes on with what it began with."""
        return twins if handle is None else self.partial.get(handle, twins)

    def find(
        self,
        twins: Twins | None,
        targets: Sequence[Any],
        fetches: Sequence[Any],
        feeds: Iterable[Any],
    ) -> Run:
        """What a run is in the twin.

        Args:
          twins: the policy, None for float32.
          targets, fetches: the user's operations and tensors.
          feeds: references of the tensors that are fed.

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
            # The state is in the twin, so what the user's graph is run as is there too.
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
        """The same, of tensors that are fed; runs nothing."""
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
        """Runs under a policy; as it was if what was rewritten cannot start.

        Args:
          run: runs what was asked for under a policy.
          twins: the policy, None for float32.
          starts: whether TensorFlow can make the kernels of that run under a policy.
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
        fallback.failed(twins_lib.as_it_was("a session").says, refusal)
        return outputs

    def callable(self, twins: Twins | None, graph: Any, fetched: Any, run: Any) -> Run:
        """What a run is in the twin, by the runtime's names for the user's graph."""
        fetches = [graph._get_tensor_by_tf_output(output) for output in fetched]
        targets = [graph._get_operation_by_tf_operation(op) for op in run]
        return self.find(twins, targets, fetches, ())

    def options(self, twins: Twins | None, graph: Any, given: Any) -> Any:
        """CallableOptions for the twin, of those for the user's graph."""
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
            placed = {names.get(name, name): device for name, device in devices.items()}
            devices.clear()
            devices.update(placed)
        return made


def _later(twins: Twins | None) -> fallback.Part:
    """The part of a later run that finds what it is in the twin."""
    policy = None if twins is None else twins.settled.policy
    strict = policy is None or policy.strict
    says = "a session's run is in float32: its rewrite failed"
    return fallback.Part(says, strict, raises=(tf.errors.OpError,))


def _tensor(graph: Any, name: str) -> Any:
    return graph.as_graph_element(name if ":" in name else f"{name}:0")
