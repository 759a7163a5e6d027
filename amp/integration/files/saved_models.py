"""Rewrites the graphs of a SavedModel in place, or explains them.

Called by `graph_files`. Works on the protobuf messages; nothing is executed, and which
nodes become 16-bit is not decided here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tensorflow.python.framework import meta_graph

from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import calls, ir, serde
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.graph_rewrite.report import Report
from amp.integration.files import graphs, joined_reports, signatures
from amp.integration.measuring import job_timer
from amp.integration.runtime import shape_inference


def rewrite(meta: Any, settled: Resolution) -> list[Report]:
    """Rewrites a MetaGraphDef in place.

    A program that loads a SavedModel finds functions by the names in its object graph,
    and tensors by the names in signatures, collections, savers and custom gradients.
    Both keep their names, types and meaning. Functions that those call get twins, which
    are added to the library::

        for each function that an object names or a custom gradient reads:
          unless all it does is call another of them:
            put its rewritten body under its name
        rewrite the main graph, in which they are calls like any other op

    There are no clusters, since a server may have no XLA.

    Returns:
      The reports on what was rewritten or could have been.

    Raises:
      GraphError: a graph that is not well formed, or cannot be imported.
      PolicyError: a `keep` pattern that matches nothing.
    """
    graphs.require_importable(meta.graph_def)
    module = graphs.read_graph(meta.graph_def)
    made, around = _made(meta, module, settled)
    meta.graph_def.CopyFrom(serde.write_graph(_joined(module, made, around)))
    _note_ops(meta)
    return list(_reports(made, around).values())


def explain(meta: Any, settled: Resolution) -> Report:
    """What `rewrite` would do, in one report; the MetaGraphDef is not changed.

    Its nodes are those of the functions that `rewrite` rewrites, named after their
    function, and those of the main graph.

    Raises:
      GraphError: a graph that is not well formed.
      PolicyError: a `keep` pattern that matches nothing.
    """
    module = graphs.read_graph(meta.graph_def)
    return joined_reports.joined(_reports(*_made(meta, module, settled)))


def _made(
    meta: Any, module: ir.Module, settled: Resolution
) -> tuple[dict[str, rewrite_lib.Rewrite], rewrite_lib.Rewrite]:
    """The rewritten functions by their names, and the rewritten main graph."""
    graphs.check_keep(settled, module)
    read = _read_by_gradients(meta)
    named = {*meta.object_graph_def.concrete_functions, *read}
    roots = sorted(module.functions.keys() & named)
    suffix = _new_suffix(module)
    made = {
        name: _named_function(module, name, (settled, f"{suffix}_{number}"), read)
        for number, name in enumerate(roots)
        if not _hands_on(module.functions[name], roots)
    }
    return made, _around(meta, module, (settled, suffix), roots)


def _reports(
    made: Mapping[str, rewrite_lib.Rewrite], around: rewrite_lib.Rewrite
) -> dict[str, Report]:
    """The reports by the names of the functions; the main graph's is that of ""."""
    main = {"": around.report} if around.report.nodes_low or not made else {}
    return {**main, **{name: each.report for name, each in made.items()}}


def _joined(
    module: ir.Module,
    made: Mapping[str, rewrite_lib.Rewrite],
    around: rewrite_lib.Rewrite,
) -> ir.Module:
    """The rewritten main graph, with the rewritten functions under their old names."""
    functions = dict(module.functions)
    for name, each in made.items():
        functions.update(_added(each.graph, module))
        functions[name] = dataclasses.replace(each.graph.main, name=name)
    functions.update(_added(around.graph, module))
    return ir.Module(around.graph.main, functions)


def _named_function(
    module: ir.Module,
    name: str,
    how: tuple[Resolution, str],
    read: Mapping[str, frozenset[str]],
) -> rewrite_lib.Rewrite:
    """Rewrites a function that an object names.

    Args:
      module: the main graph with all functions.
      name: of the function.
      how: policy and device, and the ending of new functions' names.
      read: by function, the nodes that custom gradients read, which stay float32.
    """
    settled, suffix = how
    return rewrite_lib.rewrite(
        *graphs.exported(_reached(module, name, read.keys()), settled),
        fetches=read.get(name, frozenset()) & module.functions[name].nodes.keys(),
        suffix=suffix,
        timer=job_timer.stored_on(settled),
        sizes=shape_inference.at_call(()),
    )


def _note_ops(meta: Any) -> None:
    """Adds new ops to the list of ops that the file says it needs."""
    noted = meta.meta_info_def.stripped_op_list.op
    names = {op.name for op in noted}
    needed = meta_graph.stripped_op_list_for_graph(meta.graph_def).op
    if names:  # not every writer makes that list
        noted.extend(op for op in needed if op.name not in names)
        noted.sort(key=lambda op: op.name)


def _around(
    meta: Any, module: ir.Module, how: tuple[Resolution, str], roots: list[str]
) -> rewrite_lib.Rewrite:
    """Rewrites the main graph; calls of `roots` stay calls of those functions."""
    settled, suffix = how
    inner = {n: f for n, f in module.functions.items() if n not in roots}
    return rewrite_lib.rewrite(
        *graphs.exported(ir.Module(module.main, inner), settled),
        fetches=frozenset(_fetched(meta)) & module.main.nodes.keys(),
        feeds=frozenset(_fed(meta)) & module.main.nodes.keys(),
        suffix=suffix,
        timer=job_timer.stored_on(settled),
        sizes=shape_inference.at_call(()),
    )


def _read_by_gradients(meta: Any) -> dict[str, frozenset[str]]:
    """By function name, the nodes in it that functions of custom gradients read.

    Such a function must not be inlined into a graph that may be differentiated, where
    the gradient would not find those nodes.
    """
    found: dict[str, frozenset[str]] = {}
    for node in meta.object_graph_def.nodes:
        captured = node.captured_tensor
        if captured.concrete_function:
            name = graphs.node_of(captured.name)
            before = found.get(captured.concrete_function, frozenset())
            found[captured.concrete_function] = before | {name}
    return found


def _added(made: ir.Module, given: ir.Module) -> dict[str, ir.Graph]:
    return {n: f for n, f in made.functions.items() if n not in given.functions}


def _new_suffix(module: ir.Module) -> str:
    """A suffix for the names of new functions that no name in the module has yet."""
    number = 1
    while any(f"__amp{number}" in name for name in module.functions):
        number += 1
    return f"__amp{number}"


def _hands_on(function: ir.Graph, roots: list[str]) -> bool:
    """Whether all that a function does is call one function of `roots`."""
    nodes = function.nodes.values()
    called = [node for node in nodes if calls.calls_once(node.op)]
    callees = [function for node in called for function in node.functions("f")]
    others = (facts(node.op).kind for node in nodes if node not in called)
    only = all(kind in (Kind.IDENTITY, Kind.NOTHING) for kind in others)
    return only and len(callees) == 1 and callees[0] in roots


def _reached(module: ir.Module, name: str, excluded: Collection[str]) -> ir.Module:
    """A function as a module, with the functions that it calls, directly or not.

    Without those of `excluded`, which stay calls, unless it updates variables.
    """
    whole = _module(module, name, module.functions)
    if not any(map(graphs.updates, whole.graphs())):
        near = {n: f for n, f in module.functions.items() if n not in excluded}
        whole = _module(module, name, near)
    return whole


def _module(
    module: ir.Module, name: str, functions: Mapping[str, ir.Graph]
) -> ir.Module:
    whole = ir.Module(module.functions[name], functions)
    uses = [use.name for use in calls.uses_with_weights(whole) if use.name != name]
    return ir.Module(whole.main, {used: functions[used] for used in uses})


def _fetched(meta: Any) -> Iterator[str]:
    """The nodes that signatures, collections and savers read by name."""
    for signature in meta.signature_def.values():
        for info in signature.outputs.values():
            yield from map(graphs.node_of, signatures.tensors(info))
    for collection in meta.collection_def.values():
        yield from map(graphs.node_of, collection.node_list.value)
        for serialized in collection.bytes_list.value:
            yield from map(graphs.node_of, serde.variable_names(serialized))
    saver = meta.saver_def
    yield from map(graphs.node_of, (saver.save_tensor_name, saver.restore_op_name))


def _fed(meta: Any) -> Iterator[str]:
    for signature in meta.signature_def.values():
        for info in signature.inputs.values():
            yield from map(graphs.node_of, signatures.tensors(info))
