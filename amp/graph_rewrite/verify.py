"""The laws that graphs have to obey: one function each, which yields the violations.

Nothing is corrected here. The first three laws hold for any graph and also check the
graph that a user passes; the others hold for rewritten graphs.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from amp.errors import AmpError
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.graph import dataset_loops, ir, op_schema
from amp.graph_rewrite.graph.calls import Call
from amp.graph_rewrite.plan import CastsToMake, MadeCast


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """A broken law: what was found, at which node or port, and what is allowed."""

    found: str
    at: str
    allowed: str


_NODE_OF = operator.itemgetter(0)  # the node of an edge


def well_formed(graph: ir.Graph) -> Iterator[Problem]:
    """Every input names an existing node or argument, and every cycle is a loop."""
    known = graph.nodes.keys() | {arg.name for arg in graph.args}
    for node in graph.nodes.values():
        read = [*map(_NODE_OF, node.inputs), *node.controls]
        for source in () if known.issuperset(read) else read:
            if source in known:
                continue
            found = f"node {node.name!r} reads {source!r}, which is not there"
            yield Problem(found, node.name, "inputs that name a node of the graph")
    for result in graph.results:
        if result.edge[0] not in known:
            found = f"result {result.name!r} is {result.edge[0]!r}, which is not there"
            yield Problem(found, result.name, "results that name a node of the graph")
    if len(graph.order) < len(graph.nodes):
        name = min(graph.nodes.keys() - set(graph.order))
        allowed = "cycles only through NextIteration and Merge"
        yield Problem(f"node {name!r} depends on itself", name, allowed)


def well_counted(graph: ir.Graph, lookup: op_schema.Lookup) -> Iterator[Problem]:
    """Every node has as many inputs as its op takes."""
    for node in graph.nodes.values():
        known = lookup(node.op)
        wanted = len(node.inputs) if known is None else known.input_count(node)
        if len(node.inputs) != wanted:
            found = f"node {node.name!r} has {len(node.inputs)} inputs"
            yield Problem(found, node.name, f"{wanted}, as {node.op} takes")


def well_typed(graph: ir.Graph, typed: Mapping[str, Typed]) -> Iterator[Problem]:
    """Every edge is read with the type it is made with."""
    args = {arg.name: arg.type for arg in graph.args}
    for name, view in typed.items():
        for (source, index), slot in zip(view.node.inputs, view.ins, strict=False):
            maker = typed.get(source)
            outs = () if maker is None else maker.outs
            if index < len(outs) and outs[index].type == slot.type:
                continue
            made = _type(source, index, typed, args)
            if made is not None and slot.type and not _agree(made, slot.type):
                attr = f"attribute {slot.attr!r} of " if slot.attr else ""
                found = (
                    f"{attr}node {name!r} says that input {slot.port!r} has type "
                    f"{type_name(slot.type)}, but {source}:{index} is {type_name(made)}"
                )
                yield Problem(found, f"{name}, {source}:{index}", "edges of one type")
    for result in graph.results:
        made = _type(*result.edge, typed, args)
        if made is not None and not _agree(made, result.type):
            found = f"result {result.name!r} has type {type_name(result.type)} but is "
            yield Problem(found + type_name(made), result.name, "results of their type")


def _type(
    source: str, index: int, typed: Mapping[str, Typed], args: Mapping[str, int]
) -> int | None:
    view = typed.get(source)
    if view is None:
        return args.get(source)
    if not view.outs:
        return None  # an op that this TensorFlow does not register
    return view.outs[index].type if index < len(view.outs) else -1


def _agree(made: int, read: int) -> bool:
    if made == 0 or read == 0:
        return True
    return made == read or made - ir.REF_OFFSET == read


_NAMES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8",
    7: "string", 8: "complex64", 9: "int64", 10: "bool", 14: "bfloat16",
    19: "float16", 20: "resource", 21: "variant", -1: "not one of its outputs",
}  # fmt: skip


def type_name(number: int) -> str:
    """The name of a DataType number."""
    if ir.REF_OFFSET < number < 2 * ir.REF_OFFSET:
        return f"{type_name(number - ir.REF_OFFSET)} reference"
    return _NAMES.get(number, f"DataType {number}")


def same_interface(before: ir.Graph, after: ir.Graph) -> Iterator[Problem]:
    """Arguments, results, control results and node names stay as they were."""
    pairs = [
        ("arguments", before.args, after.args),
        ("results", _signature(before), _signature(after)),
        ("control results", before.control_results, after.control_results),
    ]
    for what, old, new in pairs:
        if old != new:
            yield Problem(f"the {what} changed to {new}", before.name, f"{old}")
    for name in before.nodes.keys() - after.nodes.keys():
        yield Problem(f"node {name!r} is gone", name, "every node keeps its name")


def _signature(graph: ir.Graph) -> tuple[tuple[str, int], ...]:
    return tuple((result.name, result.type) for result in graph.results)


def calls_agree(
    typed: Mapping[str, Typed],
    calls: Iterable[tuple[ir.Node, Call, Sequence[ir.Graph]]],
) -> Iterator[Problem]:
    """A call's argument and result types are those of its functions."""
    for node, call, functions in calls:
        view = typed[node.name]
        passed = [slot.type for slot in view.ins[call.skip :]]
        given = [slot.type for slot in view.outs]
        for function in functions:
            takes = [function.args[i].type for i in _taken(view.node, call, function)]
            if takes != passed:
                found = f"{node.name!r} passes {passed} to {function.name}"
                yield Problem(found, node.name, f"its arguments, {takes}")
        for function in call.givers(functions):
            returns = [result.type for result in function.results]
            if call.each:  # what goes on to the next element is what came of the last
                states = dataset_loops.carried(view.node, call, range(len(returns)))
                returns = [returns[index] for index in sorted(states)]
                given = passed[: len(returns)]
            if returns != given:
                found = f"{node.name!r} gives {given} of {function.name}"
                yield Problem(found, node.name, f"its results, {returns}")


def _taken(node: ir.Node, call: Call, function: ir.Graph) -> Iterator[int]:
    """The numbers of the arguments that a call passes, in the order of its inputs."""
    count = len(function.args)
    if not call.each:
        yield from range(count)
        return
    for index in range(call.skip, len(node.inputs)):
        yield from dataset_loops.arguments_of(node, call, index, count)


def float32_behind_markers(
    typed: Mapping[str, Typed], before: Mapping[str, Typed], behind: frozenset[str]
) -> Iterator[Problem]:
    """No node downstream of an unscale marker has become 16-bit."""
    for name in behind & typed.keys() & before.keys():
        new, old = typed[name], before[name]
        if [s.type for s in new.outs] != [s.type for s in old.outs]:
            found = f"node {name!r} is downstream of the unscale but turned 16-bit"
            yield Problem(found, name, "float32 from the unscale marker on")


def casts_as_planned(
    planned: CastsToMake, made: Iterable[MadeCast]
) -> Iterator[Problem]:
    """Every cast that a plan has is made, once, and no other is."""
    counts = Counter(cast for cast in made if cast.edge not in planned.open)
    awaited = {cast for cast in planned.casts if cast.edge not in planned.open}
    for cast in sorted(counts.keys() | awaited):
        (name, index), form = cast
        count = counts[cast]
        if count != (cast in awaited):
            found = f"{name}:{index} has {count} casts of the form {form!r}"
            yield Problem(found, name, f"what the plan has: {int(cast in awaited)}")


def same_unfused(before: ir.Graph, unfused: ir.Graph) -> Iterator[Problem]:
    """A graph with its clusters removed is the graph that they were made in."""
    allowed = "calls that stand in for nodes of the graph"
    if before.results != unfused.results:
        yield Problem(f"the results changed to {unfused.results}", before.name, allowed)
    for name in before.nodes.keys() | unfused.nodes.keys():
        old, new = before.nodes.get(name), unfused.nodes.get(name)
        if old is new:
            continue
        if old is None or new is None or _reads(old) != _reads(new):
            yield Problem(f"node {name!r} differs without clusters", name, allowed)


def _reads(node: ir.Node) -> tuple[object, ...]:
    return node.op, node.inputs, node.controls, node.attrs, dict(node.updates)


def stable(gain: float, tie: float, low: Iterable[str]) -> Iterator[Problem]:
    """A second rewrite saves no time, except what the cut's rounding explains.

    Args:
      gain: seconds per step that the second rewrite would save.
      tie: seconds by which both choices may exceed the optimum due to rounding.
      low: the nodes that it would convert.
    """
    names = sorted(low)
    if names and gain > tie:
        found = f"a second rewrite would convert {names[0]!r} as well"
        yield Problem(found, names[0], "a rewrite that is its own fixed point")


def enforce(
    problems: Iterable[Problem], error: type[AmpError], where: str, do: str
) -> None:
    """Raises the first problem, if any."""
    for problem in problems:
        place = f"{where}, {problem.at}"
        raise error(problem.found, where=place, allowed=problem.allowed, remedy=do)
