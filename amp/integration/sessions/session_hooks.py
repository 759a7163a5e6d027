"""The session adapter: under a policy a session runs a twin of its graph.

Knows the private names of `tf.compat.v1.Session`, in one place; what is in a twin is
not decided here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.client import session as session_lib

from amp.errors import TensorFlowError
from amp.integration.functions import function_hooks
from amp.integration.functions.twins import Twins
from amp.integration.sessions import session_twins, twin_graph
from amp.integration.sessions.policy_view import Run
from amp.integration.sessions.session_starts import API, TWIN, Untwinned, begin, tell
from amp.integration.sessions.session_twins import SessionTwin

_Session: Any = session_lib.BaseSession
_HOOKS: dict[str, tuple[str, ...]] = {
    "_do_run": ("handle", "target_list", "fetch_list", "feed_dict", "options"),
    "_do_call": ("fn",),
    "partial_run_setup": ("fetches", "feeds"),
    "make_callable": ("fetches", "feed_list", "accept_options"),
    "_make_callable_from_options": ("callable_options",),
}
_CALLED: dict[str, tuple[str, ...]] = {
    "_call_tf_sessionrun": ("options", "feed_dict", "fetch_list", "target_list"),
    "_extend_graph": (),
}
_originals: dict[str, Callable[..., Any]] = {}


def install(active_twins: Callable[[], Twins | None]) -> None:
    """Puts the hooks in place, once.

    Args:
      active_twins: the twins to run under now, None for none.

    Raises:
      TensorFlowError: a private name is missing or takes other parameters.
    """
    if _originals:
        return
    for name, parameters in {**_HOOKS, **_CALLED}.items():
        _check(name, parameters)
    if not all(hasattr(pywrap_tf_session, name) for name in API):
        _refuse(f"pywrap_tf_session, one of {', '.join(API)}")
    twin_graph.check()
    _originals.update((name, getattr(_Session, name)) for name in _HOOKS)
    wanted = functools.partial(_wanted, active_twins)
    for name, decorate in _DECORATORS.items():
        original = _originals[name]
        setattr(_Session, name, functools.wraps(original)(decorate(original, wanted)))


def _check(name: str, parameters: tuple[str, ...]) -> None:
    found = getattr(_Session, name, None)
    known = set(inspect.signature(found).parameters) if callable(found) else set()
    if found is None or not known.issuperset(parameters):
        _refuse(f"BaseSession.{name}({', '.join(parameters)})")


def _refuse(what: str) -> None:
    raise TensorFlowError(
        f"TensorFlow {tf.__version__} has other sessions",
        where=what,
        allowed="TensorFlow 2.18 to 2.21, whose names are known",
        remedy="install a supported TensorFlow, or a newer version of this package",
    )


_Wanted = Callable[[Any], Twins | None]


def _wanted(active_twins: Callable[[], Twins | None], graph: Any) -> Twins | None:
    """The twins that a run goes by: of this thread, else of a scope in the graph."""
    return active_twins() or function_hooks.marked(graph)


def _do_run(original: Callable[..., Any], wanted: _Wanted) -> Callable[..., Any]:
    def do_run(
        self: Any,
        handle: Any,
        target_list: Any,
        fetch_list: Any,
        feed_dict: Any,
        options: Any,
        run_metadata: Any,
    ) -> Any:
        twins = wanted(self._graph)

        def first(twin: SessionTwin) -> None:
            fed = [reference.deref() for reference in feed_dict]
            twin.prepare(twins, target_list, fetch_list, fed)

        twin = self.__dict__.get(TWIN) or begin(self, twins, first)
        if isinstance(twin, Untwinned):
            tell(twin, twins)
            return original(
                self, handle, target_list, fetch_list, feed_dict, options, run_metadata
            )

        def run(which: Twins | None) -> Any:
            found = twin.find(which, target_list, fetch_list, feed_dict)
            feeds = {found.feeds[ref]: value for ref, value in feed_dict.items()}
            return original(
                self, handle, found.targets, found.fetches, feeds, options, run_metadata
            )

        def starts(which: Twins | None) -> bool:
            if handle is not None:  # a part of a run that has begun
                return True
            return can_start(self, twin.find(which, target_list, fetch_list, feed_dict))

        return twin.guarded(run, twin.policy_of(handle, twins), starts)

    return do_run


def can_start(session: Any, run: Run) -> bool:
    """Whether TensorFlow can place and make the kernels of a run; nothing runs."""
    options = session_lib.config_pb2.CallableOptions()
    options.feed.extend(reference.deref().name for reference in run.feeds.values())
    options.fetch.extend(tensor.name for tensor in run.fetches)
    options.target.extend(operation.name for operation in run.targets)
    try:
        _originals["_make_callable_from_options"](session, options)
    except tf.errors.OpError:
        return False
    return True


def _do_call(original: Callable[..., Any], wanted: _Wanted) -> Callable[..., Any]:
    def do_call(self: Any, fn: Any, *args: Any) -> Any:
        if not isinstance(self.__dict__.get(TWIN), SessionTwin):
            return original(self, fn, *args)

        def call(*args: Any) -> Any:
            try:
                return fn(*args)
            except tf.errors.OpError as e:
                # By the user's names TensorFlow finds the operation and its lines.
                e._message = session_twins.as_the_user_has_it(e.message)
                raise

        return original(self, call, *args)

    return do_call


class _View:
    """A session with some attributes replaced, for one call of one method."""

    def __init__(self, session: Any, **replaced: Any) -> None:
        self._amp_session = session
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._amp_session, name)


def _partial_run_setup(
    original: Callable[..., Any], wanted: _Wanted
) -> Callable[..., Any]:
    def partial_run_setup(self: Any, fetches: Any, feeds: Any = None) -> Any:
        twins, graph = wanted(self._graph), self._graph
        twin = self.__dict__.get(TWIN) or begin(self, twins)
        if isinstance(twin, Untwinned):
            return original(self, fetches, feeds)

        def call(fn: Any, _: Any, fed: Any, fetched: Any, run: Any) -> Any:
            given = [graph._get_tensor_by_tf_output(output) for output in fed]
            asked = [graph._get_tensor_by_tf_output(output) for output in fetched]
            targets = [graph._get_operation_by_tf_operation(op) for op in run]
            references = [tensor.ref() for tensor in given]
            found = twin.find(twins, targets, asked, references)
            return self._do_call(
                fn,
                self._session,
                [found.feeds[ref].deref()._as_tf_output() for ref in references],
                [tensor._as_tf_output() for tensor in found.fetches],
                [operation._c_op for operation in found.targets],
            )

        handle = original(_View(self, _do_call=call), fetches, feeds)
        twin.partial[handle] = twins
        return handle

    return partial_run_setup


def _make_callable(original: Callable[..., Any], wanted: _Wanted) -> Callable[..., Any]:
    def make_callable(
        self: Any, fetches: Any, feed_list: Any = None, accept_options: bool = False
    ) -> Any:
        if feed_list is not None:  # goes by `run`
            return original(self, fetches, feed_list, accept_options)
        graph = self._graph
        known: dict[Twins | None, Run] = {}

        def sessionrun(
            options: Any, feeds: Any, fetched: Any, run: Any, metadata: Any
        ) -> Any:
            """Like the session's own, of the user's graph."""
            twins = wanted(graph)
            twin = self.__dict__.get(TWIN) or begin(self, twins)
            call = self._call_tf_sessionrun
            if isinstance(twin, Untwinned):
                return call(options, feeds, fetched, run, metadata)

            def call_twin(which: Twins | None) -> Any:
                if which not in known:
                    known[which] = twin.callable(which, graph, fetched, run)
                    self._extend_graph()
                asked = known[which]
                outputs = [tensor._as_tf_output() for tensor in asked.fetches]
                operations = [operation._c_op for operation in asked.targets]
                return call(options, {}, outputs, operations, metadata)

            def starts(which: Twins | None) -> bool:
                return can_start(self, twin.callable(which, graph, fetched, run))

            return twin.guarded(call_twin, twins, starts)

        view = _View(self, _call_tf_sessionrun=sessionrun)
        return original(view, fetches, None, accept_options)

    return make_callable


def _from_options(original: Callable[..., Any], wanted: _Wanted) -> Callable[..., Any]:
    def make_callable_from_options(self: Any, callable_options: Any) -> Any:
        twins = wanted(self._graph)
        twin = self.__dict__.get(TWIN) or begin(self, twins)
        if not isinstance(twin, Untwinned):
            callable_options = twin.options(twins, self._graph, callable_options)
        return original(self, callable_options)

    return make_callable_from_options


_DECORATORS = {
    "_do_run": _do_run,
    "_do_call": _do_call,
    "partial_run_setup": _partial_run_setup,
    "make_callable": _make_callable,
    "_make_callable_from_options": _from_options,
}
