"""Graphs and functions given by hand: `rewrite`, `explain`, `twin`.

Knows how to get a graph and its shapes out of what a user has; rewrites nothing itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.errors import GraphError, PolicyError
from amp.graph_rewrite import ir, serde
from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.device import Resolution
from amp.graph_rewrite.names import check_patterns
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Rewrite
from amp.integration import activation, definitions, feedback
from amp.policy import Policy


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
      policy: the policy, `Policy()` by default.
      fetches: names of tensors or operations that will be fetched; by default those
        that no other node reads.
      feeds: names of tensors or operations, besides placeholders, that will be fed.

    Returns:
      The rewritten GraphDef as `.graph` and the `Report` as `.report`.

    Raises:
      GraphError: a graph that is not well formed, or a name that is not in it.
      PolicyError: an unknown op, or a `keep` pattern that matches nothing.
    """
    if not isinstance(graph, serde.graph_proto_types()):
        raise GraphError(
            f"a {type(graph).__name__} was given",
            where="amp.rewrite(graph)",
            allowed="a tf.compat.v1.GraphDef",
            remedy="pass graph.as_graph_def(), or use amp.twin for a function",
        )
    settled = activation.settle(Policy.make(policy)).settled
    module = serde.read_graph(graph, _imported_shapes(graph))
    given = [_names(module, fetches, "fetches"), _names(module, feeds, "feeds")]
    fetched = given[0] or _sinks(module.main)
    _check_keep(settled, module)
    if not any(map(_updates, module.graphs())):
        settled = _differentiable(settled)
    result = rewrite_lib.rewrite(
        module,
        settled,
        fetches=fetched,
        feeds=given[1],
        timer=feedback.stored,
    )
    return Rewrite(serde.write_graph(result.graph), result.report)


def _updates(graph: ir.Graph) -> bool:
    """Whether a graph updates variables: a step of training, with all its gradients."""
    return any(
        node.op.startswith(("Assign", "Apply", "ResourceApply", "SparseApply"))
        for node in graph.nodes.values()
    )


def _differentiable(settled: Resolution) -> Resolution:
    """The same without clusters, whose calls have no gradient."""
    return dataclasses.replace(settled, device=settled.device.without_clusters())


def _names(module: ir.Module, given: Iterable[str], what: str) -> frozenset[str]:
    if isinstance(given, str):
        given = (given,)
    names = frozenset(name.removeprefix("^").partition(":")[0] for name in given)
    for name in sorted(names - module.main.nodes.keys()):
        raise GraphError(
            f"there is no node {name!r}",
            where=f"amp.rewrite({what}=...)",
            allowed="names of operations or tensors of the graph",
            remedy="print([n.name for n in graph.node]) for the names there are",
        )
    return names


def _sinks(graph: ir.Graph) -> frozenset[str]:
    read = {edge[0] for edge in graph.readers}
    return frozenset(graph.nodes.keys() - read)


def _check_keep(settled: Resolution, module: ir.Module) -> None:
    if settled.policy is not None:
        names = (name for graph in module.graphs() for name in graph.nodes)
        check_patterns(settled.policy, names)


def _imported_shapes(proto: Any) -> definitions.StaticShapes:
    """Static shapes of a GraphDef, by importing it; unknown if it does not import."""

    def load() -> Mapping[str, Sequence[Any]]:
        with tf.Graph().as_default() as graph:
            try:
                tf.graph_util.import_graph_def(proto, name="")
            except (ValueError, tf.errors.OpError):
                return {}
        return definitions.outputs_of(graph)

    return definitions.StaticShapes(load)


def _concrete(target: Any, args: tuple[Any, ...]) -> Any:
    """The ConcreteFunction that a target is, or is when traced with `args`."""
    if hasattr(target, "get_concrete_function") and not _is_concrete(target):
        return target.get_concrete_function(*args)
    if _is_concrete(target):
        return target
    if callable(target):
        return tf.function(target).get_concrete_function(*args)
    raise PolicyError(
        f"a {type(target).__name__} was given",
        where="amp.explain(target), amp.twin(fn)",
        allowed="a tf.function, ConcreteFunction, callable, or (explain) a GraphDef",
        remedy="pass the function itself and the arguments to trace it with",
    )


def _is_concrete(target: Any) -> bool:
    return hasattr(target, "captured_inputs") and hasattr(target, "function_def")


def explain(target: Any, *args: Any, policy: Policy | None = None) -> Report:
    """What a rewrite of `target` would do and why, without doing it.

    Args:
      target: a tf.function or callable (traced with `args`), a ConcreteFunction, or a
        GraphDef.
      *args: arguments or TensorSpecs to trace with.
      policy: the policy, `Policy()` by default.

    Raises:
      GraphError: a graph that is not well formed.
      PolicyError: an unknown op, a pattern that matches nothing, an unknown target.
    """
    if isinstance(target, serde.graph_proto_types()):
        return rewrite(target, policy).report
    module, settled = read(target, args, policy)
    return rewrite_lib.rewrite(module[1], settled, timer=feedback.stored).report


def read(
    target: Any, args: tuple[Any, ...], policy: Policy | None
) -> tuple[tuple[Any, ir.Module], Resolution]:
    """A function as traced under a policy: itself and its module, and the policy.

    Raises:
      PolicyError: a pattern that matches nothing, an unknown target.
    """
    policy = Policy.make(policy)
    settled = activation.settle(policy).settled
    with activation.mixed_precision_scope(policy):
        concrete = _concrete(target, args)
    module = definitions.read(context_lib.context(), concrete.name)
    _check_keep(settled, module)
    return (concrete, module), settled


def twin(fn: Any, *args: Any, policy: Policy | None = None) -> Any:
    """The twin of a function as a ConcreteFunction, to look at, call or export.

    Args:
      fn: a tf.function or callable (traced with `args`), or a ConcreteFunction.
      *args: arguments or TensorSpecs to trace with.
      policy: the policy, `Policy()` by default.

    Returns:
      A ConcreteFunction with the signature of the original's, reading the same
      variables; the original itself where there is nothing to convert.

    Raises:
      GraphError: a graph that is not well formed.
      PolicyError: an unknown op, a pattern that matches nothing, an unknown target.
    """
    (concrete, module), settled = read(fn, args, policy)
    result = rewrite_lib.rewrite(
        module,
        _differentiable(settled),
        suffix=definitions.new_suffix(),
        timer=feedback.stored,
    )
    if result.graph.main is module.main:
        return concrete
    return definitions.concrete_of(concrete, result.graph)
