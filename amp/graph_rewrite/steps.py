"""`Step`: a named phase of a rewrite; `run` runs a list of them.

An unexpected error becomes a `RewriteError` that names the phase, the function and the
node. No phase's work is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from amp.errors import AmpError, RewriteError
from amp.graph_rewrite.candidates.analysis import UseAnalysis
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.cost.priced import PricedUse
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One phase.

    Attributes:
      name: its name in errors.
      run: a pure function that does its work.
      takes: the names of its input values, in the order of `run`'s parameters.
      gives: the name of its result, "" for a check, which only raises.
    """

    name: str
    run: Callable[..., Any]
    takes: tuple[str, ...]
    gives: str = ""


def run(steps: Iterable[Step], given: Mapping[str, Any]) -> dict[str, Any]:
    """Runs steps in their order.

    Args:
      steps: the steps.
      given: the values by name that the steps take and do not give themselves.

    Returns:
      All values by name, those in `given` included.

    Raises:
      AmpError: a step raised it.
      RewriteError: a step raised any other exception: a fault of this package.
    """
    values = dict(given)
    for step in steps:
        try:
            made = step.run(*(values[name] for name in step.takes))
        except AmpError:
            raise
        except Exception as e:
            raise _fault(step, e) from e
        if step.gives:
            values[step.gives] = made
    return values


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Switches Python's cyclic garbage collector off.

    A rewrite makes many objects and no reference cycles, and the collector would take a
    third of its time. So does what reads its graph and writes the result.
    """
    was = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was:
            gc.enable()


def _fault(step: Step, error: Exception) -> RewriteError:
    """The error to raise for an unexpected exception of a step.

    The function and the node are read from the local variables of the innermost stack
    frames that have one, so that nothing need be recorded while all goes well.
    """
    frames = [frame.f_locals for frame in _frames(error.__traceback__)]
    node = next((n for f in frames for n in _nodes(f)), "")
    function = next((n for f in frames for n in _functions(f)), None)
    place = [f"phase {step.name!r}"]
    if function is not None:
        place.append(f"function {function}" if function else "the GraphDef")
    if node:
        place.append(f"node {node}")
    what = "".join(traceback.format_exception_only(error)).strip()
    return RewriteError(
        f"unexpected {what}",
        where=", ".join(place),
        allowed="phases that raise only errors of this package",
        remedy="report this with the graph; the original runs unchanged",
    )


def _frames(trace: TracebackType | None) -> list[Any]:
    """The frames of a traceback, innermost first."""
    return [frame for frame, _ in traceback.walk_tb(trace)][::-1]


def _nodes(names: Mapping[str, Any]) -> Iterator[str]:
    """Names of the nodes in a frame's variables, the variable bound last first."""
    for value in reversed([*names.values()]):
        match value:
            case ir.Node(name=name):
                yield name
            case Typed(node=node):
                yield node.name
    graphs = [value for value in names.values() if isinstance(value, ir.Graph)]
    named = names.get("name")
    if isinstance(named, str) and any(named in graph.nodes for graph in graphs):
        yield named


def _functions(names: Mapping[str, Any]) -> Iterator[str]:
    """Names of the functions in a frame's variables; "" is the graph of a GraphDef."""
    for value in reversed([*names.values()]):
        match value:
            case FunctionUse(name=name) | ir.Graph(name=name):
                yield name
            case UseAnalysis(graph=graph):
                yield graph.name
            case PricedUse(use_analysis=one):
                yield one.graph.name
