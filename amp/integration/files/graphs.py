"""GraphDefs that users pass to `amp.rewrite`, and those of files.

Reads a GraphDef with its shapes, checks the names that the user gives, and has
`graph_rewrite` make the rewritten graph; nothing is changed here. Functions are the
matter of `given_functions`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp import spelling
from amp.errors import GraphError
from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import calls, ir, op_schema, serde
from amp.graph_rewrite.normalize import inline
from amp.graph_rewrite.ops.op_names import check_patterns
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Rewrite
from amp.integration import api, source_lines
from amp.integration.measuring import job_timer
from amp.integration.runtime import definitions, shape_inference
from amp.integration.runtime.node_import import import_nodes
from amp.policy import Policy

_GRADIENT = "_gradient_op_type"  # names a gradient other than the op's own


def rewrite(
    graph: Any,
    policy: Policy | None = None,
    *,
    fetches: Iterable[str] = (),
    feeds: Iterable[str] = (),
) -> Rewrite:
    """Rewrites a GraphDef; the one given is not changed.

    Every node keeps its name, and fetched and fed tensors stay float32.

    Args:
      graph: a `tf.compat.v1.GraphDef`.
      policy: the policy; by default that of the `AMP_*` variables.
      fetches: names of tensors or operations that will be fetched; by default those
        that no other node reads.
      feeds: names of tensors or operations, besides placeholders, that will be fed.

    Returns:
      The rewritten GraphDef as `.graph` and the `Report` as `.report`.

    Raises:
      GraphError: a graph that is not well formed, or a name that is not in it.
      PolicyError: an unknown op, or a `keep` pattern that matches nothing.
    """
    _require_graph(graph)
    settled = api.settle(Policy.make(policy)).settled
    module = read_graph(graph)
    named = (
        _names(module, fetches, "amp.rewrite(fetches=...)"),
        _names(module, feeds, "amp.rewrite(feeds=...)"),
    )
    if not any(map(updates, module.graphs())):
        module, settled = exported(module, settled)
    return _rewritten(module, settled, *named)


def _require_graph(graph: Any) -> None:
    if not isinstance(graph, serde.graph_proto_types()):
        raise GraphError(
            f"a {type(graph).__name__} was given",
            where="amp.rewrite(graph)",
            allowed="a tf.compat.v1.GraphDef",
            remedy="pass graph.as_graph_def(), or use amp.twin for a function",
        )


def rewrite_file(
    graph: Any, policy: Policy, *, fetches: Iterable[str], feeds: Iterable[str]
) -> Rewrite:
    """As `rewrite`, for a file: without clusters, which other machines may not run.

    Raises:
      GraphError: a graph that TensorFlow cannot import, or a name that is not in it.
      PolicyError: an unknown op, or a `keep` pattern that matches nothing.
    """
    require_importable(graph)
    settled = api.settle(policy).settled
    module = read_graph(graph)
    named = _names(module, fetches, "--fetch"), _names(module, feeds, "--feed")
    return _rewritten(*exported(module, settled), *named)


def explain_file(
    graph: Any, settled: Resolution, fetches: Iterable[str] = ()
) -> Report:
    """The report that `rewrite_file` would give.

    Args:
      graph: the GraphDef.
      settled: the policy and the device to plan for.
      fetches: names of tensors that will be fetched; by default those that none reads.

    Raises:
      GraphError: a graph that is not well formed, or a name that is not in it.
      PolicyError: an unknown op, or a `keep` pattern that matches nothing.
    """
    module = read_graph(graph)
    named = _names(module, fetches, "--signature")
    report = _rewritten(*exported(module, settled), named, frozenset()).report
    lines = source_lines.of_graph_def(graph, graph.debug_info)
    return source_lines.added(report, lines)


def _rewritten(
    module: ir.Module,
    settled: Resolution,
    fetches: frozenset[str],
    feeds: frozenset[str],
) -> Rewrite:
    check_keep(settled, module)
    result = rewrite_lib.rewrite(
        module,
        settled,
        fetches=fetches or _sinks(module.main),
        feeds=feeds,
        timer=job_timer.stored_on(settled),
        sizes=shape_inference.at_call(()),
    )
    return Rewrite(serde.write_graph(result.graph), result.report)


def read_graph(graph: Any) -> ir.Module:
    """A GraphDef as a module, with the shapes that it has once imported."""
    return serde.read_graph(graph, _imported_shapes(graph))


def updates(graph: ir.Graph) -> bool:
    """Whether a graph updates variables, as a training step with its gradients does."""
    return any(facts(node.op).kind is Kind.WRITE for node in graph.nodes.values())


def exported(module: ir.Module, settled: Resolution) -> tuple[ir.Module, Resolution]:
    """Prepares a module and policy for a graph that is saved or handed back.

    Another program may take gradients of such a graph, perhaps without XLA. So there
    are no clusters (their calls have no gradient and need XLA), and nodes with a custom
    gradient stay float32, which their gradient functions expect. A graph that updates
    variables has its gradients in it already, and its nodes need not stay float32.
    """
    settled = settled.as_written()
    if any(map(updates, module.graphs())):
        return module, settled
    functions = {name: _custom_kept(f) for name, f in module.functions.items()}
    return ir.Module(_custom_kept(module.main), functions), settled


def _custom_kept(graph: ir.Graph) -> ir.Graph:
    custom = {
        node.name: node.changed(updates={ir.KEEP: ir.CUSTOM})
        for node in graph.nodes.values()
        if node.text(_GRADIENT) and node.op not in calls.CALLS
    }
    return graph.with_nodes({**graph.nodes, **custom}) if custom else graph


def node_of(name: str) -> str:
    """The node in the name of a tensor, operation or control input."""
    return name.removeprefix("^").partition(":")[0]


def _names(module: ir.Module, given: Iterable[str], where: str) -> frozenset[str]:
    given = [given] if isinstance(given, str) else list(given)
    for name in given:
        if not _exists(module, name):
            known = node_of(name) in module.main.nodes
            raise GraphError(
                f"there is no tensor {name!r}"
                if known
                else f"there is no node {node_of(name)!r}",
                where=where,
                allowed="names of operations or tensors of the graph",
                remedy=spelling.hint(
                    node_of(name), module.main.nodes, "name one that is in the graph"
                ),
            )
    return frozenset(map(node_of, given))


def _exists(module: ir.Module, name: str) -> bool:
    node, index = module.main.nodes.get(node_of(name)), name.partition(":")[2]
    if node is None or ":" not in name:
        return node is not None
    known = op_schema.lookup_of(module)(node.op)
    most = math.inf if known is None else len(known.signature(node).outs)
    return index.isdecimal() and int(index) < most


def _sinks(graph: ir.Graph) -> frozenset[str]:
    read = {edge[0] for edge in graph.readers}
    return frozenset(graph.nodes.keys() - read)


def check_keep(settled: Resolution, module: ir.Module) -> None:
    """Checks that every `keep` pattern matches a node.

    Raises:
      PolicyError: one does not.
    """
    if settled.policy is not None and settled.policy.keep:
        check_patterns(settled.policy, inline.names(module))


def _imported_shapes(proto: Any) -> ir.ShapeSource:
    """Static shapes of a GraphDef, by importing it; unknown if it does not import."""

    def load() -> Mapping[str, Sequence[Any]]:
        graph = tf.Graph()
        with contextlib.suppress(ValueError, tf.errors.OpError):  # or over 2 GB
            import_nodes(graph, proto, {}, {})
            return definitions.outputs_of(graph)
        return {}

    return definitions.static_shapes(load)


def require_importable(proto: Any) -> None:
    """Checks that TensorFlow accepts a GraphDef; nothing of it is run.

    Raises:
      GraphError: it does not.
    """
    try:
        with tf.Graph().as_default():
            tf.graph_util.import_graph_def(proto, name="")
    except (ValueError, tf.errors.OpError) as e:
        raise GraphError(
            f"TensorFlow cannot import this graph: {e}",
            where="the GraphDef",
            allowed="ops that this TensorFlow knows, with inputs of their types",
            remedy="mend it where it is made",
        ) from e
