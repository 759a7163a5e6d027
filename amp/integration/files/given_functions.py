"""Functions that users pass to `amp.explain` and `amp.twin`.

Traces a function, reads its graph, and has `graph_rewrite` plan or make its twin. No
function is called here.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.errors import PolicyError
from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.cost.resolution import Resolution, resolve_named
from amp.graph_rewrite.graph import ir, serde
from amp.graph_rewrite.report import Report
from amp.integration import api, source_lines
from amp.integration.files import graphs
from amp.integration.measuring import job_timer
from amp.integration.runtime import definitions, shape_inference
from amp.policy import Policy


def explain(
    target: Any,
    *args: Any,
    policy: Policy | None = None,
    device: str | None = None,
) -> Report:
    """What a rewrite of `target` would do and why, without doing it.

    Args:
      target: a tf.function or callable (traced with `args`), a ConcreteFunction, or a
        GraphDef.
      *args: arguments or TensorSpecs to trace with.
      policy: the policy; by default that of the `AMP_*` variables.
      device: a device to plan for that need not be here, as "a100"; its times are
        predicted from the vendor's figures. This machine's by default.

    Raises:
      GraphError: a graph that is not well formed.
      PolicyError: an unknown op, a pattern that matches nothing, an unknown target or
        device.
    """
    named = None if device is None else resolve_named(Policy.make(policy), device)
    if isinstance(target, serde.graph_proto_types()):
        if named is not None:
            return graphs.explain_file(target, named)
        return graphs.rewrite(target, policy).report
    (_, module), settled = read(target, args, policy, named)
    timer, sizes = job_timer.stored_on(settled), shape_inference.at_call(())
    result = rewrite_lib.rewrite(module, settled, timer=timer, sizes=sizes)
    lines = source_lines.of_runtime()
    return source_lines.added(result.report, lines, module.main.name)


def read(
    target: Any,
    args: tuple[Any, ...],
    policy: Policy | None,
    named: Resolution | None = None,
) -> tuple[tuple[Any, ir.Module], Resolution]:
    """Traces a function under a policy and reads its graph.

    Called by `explain` and `twin`, and by `tune_function`.

    Args:
      target, args, policy: as of `explain`.
      named: the policy as settled on a device that the user named, if one was.

    Returns:
      (The ConcreteFunction, its module), and the policy as settled on this machine.

    Raises:
      PolicyError: a pattern that matches nothing, an unknown target.
    """
    policy = Policy.make(policy)
    settled = api.settle(policy).settled
    if named is not None:
        settled, policy = named, named.policy or policy
    with api.mixed_precision_scope(policy):
        concrete = _concrete(target, args)
    module = definitions.read(context_lib.context(), concrete.name)
    graphs.check_keep(settled, module)
    return (concrete, module), settled


def twin(fn: Any, *args: Any, policy: Policy | None = None) -> Any:
    """The twin of a function as a ConcreteFunction, to look at, call or export.

    Args:
      fn: a tf.function or callable (traced with `args`), or a ConcreteFunction.
      *args: arguments or TensorSpecs to trace with.
      policy: the policy; by default that of the `AMP_*` variables.

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
        settled.as_written(),
        suffix=definitions.new_suffix(),
        timer=job_timer.stored,
        sizes=shape_inference.at_call(()),
    )
    if result.graph.main is module.main:
        return concrete
    return definitions.concrete_of(concrete, result.graph)


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
        where="amp.explain(target), amp.twin(fn), amp.compare(fn)",
        allowed="a tf.function, ConcreteFunction, callable, or (explain) a GraphDef",
        remedy="pass the function itself and the arguments to trace it with",
    )


def _is_concrete(target: Any) -> bool:
    return hasattr(target, "captured_inputs") and hasattr(target, "function_def")
