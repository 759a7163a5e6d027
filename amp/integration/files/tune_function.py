"""Measures the operations of given functions: `amp.tune`, `amp tune --saved-model`.

Which operations are worth measuring is decided by the rewriter, which is run for that
alone. No function given here is run, and a SavedModel is only parsed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite import figures
from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.cost.op_instance import Instance, Times
from amp.graph_rewrite.cost.resolution import Resolution, resolve
from amp.graph_rewrite.graph import ir, serde
from amp.integration.files import given_functions
from amp.integration.measuring import (
    hardware,
    operation_timer,
    profiles,
    stopwatch,
    stored_times,
)
from amp.integration.runtime import shape_inference
from amp.policy import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operation that a function runs, and what it takes.

    Attributes:
      key: the op, the shapes of its inputs (`*` for those that become 16-bit), and what
        else its time depends on.
      runs: how often the functions given run it.
      seconds: of one run in (float32, 16 bits). None if no time was left or it cannot
        run alone; the second is infinite if it fails in 16 bits.
    """

    key: str
    runs: float
    seconds: Times | None


@dataclasses.dataclass(frozen=True, slots=True)
class Tuned:
    """What was measured of some functions; prints as a table.

    Attributes:
      device: what it was measured on.
      dtype: the 16-bit type.
      operations: those worth measuring, the largest share of the time first.
      file: where their times are stored.
    """

    device: str
    dtype: str
    operations: tuple[Operation, ...]
    file: str

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The table; where it is wider than `width` columns, a paragraph for each."""
        rows = [("operation", "runs", "float32", self.dtype, "gain")]
        rows += map(_row, self.operations)
        known = sum(operation.seconds is not None for operation in self.operations)
        title = f"{self.device}: {known} of {len(self.operations)} operations measured"
        table = figures.table(rows, width=width)
        return "\n".join((title, table, "", f"kept in {self.file}"))


def _row(operation: Operation) -> tuple[str, str, str, str, str]:
    name = operation.key.partition(" | ")[0]
    name = f"{name} (XLA)" if operation.key.endswith(" xla") else name
    name = name if len(name) <= 72 else f"{name[:69]}..."
    runs = f"{operation.runs:g}"
    if operation.seconds is None:
        return name, runs, "", "", "not measured"
    high, low = operation.seconds
    if math.isinf(low):
        return name, runs, figures.time(high), "", "fails"
    return name, runs, figures.time(high), figures.time(low), f"{high / low:.2f}x"


def tune(
    fn: Any, *args: Any, seconds: float = 60.0, policy: Policy | None = None
) -> Tuned:
    """Measures the operations that a function would run, and keeps the times.

    Later runs on this device plan from them. The function is traced and not run. What
    was measured before an interruption (`KeyboardInterrupt`) is kept too.

    Args:
      fn: a tf.function or callable (traced with `args`), or a ConcreteFunction.
      *args: arguments or TensorSpecs to trace with.
      seconds: time to spend; operations that were never measured come first.
      policy: the policy; by default that of the `AMP_*` variables. Where it is off on
        this device, the usual 16-bit type of the device is measured.

    Returns:
      The operations with their times, to look at or print.

    Raises:
      PolicyError: no time, an unknown op, a pattern that matches nothing, an unknown
        target.
      GraphError: a graph that is not well formed.
      ProfileError: the times cannot be stored.
    """
    stopwatch.require_time(seconds, "amp.tune(seconds=...)")
    settled = _settled(policy)
    (_, module), settled = given_functions.read(fn, args, settled.policy)
    return _tuned([module], settled, seconds, operation_timer.untold)


def tune_graph(graph: Any, seconds: float, progress: operation_timer.Progress) -> Tuned:
    """As `tune`, for a GraphDef and every function in it, called or not.

    A SavedModel's GraphDef does not call its functions, so each is read by itself, with
    the shapes noted in it.

    Args:
      graph: a `tf.compat.v1.GraphDef`.
      seconds: time to spend.
      progress: as `operation_timer.measure` calls it.

    Raises:
      PolicyError: no time, or the environment's policy is none.
      GraphError: a graph that is not well formed.
      ProfileError: the times cannot be stored.
    """
    stopwatch.require_time(seconds, "--seconds")
    module = serde.read_graph(graph)
    modules = [
        ir.Module(function, module.functions)
        for name, function in module.functions.items()
        if "internal_grad_fn" not in name  # what a custom gradient was traced as
    ]
    return _tuned([module, *modules], _settled(None), seconds, progress)


def _settled(policy: Policy | None) -> Resolution:
    """The policy to measure for: it weighs costs, and always has a 16-bit type."""
    device = hardware.device()
    policy = Policy.make(policy, emulate=False, assignment="cost")
    settled = resolve(policy, device)
    if settled.policy is None:
        usual = "bfloat16" if device.kind == "CPU" else "float16"
        settled = resolve(dataclasses.replace(policy, dtype=usual), device)
    return settled


def _tuned(
    modules: Iterable[ir.Module],
    settled: Resolution,
    seconds: float,
    progress: operation_timer.Progress,
) -> Tuned:
    profiles.require_writable()
    wanted = _wanted(modules, settled)
    known = stored_times.load()
    new_first = sorted(wanted, key=lambda one: one.key in known)
    found: dict[str, Times] = {}
    try:
        for key, taken in operation_timer.measure(new_first, seconds, progress):
            found[key] = taken
    finally:
        file = stored_times.add(found)
    times = {**known, **found}
    assert settled.policy is not None
    return Tuned(
        device=f"{hardware.model()}, TensorFlow {tf.__version__}",
        dtype=settled.policy.dtype,
        operations=tuple(_by_share(wanted, times)),
        file=str(file),
    )


def _by_share(
    wanted: Iterable[Instance], times: Mapping[str, Times]
) -> list[Operation]:
    def share(operation: Operation) -> float:
        return operation.runs * operation.seconds[0] if operation.seconds else 0.0

    every = (Operation(one.key, one.runs, times.get(one.key)) for one in wanted)
    return sorted(every, key=share, reverse=True)


def _wanted(modules: Iterable[ir.Module], settled: Resolution) -> list[Instance]:
    found: dict[str, Instance] = {}

    def note(wanted: Sequence[Instance]) -> Mapping[str, Times]:
        for one in wanted:
            runs = one.runs + (found[one.key].runs if one.key in found else 0.0)
            found[one.key] = dataclasses.replace(one, runs=runs)
        return {}

    for module in modules:
        sizes = shape_inference.at_call(())
        rewrite_lib.rewrite(module, settled, timer=note, sizes=sizes)
    return sorted(found.values(), key=lambda one: (-one.share, one.key))
