"""Loop variables and arrays of TensorFlow 1 that stay float32, and why.

Called by `analysis`. What holds for the loop variables of functions (`Carried`), which
`propagation` decides on, is here said of nodes in frames. No cost may enter.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from amp.graph_rewrite.candidates.call_values import CallValues, UseVariable
from amp.graph_rewrite.candidates.context import Typed
from amp.graph_rewrite.candidates.eligibility import Candidates
from amp.graph_rewrite.candidates.propagation import EXACT, SUM
from amp.graph_rewrite.candidates.running_sums import running_sums_in_frames
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse, Member
from amp.graph_rewrite.graph.frame_trips import counters
from amp.graph_rewrite.graph.frames import frames
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.graph_rewrite.plan import Reason

_UNKNOWN = Reason("loop", "a loop that is not built as tf.while_loop builds one")


def unfit(
    graphs: Mapping[FunctionUse, ir.Graph],
    typed: Mapping[FunctionUse, Mapping[str, Typed]],
    call_values: CallValues,
) -> dict[Member, Reason]:
    """Refuses loop variables that may not be 16-bit, whatever their values are.

    Case 1: the loop's condition reads the value.
    Case 2: the loop adds to it on its trips (`running_sums`); then what adds to it is
      refused too.
    Case 3: the nodes around a back edge are no loop variable as TensorFlow builds one.
    Case 4: a loop may read an element of a TensorArray on several trips; the gradient
      of that element is then a sum that grows on every trip.
    """
    found: dict[Member, Reason] = {}
    for number in call_values.variables.values():
        use, variable = number
        members = running_sums_in_frames(number, graphs, call_values)
        sums = dict.fromkeys(members, SUM)
        nodes = ((use, name) for name in variable.nodes)
        if variable.tested:
            found |= dict.fromkeys(nodes, Reason("decision", variable.merge))
        elif sums:
            found |= sums | dict.fromkeys(nodes, SUM)
    for use, views in typed.items():
        if not any(facts(op).in_frames for op in graphs[use].ops):
            continue
        known = {name for at, name in call_values.lists if at == use}
        found |= dict.fromkeys(((use, n) for n in _strange(views, known)), _UNKNOWN)
        again = _read_again(graphs[use], views)
        found |= {(use, name): Reason("count", name) for name in again}
    return found


def _strange(views: Mapping[str, Typed], known: Container[str]) -> Iterator[str]:
    """Case 3 of `unfit`: what hands a value around a loop or out of it."""
    for name, view in views.items():
        if not view.facts.in_frames or name in known:
            continue
        sources = [source for source, _ in view.node.inputs if source in views]
        kinds = {views[source].facts.kind for source in sources}
        if Kind.NEXT_ITERATION in kinds:
            yield from (name, *sources)
        elif Kind.LOOP_CONDITION in kinds or view.facts.kind is Kind.EXIT:
            yield name


def _read_again(graph: ir.Graph, views: Mapping[str, Typed]) -> Iterator[str]:
    """Case 4 of `unfit`: reads in loops that are not at an index of their own."""
    within = frames(graph)
    counts = counters(graph) if within else frozenset()
    for name in within:
        view = views[name]
        values = [s for s in view.outs if s.attr and s.attr in view.facts.attrs]
        if not view.facts.flows or not values:
            continue
        pairs = zip(view.node.inputs, view.ins, strict=False)
        index = next((edge for edge, slot in pairs if slot.port == "index"), None)
        if index is None or not _differs(index, views, counts):
            yield name


def _differs(edge: ir.Edge, views: Mapping[str, Typed], counts: Container[str]) -> bool:
    """Whether an index is another one on every trip.

    It is a counter, more or less a constant, or what a gradient pops of a stack.
    """
    view = views[edge[0]]
    if view.facts.kind is Kind.IDENTITY:
        return _differs(view.node.inputs[0], views, counts)
    if view.facts.kind is Kind.SUM and len(view.node.inputs) == 2:
        sides = view.node.inputs
        moving = [side for side in sides if not _stays(views[side[0]])]
        return len(moving) == 1 and _differs(moving[0], views, counts)
    popped = view.facts.same_list and not view.facts.flows
    return popped or edge[0] in counts


def _stays(view: Typed) -> bool:
    constant = view.node.flag("is_constant") and view.facts.kind is Kind.ENTER
    return constant or view.facts.kind is Kind.CONSTANT


def held(
    found: Mapping[FunctionUse, Candidates], call_values: CallValues
) -> dict[Member, Reason]:
    """Refuses loop variables that are given what is not 16-bit.

    Case 1: their initial value need be exact (`EXACT`).
    Case 2: what gives the value of the next trip stays float32, which would be rounded
      on every trip.

    Args:
      found: the candidates of each use after propagation.
      call_values: of the module.
    """
    return {
        (variable.use, name): reason
        for variable in call_values.variables.values()
        if (reason := _held(variable, found[variable.use])) is not None
        for name in variable.variable.nodes
        if name in found[variable.use].allowed
    }


def _held(number: UseVariable, part: Candidates) -> Reason | None:
    nodes = (
        part.typed[name].node for name in (number.variable.enter, number.variable.back)
    )
    (begins, _), (returned, _) = (node.inputs[0] for node in nodes)
    reason = part.refused.get(begins)
    if reason is not None and reason.rule in EXACT:
        return Reason("loop", f"{begins} gives its initial value")
    if returned not in part.allowed and returned not in part.already:
        return Reason("loop", f"{returned} gives its next value")
    return None
