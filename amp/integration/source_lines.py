"""Finds the user's line, and the Keras layer, that built a node, from its stack trace.

TensorFlow notes a stack trace of every operation that it builds, and hands them over
for a registered function and in the files of a SavedModel. They are only read here,
when somebody asks for a report or a function fails; no graph is held, and nothing is
noted beforehand.
"""

from __future__ import annotations

import dataclasses
import functools
import linecache
import os
import re
import sysconfig
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.graph.calls import calls_once
from amp.graph_rewrite.report import Report
from amp.integration import keras_layers

# Files in these folders are never the user's, nor those with these parts in their paths
# (a trace may come from another machine).
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOLDERS = (os.path.join(_OURS, ""), os.path.join(os.path.dirname(tf.__file__), ""))
_LIBRARIES = (
    *("/tensorflow/python/", "/keras/src/", "/tf_keras/src/"),
    "/site-packages/amp/",
)
# Others' packages may have built a model for the user: taken if nothing else was found.
# TensorFlow makes the functions of a custom op's library from a "<string>".
_INSTALLED = ("/site-packages/", "/dist-packages/", "<string>")
# Python's own modules, among which may be the folder of what is installed.
_PYTHON = os.path.join(sysconfig.get_path("stdlib"), "")

# What TensorFlow names a function or a node with in an error's message.
_TAG = re.compile(r"\{\{(function_node|node) ([\w.\-/]+)\}\}")


def of_frames(frames: Iterable[tuple[str, int]]) -> str:
    """The user's line among the frames of a stack trace, as "file:line"; "" if none.

    It is the innermost one outside TensorFlow, Keras and this package; one in an
    installed package only if all are.

    Args:
      frames: file and line of each, the outermost first.
    """
    other = ""
    for file, line in reversed(list(frames)):
        if file.startswith(_FOLDERS) or any(part in file for part in _LIBRARIES):
            continue
        if any(part in file for part in _INSTALLED):
            other = other or f"{file}:{line}"
        elif not file.startswith(_PYTHON):
            return f"{file}:{line}"
    return other


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """What is learnt from the stack trace of a node.

    Attributes:
      line: the user's line, as "file:line"; "" if none is in it.
      classes: of the Keras layers that it was built in, as `keras_layers.classes` says.
    """

    line: str
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, frames: Iterable[tuple[str, int, str]]) -> Trace:
        """What is learnt from file, line and function of each frame."""
        every = list(frames)
        line = of_frames((file, number) for file, number, _ in every)
        return cls(line, keras_layers.classes(every))


Traces: TypeAlias = Mapping[str, Trace]


class SourceLines:
    """The user's source lines, and the Keras layers, of the nodes of some functions.

    Args:
      traces: gives what TensorFlow noted of a function (a GraphDebugInfo), None if it
        noted nothing; "" is the main graph.
      definition: gives the FunctionDef of a function, None if there is none.
    """

    def __init__(
        self,
        traces: Callable[[str], Traces],
        definition: Callable[[str], Any],
    ) -> None:
        self._traces = functools.cache(traces)
        self._definition = functools.cache(definition)
        self._calls = functools.cache(lambda name: _calls_in(definition(name)))

    def of(self, function: str, node: str) -> str:
        """The line of a node, "" if it is not known."""
        function, node = self._place(function, node)
        found = self._traces(function).get(node)
        return "" if found is None else found.line

    def layer(self, function: str, node: str) -> str:
        """The Keras layer of a node, as `keras_layers.described` tells it."""
        function, node = self._place(function, node)
        known = self._traces(function)
        node = keras_layers.forward(node, known)
        found = known.get(node)
        if found is None or not found.classes:
            return ""
        return keras_layers.described(node, found.classes)

    def in_message(self, function: str, message: str) -> str:
        """An error's message in which nodes are where they were traced.

        TensorFlow looks for the stack trace of a node in the functions that the message
        names before it, each called by the one before. Those whose calls were inlined
        are added.

        Args:
          function: the one that was called.
          message: names nodes as they are once calls are inlined.
        """
        inside = function

        def traced(tag: re.Match[str]) -> str:
            nonlocal inside
            kind, name = tag.groups()
            if kind == "node":
                way, name = self._way(inside, name)
                node = f"{{{{node {name}}}}}"
            else:
                way, node = self._way_to(name, inside), ""
            inside = way[-1] if way else inside
            return "".join(f"{{{{function_node {each}}}}}" for each in way) + node

        return _TAG.sub(traced, message)

    def _place(self, function: str, node: str) -> tuple[str, str]:
        """The function that a node was traced in, and its name there."""
        way, node = self._way(function, node)
        return (way[-1] if way else function), node

    def _way(self, function: str, node: str) -> tuple[tuple[str, ...], str]:
        """The functions that lead from one to where a node was traced, and its name.

        A node of an inlined function has the name of the call before its own.
        """
        scope = node
        while node not in self._traces(function) and "/" in scope:
            scope = scope.rpartition("/")[0]
            callee = self._calls(function).get(scope)
            if callee is not None:
                way, node = self._way(callee, node[len(scope) + 1 :])
                return (callee, *way), node
        return (), node

    def _way_to(self, wanted: str, function: str) -> tuple[str, ...]:
        """The functions that lead from one to another that it or a callee names."""
        ways: dict[str, tuple[str, ...]] = {function: ()}
        for caller in (pending := [function]):
            if wanted in _named_in(self._definition(caller)):
                return (*ways[caller], wanted)
            for callee in self._calls(caller).values():
                if callee not in ways:
                    ways[callee] = (*ways[caller], callee)
                    pending.append(callee)
        return (wanted,)


def _calls_in(definition: Any) -> dict[str, str]:
    """The functions that a FunctionDef calls, by the name of the calling node."""
    nodes = () if definition is None else definition.node_def
    return {node.name: node.attr["f"].func.name for node in nodes if _calls(node)}


def _named_in(definition: Any) -> set[str]:
    """The functions that the nodes of a FunctionDef call or have as branches."""
    nodes = () if definition is None else definition.node_def
    values = [value for node in nodes for value in node.attr.values()]
    lists = (each.name for value in values for each in value.list.func)
    return {value.func.name for value in values}.union(lists)


def _calls(node: Any) -> bool:
    return "f" in node.attr and calls_once(node.op)


def parsed(info: Any) -> dict[str, Trace]:
    """What is learnt from a GraphDebugInfo, by the names of the nodes."""
    traces = {
        number: Trace.of(
            (info.files[frame.file_index], frame.line, frame.func)
            for frame in map(info.frames_by_id.__getitem__, trace.frame_id)
        )
        for number, trace in info.traces_by_id.items()
    }
    return {
        name: traces.get(number, Trace(""))
        for name, number in info.name_to_trace_id.items()
    }


def of_runtime() -> SourceLines:
    """Those of the functions that are registered in TensorFlow's runtime now."""
    context = context_lib.context()

    def traces(function: str) -> Traces:
        if not function or not context.has_function(function):
            return {}
        return parsed(context.get_graph_debug_info(function))

    def definition(function: str) -> Any:
        known = function and context.has_function(function)
        return context.get_function_def(function) if known else None

    return SourceLines(traces, definition)


def of_graph_def(graph: Any, info: Any) -> SourceLines:
    """Those of a GraphDef and its functions.

    Args:
      graph: the GraphDef.
      info: a GraphDebugInfo, whose names are "node@function".
    """
    functions = {each.signature.name: each for each in graph.library.function}
    by_function: dict[str, dict[str, Trace]] = {}
    for name, line in parsed(info).items():
        node, _, function = name.partition("@")
        by_function.setdefault(function, {})[node] = line
    return SourceLines(lambda name: by_function.get(name, {}), functions.get)


def of_graph(reference: weakref.ReferenceType[Any]) -> SourceLines:
    """Those of a graph of TensorFlow 1, if it is still there."""

    def traces(function: str) -> Traces:
        graph = reference()
        if function or graph is None:
            return {}
        return {
            operation.name: Trace.of(
                (frame.filename, frame.lineno, frame.name)
                for frame in operation.traceback
            )
            for operation in graph.get_operations()
            if operation.traceback is not None  # TensorFlow's own C++ code built it
        }

    return SourceLines(traces, lambda function: None)


def of_node(graph: Any, node: str) -> str:
    """The user's line that built a node of a `tf.Graph`, "" if it is not known.

    Raises:
      KeyError: the graph has no such node.
    """
    frames = graph.get_operation_by_name(node).traceback or ()
    return of_frames((frame.filename, frame.lineno) for frame in frames)


def added(report: Report, lines: SourceLines, main: str = "") -> Report:
    """A report with source lines and layers of its nodes, and the text of the lines.

    Args:
      report: the report; one that has lines already is returned as it is.
      lines: where they are found.
      main: the function whose nodes are named without it; "" for a graph.
    """
    if not report.decisions or any(one.source for one in report.decisions):
        return report
    decisions = tuple(
        dataclasses.replace(
            one,
            source=_asked(lines.of, main, one.node),
            layer=_asked(lines.layer, main, one.node),
        )
        for one in report.decisions
    )
    places = sorted({one.source for one in decisions if one.source})
    if not places:
        return report
    text = {place: found for place in places if (found := _text(place))}
    return dataclasses.replace(report, decisions=decisions, source_text=text)


def _asked(ask: Callable[[str, str], str], main: str, node: str) -> str:
    function, separator, name = node.rpartition("::")
    return ask(function.rpartition("::")[2] if separator else main, name)


def _text(place: str) -> str:
    """The text of a line of code; "" if the file is not there any more."""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip()
