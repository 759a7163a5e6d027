"""`SessionTwin`: the runs of one session, in the twin of its graph.

Used by `session_hooks`, which then makes the runs. No hook and no private name of
sessions is here.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from amp.graph_rewrite.graph import ir
from amp.integration import fallback
from amp.integration.functions.twins import Twins
from amp.integration.observing import accuracy_check
from amp.integration.observing.standstills import NOISE, Standstill
from amp.integration.racing import exemptions
from amp.integration.runtime import definitions, failures
from amp.integration.runtime.unasked import Unasked
from amp.integration.sessions.graph_views import views_of
from amp.integration.sessions.policy_view import PolicyView, Run
from amp.integration.sessions.run_checks import Judged
from amp.integration.sessions.run_plans import Asked, RunPlans
from amp.integration.sessions.run_twins import Make, RunTwins, Starts, Terms
from amp.integration.sessions.session_stalls import SessionStalls
from amp.once import Once

# Nodes that the rewrite added are named after the user's node, with such an ending.
_ADDED = re.compile(
    r"/amp_(?:to|given|read|b?float(?:16|32)|barrier|cluster|enter|\d)\w*"
)
# Grappler's copy of a node that it moves past a cast, such as one that was added.
_MOVED = re.compile(
    "ArithmeticOptimizer/ReorderCastLikeAndValuePreserving_(?:half|bfloat16|float)_"
)


def as_the_user_has_it(message: str) -> str:
    """An error's message with the names of the user's nodes instead of the twin's."""
    return definitions.without_suffix(_ADDED.sub("", _MOVED.sub("", message)))


def rename(metadata: Any) -> None:
    """Gives what a run's nodes took the names of the user's nodes.

    The graphs that ran keep theirs: two of their nodes may stand for one of the user's.

    Args:
      metadata: a `RunMetadata`, which is changed.
    """
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            node.node_name = as_the_user_has_it(node.node_name)
            node.timeline_label = as_the_user_has_it(node.timeline_label)


# What a run is remembered by.
Key: TypeAlias = tuple[Any, ...]
_NOTHING: Iterator[Run] = iter(())
_FIXED = "in one form only"  # begins the keys of such runs
_ONE_FORM = "such a run is made in one form only"
_ELSEWHERE = "the session's steps are made by other processes"


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A run that the user asks for.

    Attributes:
      targets, fetches: the user's operations and tensors.
      feeds: the values fed, None where they are not known, by the references
        (`tensor.ref()`) of the user's tensors.
    """

    targets: Sequence[Any]
    fetches: Sequence[Any]
    feeds: Mapping[Any, Any]

    def key(self, twins: Twins | None) -> Key:
        """What the run is remembered by."""
        # The graph keeps them, so that no other object has their ids.
        fetches = map(id, self.fetches)
        return (twins, *map(id, self.targets), None, *fetches, None, *self.feeds)

    @property
    def work(self) -> float:
        """How many elements are fed; batches may differ in size."""
        fed = (getattr(value, "size", 1) for value in self.feeds.values())
        return float(max(1, sum(fed)))

    def ends(self) -> set[tuple[str, str]]:
        """What is fed and what is fetched, by name."""
        fed = {("fed", reference.deref().name) for reference in self.feeds}
        return fed | {("fetched", tensor.name) for tensor in self.fetches}

    def asked(self) -> Asked:
        """The same, with the shapes of what is fed."""
        shapes = {ref: _shape(ref.deref(), fed) for ref, fed in self.feeds.items()}
        return Asked(self.targets, self.fetches, shapes)


def _shape(tensor: Any, fed: Any) -> ir.Shape:
    """The shape of a value that is fed for a tensor, None if that is not known.

    For the handle of a tensor that the session keeps, its name is fed.
    """
    named = getattr(fed, "dtype", tensor.dtype) != tensor.dtype.as_numpy_dtype
    return None if fed is None or named else tuple(fed.shape)


@dataclasses.dataclass(frozen=True, slots=True)
class _Partial:
    """A partial run that has begun.

    Attributes:
      view: the view that it runs in.
      left: what no part has fed or fetched yet; with the last of it the run ends.
    """

    view: PolicyView
    left: set[tuple[str, str]]


class SessionTwin:
    """Translates the runs of one session, and remembers the translations.

    All sessions of a graph share its twin, and each has an object of this class. It
    stores what each combination of operations, fetches and feeds is in the twin.

    Args:
      graph: the user's graph.
      target: the address of the session's master, "" if it is in this process.

    Attributes:
      views: the twin of the graph.
      stalls: what watches the session's scalers; None before the session is known.
    """

    def __init__(self, graph: Any, target: str = "") -> None:
        self.views = views_of(graph)
        self.stalls: SessionStalls | None = None
        self._remote = bool(target)
        self._still: Standstill | None = None  # why float32 runs, if it does;
        self._lost: set[str] = set()  # or where these variables are read
        self._aside = 0  # by how many of them what reads them was told
        # By a run's key, its form where that is made without any question.
        self._proven: Unasked[Key, Run] = Unasked()
        self._runs: dict[Key, RunTwins] = {}
        self._refused: set[tuple[Any, str]] = set()
        self._judged: dict[Any, Judged] = {}
        self._once = Once()  # threads may begin with the same run
        self._partial: dict[Any, _Partial] = {}  # by their handles, until they end

    @property
    def graph(self) -> Any:
        """The twin of the user's graph, a `tf.Graph`."""
        return self.views.twin.graph

    def call(
        self, twins: Twins | None, request: Request, run: Make, starts: Starts
    ) -> Any:
        """Makes a run of the user's graph, in one of its forms.

        Args:
          twins: the policy's twins, None for float32.
          request: the run.
          run: makes a run of the twin.
          starts: whether TensorFlow can make the kernels of a run of the twin.

        Returns:
          What `run` returned.

        Raises:
          InvalidArgumentError: the user changed a node that a session had run.
        """
        key = request.key(twins)
        if self.stalls is not None and self.stalls.asks() and key in self._runs:
            done, outputs = self.stalls.call(self._runs[key].fastest(), run, starts)
            if done:
                return outputs
        if self._stands_still:
            self._stand_aside()
        found = next(self._proven.given.get(key, _NOTHING), None)
        if found is None:
            forms = self._found(key, twins, request)
            outputs = forms.call(run, starts, request.work, request.feeds)
            self._lose()
            return outputs
        try:
            return run(found)
        except tf.errors.ResourceExhaustedError as e:
            if not failures.out_of_memory(e):
                raise
            forms = self._found(key, twins, request)
            if not forms.is_rewritten(found):
                raise
            error = e  # float32 might have fitted
        self._proven.end(key)
        return forms.guarded(run, starts, found.plan, error)

    @property
    def _stands_still(self) -> bool:
        """Whether its runs are to be in float32, and are not yet."""
        stalls = self.stalls
        return stalls is not None and bool(stalls.standing) and self._still is None

    def _stand_aside(self) -> None:
        """Has float32 run from now on, also what is evaluated with the same weights."""
        assert self.stalls is not None
        self._still = Standstill(self.stalls.standing, failures.STANDS_STILL)
        self._have_aside(self._still, list(self._runs.values()))

    def _lose(self) -> None:
        """Has float32 run where variables are read that 16 bits train no further."""
        if self._aside < len(self._lost):
            self._aside = len(self._lost)
            runs = [one for one in list(self._runs.values()) if one.reads(self._lost)]
            self._have_aside(NOISE, runs)

    @staticmethod
    def _have_aside(still: Standstill, runs: Iterable[RunTwins]) -> None:
        aside = [forms.stand_aside(still) for forms in runs]
        if any(aside):
            failures.tell_of_standstill("a session", still.says)

    def fixed(self, twins: Twins | None, request: Request) -> Run:
        """The form of a run that is made in one form only: the fastest so far known."""
        key = request.key(twins)
        if key in self._runs:
            return self._runs[key].fastest()
        return self._found((_FIXED, *key), twins, request).fastest()

    def begin(self, twins: Twins | None, request: Request) -> None:
        """Adds to the twin what a session's first run needs.

        Raises:
          Exception: whatever fails; the session then runs its own graph.
        """
        key = request.key(twins)
        self._runs[key] = self._begun(key, twins, request)

    def _found(self, key: Key, twins: Twins | None, request: Request) -> RunTwins:
        begin = functools.partial(self._begun, key, request=request)

        def make() -> RunTwins:
            # In float32 too it is the twin that runs, because the state is there.
            found = fallback.attempt(
                _later(twins), lambda: begin(twins), lambda: begin(None)
            )
            found = self._runs.setdefault(key, found)
            still = self._still or (
                NOISE if self._lost and found.reads(self._lost) else None
            )
            if still is not None:
                found.stand_aside(still)
            return found

        return self._once.get(key, lambda: self._runs.get(key), make) or begin(None)

    def _begun(self, key: Key, twins: Twins | None, request: Request) -> RunTwins:
        off = unchecked = ""
        if twins is not None and twins.settled.policy is not None:
            off = exemptions.why_not(twins.settled.policy)
            unchecked = accuracy_check.why_not(twins.settled.policy)
            if self._remote:
                unchecked = unchecked or _ELSEWHERE
                if not off and twins.settled.policy.trial is not True:
                    off = _ELSEWHERE
        recall = not off
        if key[0] == _FIXED:
            off, unchecked = off or _ONE_FORM, unchecked or _ONE_FORM
        made = RunTwins(
            RunPlans(self.views, twins, request.asked()),
            Terms(off, unchecked, recall, self._refused, self._judged, self._lost),
            functools.partial(self._proven.put, key),
        )
        made.begin()
        return made

    def begin_partial(
        self, handle: Any, twins: Twins | None, request: Request, run: Run
    ) -> None:
        """Notes in which form a partial run begins, for its later parts.

        Args:
          handle: of the partial run.
          twins: of the policy; None for float32.
          request: all that its parts may feed and fetch.
          run: the same, translated.
        """
        views = self.views
        view = views.float32 if twins is None else views.view(twins, run.plan)
        self._partial[handle] = _Partial(view, request.ends())

    def later_part(self, handle: Any, request: Request) -> Run:
        """A part of a partial run, in the form in which that began.

        One of a run that has ended is translated too: TensorFlow refuses it.
        """
        asked, view = request.asked(), self.views.float32
        partial = self._partial.get(handle)
        if partial is not None:
            view = partial.view
            partial.left.difference_update(request.ends())
            if not partial.left:
                self._partial.pop(handle, None)
        with self.views.lock:
            return view.run(asked.targets, asked.fetches, asked.feeds)

    def options(self, twins: Twins | None, graph: Any, given: Any) -> Any:
        """Translates CallableOptions for the user's graph into those for the twin."""
        pairs = given.tensor_connection
        fed = [*given.feed, *(pair.to_tensor for pair in pairs)]
        fetched = [*given.fetch, *(pair.from_tensor for pair in pairs)]
        feeds = [_tensor(graph, name).ref() for name in fed]
        fetches = [_tensor(graph, name) for name in fetched]
        targets = [graph.as_graph_element(n.partition(":")[0]) for n in given.target]
        request = Request(targets, fetches, dict.fromkeys(feeds))
        found = self.fixed(twins, request)
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
