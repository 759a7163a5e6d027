"""Measures the device for `amp tune`: each case in float32 and both 16-bit types.

Called by `tune_device`, which makes a profile of the points and stores it. What its
times mean is in `cost.device_profile`; nothing is stored here.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.cost.device_profile import Point
from amp.graph_rewrite.graph import ir, shapes
from amp.graph_rewrite.ops import arithmetic, op_table
from amp.graph_rewrite.ops.op_table import COMPUTE
from amp.integration.measuring import hardware, stopwatch
from amp.integration.measuring.cases import CALL, Case, cases
from amp.integration.measuring.stopwatch import Runner

DTYPES = ("float32", "bfloat16", "float16")
UNCERTAIN = 0.1

Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Bench:
    """How cases are run.

    Attributes:
      executor: "kernels" or "xla".
      idle: a call that does nothing; its time is subtracted from the others'.
      given_up: kinds of work, with the type they are far too slow in; grows.
    """

    executor: str
    idle: Runner
    given_up: set[tuple[str, str]]


def calibrate(
    executor: str,
    seconds: float,
    *,
    table: Sequence[Case] = (),
    progress: Progress = lambda case, done, total: None,
) -> Iterator[Point]:
    """Measures the device that TensorFlow computes on, case by case.

    Args:
      executor: "kernels", or "xla" for functions that XLA compiles.
      seconds: time to spend; only the last case may exceed it.
      table: what to run, by default all cases at the size that the device needs.
      progress: called with the next case, how many are done, and how many there are.

    Yields:
      The points of each case as it is measured; none of those for which no time is
      left.
    """
    scale = 8.0 if hardware.shipped().kind == "GPU" else 1.0
    table = table or cases(scale)
    deadline = time.perf_counter() + seconds
    with stopwatch.alone():
        bench = _Bench(executor, stopwatch.idle(executor), set())
        for done, case in enumerate(table):
            progress(str(case), done, len(table))
            left = deadline - time.perf_counter()
            if left <= 0:
                break
            yield from _measured(case, bench, 2 * left / (len(table) - done))
    progress("", len(table), len(table))


def _measured(case: Case, bench: _Bench, share: float) -> Iterator[Point]:
    """One point for each type in which the case can run, in about `share` seconds."""
    if bench.executor == "xla" and case.bound == "start" and not case.chained:
        return  # one call costs far more than the operation
    if bench.executor == "kernels" and case.op == CALL:
        return  # measured for "xla" only
    work = case.work or op_table.facts(case.op).work
    end = time.perf_counter() + share
    runners: dict[str, Runner] = {}
    least = stopwatch.SLOW_SECONDS / stopwatch.SLOW_RATIO
    for dtype in DTYPES:
        if (work, dtype) in bench.given_up or not _of_interest(work, dtype):
            continue
        runner = _runner(case, dtype, bench.executor)
        if runner is None:
            continue
        once = runner.first
        if bench.executor == "xla" or once > stopwatch.SLOW_RATIO * least:
            once = runner.seconds()  # the first call compiles, or loads libraries
        if dtype == "float32":
            least = max(least, once)
        elif once > stopwatch.SLOW_RATIO * least:
            bench.given_up.add((work, dtype))
            point = _point(case, work, dtype, runner, once)
            yield dataclasses.replace(point, hopeless=True)
            continue
        runners[dtype] = runner
    times = stopwatch.rounds(runners, bench.idle, end)
    nothing = times.pop("")
    if case.bound != "start" and min(times.values(), default=0.0) < UNCERTAIN * nothing:
        return  # on this device it cannot be told from a call that does nothing
    for dtype, seconds in times.items():
        yield _point(case, work, dtype, runners[dtype], seconds)


def _of_interest(work: str, dtype: str) -> bool:
    """Whether to measure a type: not 16 bits for a call, nor float32 for a cast."""
    if work == "call":
        return dtype == "float32"
    return (work, dtype) != ("cast", "float32")


def _point(case: Case, work: str, dtype: str, runner: Runner, seconds: float) -> Point:
    ins, outs = runner.operation.inputs, runner.operation.outputs
    if work == "cast":
        moved = shapes.elements(_dimensions(ins[0]))
    else:
        moved = arithmetic.moved(work, *(_shapes(ts, dtype) for ts in (ins, outs)))
    return Point(
        work=work,
        bound=case.bound,
        case=str(case),
        dtype=dtype,
        moved=moved,
        operations=arithmetic.flops(
            op_table.facts(case.op), _shapes(ins), _shapes(outs)
        ),
        seconds=max(seconds / runner.repeat, stopwatch.LEAST_SECONDS),
    )


def _shapes(tensors: Sequence[Any], dtype: str = "") -> list[ir.Shape]:
    return [_dimensions(t) for t in tensors if dtype in ("", t.dtype.name)]


def _dimensions(tensor: Any) -> ir.Shape:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _runner(case: Case, dtype: str, executor: str) -> Runner | None:
    """The case in a type; None where TensorFlow has no kernel for it."""
    given, build = dtype, case.build
    if op_table.facts(case.op).work == "cast":
        given, wanted = ("float32", dtype)[:: -1 if case.note == "up" else 1]
        build = functools.partial(tf.cast, dtype=wanted)
    copies = _copies(case) if executor == "kernels" else 1
    operands = [stopwatch.operand(s, given) for _ in range(copies) for s in case.shapes]
    body, repeat = _body(case, build, executor)
    try:
        around = "kernels" if case.op == CALL else executor
        return stopwatch.ready(body, operands, (case.op, repeat), around)
    except stopwatch.FAILURES:
        return None


def _copies(case: Case) -> int:
    """How many sets of operands a call takes turns at: a product finds its own cold.

    As `operation_timer` measures a job's products; a start is over small ones.
    """
    return case.repeat if case.op in COMPUTE and case.bound != "start" else 1


def _body(
    case: Case, build: Callable[..., Any], executor: str
) -> tuple[Callable[..., Any], int]:
    """Builds the function to time; returns it and how often it runs the case.

    With kernels the case runs `repeat` times, on one set of operands after the other,
    and nothing is returned. XLA would remove operations whose result is unused and
    merge equal ones. There the case runs once and its result is returned, or
    (`chained`) each operation takes the result before it.
    """

    def in_turn(*operands: Any) -> Any:
        last, width = tf.no_op(), len(case.shapes)
        sets = [operands[i : i + width] for i in range(0, len(operands), width)]
        for _, one in zip(range(case.repeat), itertools.cycle(sets), strict=False):
            with tf.control_dependencies([last]):
                last = tf.nest.flatten(build(*one))[0].op
        with tf.control_dependencies([last]):
            return tf.constant(0)

    def chain(first: Any, *others: Any) -> Any:
        for _ in range(case.repeat):
            first = build(first, *others)
        return first

    if executor == "kernels":
        return in_turn, case.repeat
    if case.chained:
        return chain, case.repeat
    return build, 1
