"""The hooks for sessions of `tf.compat.v1`: under a policy they run a twin graph.

TensorFlow comes here whenever a session runs something or makes a callable. What the
user asked for is translated to the twin by `session_twins`; what is in the twin is not
decided here. The names that are hooked are rows of `integration.hooks`.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as session_lib

from amp.integration import active, fallback, wrapping
from amp.integration.functions import function_hooks
from amp.integration.functions.twins import Twins
from amp.integration.sessions import (
    session_twins,
    skipped_counts,
    unused_checks,
)
from amp.integration.sessions.policy_view import Run
from amp.integration.sessions.session_starts import TWIN, Untwinned, begin, tell
from amp.integration.sessions.session_twins import Request, SessionTwin


def _wanted(graph: Any) -> Twins | None:
    """The twins of the policy that is active in this thread, or of the graph's scope.

    The latter is the scope that was entered while the graph was built.
    """
    return active.active_twins() or function_hooks.marked(graph)


def _do_run(original: wrapping.Function) -> wrapping.Function:
    arguments = wrapping.reader("BaseSession._do_run", original)

    def do_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        twins = _wanted(self._graph)
        twin = self.__dict__.get(TWIN)
        given = _answered(arguments(self, *args, **kwargs))
        if twin is None or isinstance(twin, SessionTwin):
            return _run(given, original, twins)
        tell(twin, twins)
        return given.call(original)

    return do_run


def _answered(given: wrapping.Arguments) -> wrapping.Arguments:
    """The arguments of a run, which is also fed what it need not check."""
    feeds = given.get("feed_dict")
    if given.get("handle") is not None:  # a part of a run: what else it is fed is open
        return given
    targets, fetches = given.get("target_list"), given.get("fetch_list")
    graph = given.get("self")._graph
    part = fallback.Part(
        "a run also checks gradients that it does not use", active.is_strict()
    )
    more = fallback.attempt(
        part,
        lambda: unused_checks.answers(graph, targets, fetches, feeds),
        dict[Any, Any],
    )
    return given.replaced("feed_dict", {**feeds, **more}) if more else given


def can_start(session: Any, run: Run) -> bool:
    """Whether TensorFlow can place the nodes of a run and make their kernels.

    Nothing runs: TensorFlow does that much to make a callable.
    """
    options = session_lib.config_pb2.CallableOptions()
    options.feed.extend(reference.deref().name for reference in run.feeds.values())
    options.fetch.extend(tensor.name for tensor in run.fetches)
    options.target.extend(operation.name for operation in run.targets)
    make = wrapping.original("BaseSession._make_callable_from_options")
    try:
        make(session, options)
    except tf.errors.OpError:
        return False
    return True


class _Terms:
    """The options of a call of a session, and what takes its metadata.

    TensorFlow refuses metadata that a run has written to, even one that has failed; it
    is of the first run that is made of the call.

    Args:
      options, metadata: what the session was given, None for none.
    """

    def __init__(self, options: Any, metadata: Any) -> None:
        self._options, self._metadata = options, metadata

    def of(self, run: Run) -> tuple[Any, Any]:
        """Those of one run."""
        if not run.asked:
            return None, None
        metadata, self._metadata = self._metadata, None
        return self._options, metadata


def _run(
    given: wrapping.Arguments, original: wrapping.Function, twins: Twins | None
) -> Any:
    """Makes a run of a session that has a twin, or that has not run yet.

    Args:
      given: the arguments of the hooked `BaseSession._do_run`.
      original: the function that was hooked.
      twins: of the policy; None for float32.

    Returns:
      The outputs.
    """
    session, handle = given.get("self"), given.get("handle")
    targets, fetches = given.get("target_list"), given.get("fetch_list")
    feeds = given.get("feed_dict")
    request = Request(targets, fetches, feeds)

    def first(twin: SessionTwin) -> None:
        twin.begin(twins, request)

    twin = session.__dict__.get(TWIN) or begin(session, twins, first)
    if isinstance(twin, Untwinned):
        tell(twin, twins)
        return given.call(original)

    terms = _Terms(given.get("options"), given.get("run_metadata"))

    def run(found: Run) -> Any:
        own = found.feeds
        fed = {own[ref]: value for ref, value in feeds.items() if ref in own}
        fed.update(found.also)
        options, metadata = terms.of(found)
        call = given.replaced("target_list", found.targets)
        call = call.replaced("fetch_list", found.fetches).replaced("feed_dict", fed)
        call = call.replaced("options", options).replaced("run_metadata", metadata)
        return call.call(original)

    if handle is not None:
        return run(twin.later_part(handle, request))
    return twin.call(twins, request, run, functools.partial(can_start, session))


def _do_call(original: wrapping.Function) -> wrapping.Function:
    def do_call(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.__dict__.get(TWIN), SessionTwin):
            return original(self, fn, *args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return fn(*args, **kwargs)
            except tf.errors.OpError as e:
                # By the user's names TensorFlow finds the operation and its lines.
                e._message = session_twins.as_the_user_has_it(e.message)
                raise

        return original(self, call, *args, **kwargs)

    return do_call


def _session_run(original: wrapping.Function) -> wrapping.Function:
    arguments = wrapping.reader("BaseSession.run", original)

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(self, *args, **kwargs)
        metadata = arguments(self, *args, **kwargs).get("run_metadata")
        if metadata is not None and isinstance(self.__dict__.get(TWIN), SessionTwin):
            part = fallback.Part("a profile names nodes of the twin", False)
            rename = functools.partial(session_twins.rename, metadata)
            fallback.attempt(part, rename, lambda: None)
        return outputs

    return run


class _View:
    """Stands for a session in one call of a method, with some attributes replaced."""

    def __init__(self, session: Any, **replaced: Any) -> None:
        self._amp_session = session
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._amp_session, name)


def _partial_run_setup(original: wrapping.Function) -> wrapping.Function:
    def partial_run_setup(self: Any, *args: Any, **kwargs: Any) -> Any:
        twins, graph = _wanted(self._graph), self._graph
        twin = self.__dict__.get(TWIN) or begin(self, twins)
        if isinstance(twin, Untwinned):
            return original(self, *args, **kwargs)
        begun: list[tuple[Request, Run]] = []

        def call(fn: Any, _: Any, fed: Any, fetched: Any, run: Any) -> Any:
            given = [graph._get_tensor_by_tf_output(output) for output in fed]
            asked = [graph._get_tensor_by_tf_output(output) for output in fetched]
            targets = [graph._get_operation_by_tf_operation(op) for op in run]
            feeds = {tensor.ref(): None for tensor in given}
            request = Request(targets, asked, feeds)
            found = twin.fixed(twins, request)
            begun.append((request, found))
            return self._do_call(
                fn,
                self._session,
                [found.feeds[ref].deref()._as_tf_output() for ref in feeds],
                [tensor._as_tf_output() for tensor in found.fetches],
                [operation._c_op for operation in found.targets],
            )

        handle = original(_View(self, _do_call=call), *args, **kwargs)
        twin.begin_partial(handle, twins, *begun[0])
        return handle

    return partial_run_setup


def _make_callable(original: wrapping.Function) -> wrapping.Function:
    arguments = wrapping.reader("BaseSession.make_callable", original)

    def make_callable(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = arguments(self, *args, **kwargs)
        if given.get("feed_list") is not None:  # such a callable calls `Session.run`
            return original(self, *args, **kwargs)
        graph = self._graph
        requests: list[Request] = []  # one, once it was called
        extended: list[Run] = []

        def sessionrun(
            options: Any, feeds: Any, fetched: Any, run: Any, metadata: Any
        ) -> Any:
            """Replaces the session's own method in a callable of the user's."""
            twins = _wanted(graph)
            twin = self.__dict__.get(TWIN) or begin(self, twins)
            call = self._call_tf_sessionrun
            if isinstance(twin, Untwinned):
                return call(options, feeds, fetched, run, metadata)
            if not requests:
                fetches = [graph._get_tensor_by_tf_output(output) for output in fetched]
                targets = [graph._get_operation_by_tf_operation(op) for op in run]
                requests.append(Request(targets, fetches, {}))
            terms = _Terms(options, metadata)

            def call_twin(found: Run) -> Any:
                if found.also:  # made once, and not to be kept with what it is fed
                    self._extend_graph()
                elif not any(found is one for one in extended):
                    self._extend_graph()
                    extended.append(found)
                outputs = [tensor._as_tf_output() for tensor in found.fetches]
                operations = [operation._c_op for operation in found.targets]
                also = {r.deref()._as_tf_output(): v for r, v in found.also.items()}
                own, written = terms.of(found)
                return call(own, also, outputs, operations, written)

            starts = functools.partial(can_start, self)
            return twin.call(twins, requests[0], call_twin, starts)

        view = _View(self, _call_tf_sessionrun=sessionrun)
        return given.replaced("self", view).call(original)

    return make_callable


def _from_options(original: wrapping.Function) -> wrapping.Function:
    arguments = wrapping.reader("BaseSession._make_callable_from_options", original)

    def make_callable_from_options(self: Any, *args: Any, **kwargs: Any) -> Any:
        twins = _wanted(self._graph)
        twin = self.__dict__.get(TWIN) or begin(self, twins)
        given = arguments(self, *args, **kwargs)
        if not isinstance(twin, Untwinned):
            options = given.get("callable_options")
            options = twin.options(twins, self._graph, options)
            given = given.replaced("callable_options", options)
        return given.call(original)

    return make_callable_from_options


def _close(original: wrapping.Function) -> wrapping.Function:
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        twin = self.__dict__.get(TWIN)
        if isinstance(twin, SessionTwin) and twin.stalls is not None:
            twin.stalls.look(last=True)
        skipped_counts.note(self)
        return original(self, *args, **kwargs)

    return close


HOOKS: dict[str, wrapping.Decorate] = {
    "BaseSession.close": _close,
    "BaseSession.run": _session_run,
    "BaseSession._do_run": _do_run,
    "BaseSession._do_call": _do_call,
    "BaseSession.partial_run_setup": _partial_run_setup,
    "BaseSession.make_callable": _make_callable,
    "BaseSession._make_callable_from_options": _from_options,
}
