"""Measures single operations of a job, each in float32 and in its 16-bit type.

Called by `job_timer` and `tune_function`. Which operations are worth measuring is
decided in `cost.measurement_candidates`; nothing is stored here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.cost.op_instance import Form, Instance, Operand, Times
from amp.graph_rewrite.graph import ir, op_schema, serde
from amp.graph_rewrite.ops.op_table import COMPUTE, facts
from amp.integration import fallback
from amp.integration.measuring import hardware, memory, stopwatch
from amp.integration.measuring.stopwatch import Runner

# An operation is repeated in one call until the call takes this long, at most so often.
CALL_SECONDS, MOST_REPEATS = 1e-3, 64
# A product takes turns at operands of so many bytes, in calls of so many seconds: in a
# step each finds its weights, and backwards its activations, as cold as all that was
# done since has left them. Other operations read what the one before has just made.
COLD_BYTES, COLD_SECONDS = 2**25, 4e-3
# What comes after its forward op (run once a call) is repeated at least so often, so
# that an eighth of the forward op's time, in both types, is what is counted too much.
LEAST_AFTER_FORWARD = 8
# Rounds go on until the median is known to about this part of itself, and for this long
# or this often: three short rounds in a row may all meet the same disturbance.
CERTAIN = 0.04
LEAST_MEASURED, ROUNDS = 0.1, 5
# Where one precision takes this many times the other's time, rounds are taken twice and
# the shorter times count: what else the machine does may have met one of the two only.
SURPRISING = 3.0
# Where no time is left for rounds, one call counts if the operation takes this long.
LONG_SECONDS = 0.02
# A time below this part of that of a call that does nothing is not told from zero.
UNCERTAIN = 0.1
# Operands and results take at most this part of the memory that is free, because some
# kernels need as much again; where that is not known, this many bytes.
MOST_MEMORY = 0.25
UNTOLD_BYTES = 2**30
# Errors that do not mean that the operation cannot run in a type.
_PASSING = (
    tf.errors.ResourceExhaustedError,
    tf.errors.CancelledError,
    tf.errors.AbortedError,
)

Progress = Callable[[str, int, int], None]


def untold(key: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""


def measure(
    wanted: Sequence[Instance], seconds: float, progress: Progress = untold
) -> Iterator[tuple[str, Times]]:
    """The key of each instance and its seconds in (float32, 16 bits), as time allows.

    In the order given, each as it is measured. Both precisions are called in turn, for
    several rounds; the result is the median less the time of a call that does nothing.
    An operation that fails twice, only in 16 bits, gets infinite seconds there, and one
    that is many times slower there is called twice, if there is time. One that fails in
    float32, or needs too much memory, is left out.

    Args:
      wanted: the operations, the most important first.
      seconds: time to spend; only the last call may exceed it.
      progress: called with the next operation's key, how many are done, and how many
        there are.
    """
    deadline = time.perf_counter() + seconds
    room = _room()
    with stopwatch.alone():
        idle: dict[str, Runner] = {}
        for done, one in enumerate(wanted):
            progress(one.key, done, len(wanted))
            left = deadline - time.perf_counter()
            if left <= 0:
                break
            if 2 * one.moved > room:  # both forms, operands and results
                continue
            if one.executor not in idle:
                idle[one.executor] = stopwatch.idle(one.executor)
            end = time.perf_counter() + min(left, 2 * left / (len(wanted) - done))
            # Whatever is odd about one, the others are wanted.
            one_attempt = _Attempt(one, idle[one.executor], end, deadline)
            times = fallback.attempt_quietly(one_attempt.times, None)
            if times is not None:
                yield one.key, times
    progress("", len(wanted), len(wanted))


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """The measurement of one operation: aims to end at `end`, stops at `deadline`."""

    one: Instance
    idle: Runner
    end: float
    deadline: float

    def times(self) -> Times | None:
        high, low = self.one.forms
        try:
            first = self._runner(high, 1)
            once = first.seconds()
        except stopwatch.FAILURES:
            return None
        try:
            second = first if low is high else self._low_runner(low)
        except _PASSING:
            return None
        except stopwatch.FAILURES:
            return once, math.inf
        least = max(once, stopwatch.SLOW_SECONDS / stopwatch.SLOW_RATIO)
        slow = second.first
        if slow > stopwatch.SLOW_RATIO * least:
            # A first call may have to get ready, or meet what passes.
            if slow <= self._left():
                slow = second.seconds()
            elif self._gets_ready():
                return None  # it is not known what the time was spent on
        if slow > stopwatch.SLOW_RATIO * least:
            return once, slow
        return self._in_turn(first, second, once)

    def _low_runner(self, form: Form) -> Runner:
        """The operation in 16 bits, which cannot run if it fails twice.

        Libraries of a GPU fail now and then for want of memory, with many an error.
        """
        try:
            return self._runner(form, 1)
        except tf.errors.OpError:
            return self._runner(form, 1)

    def _runner(self, form: Form, repeat: int) -> Runner:
        copies = self._copies(repeat)
        operands = [
            _operand(o)
            for _ in range(copies)
            for o in form.operands
            if o.values is None
        ]
        what, body = (form.node.op, repeat), _body(form, repeat, copies)
        return stopwatch.ready(body, operands, what, self.one.executor)

    def _copies(self, repeat: int) -> int:
        """How many sets of operands a call takes turns at."""
        if self.one.op not in COMPUTE:
            return 1
        return min(repeat, math.ceil(2 * COLD_BYTES / max(self.one.moved, 1)))

    def _gets_ready(self) -> bool:
        """Whether the first call takes longer than later ones.

        In it XLA compiles, and libraries of a GPU are loaded and try algorithms.
        """
        return self.one.executor == "xla" or hardware.shipped().kind != "CPU"

    def _left(self) -> float:
        return self.deadline - time.perf_counter()

    def _in_turn(self, first: Runner, second: Runner, once: float) -> Times | None:
        runners = {"float32": first, "low": second}
        repeat = self._repeat(once)
        if repeat > 1:
            pairs = zip(runners, self.one.forms, strict=True)
            runners = {name: self._runner(form, repeat) for name, form in pairs}
        slow = second.seconds() if repeat == 1 else 0.0
        if stopwatch.LEAST_ROUNDS * (once + slow) > self._left():
            return (once, slow) if min(once, slow) > LONG_SECONDS else None
        times = self._rounds(runners)
        nothing = times.pop("")
        if max(times.values()) < UNCERTAIN * nothing:
            return None
        least = max(UNCERTAIN * nothing, repeat * stopwatch.LEAST_SECONDS)
        high, low = (max(taken, least) / repeat for taken in times.values())
        return high, low

    def _rounds(self, runners: Mapping[str, Runner]) -> dict[str, float]:
        start = time.perf_counter()
        times = stopwatch.rounds(runners, self.idle, self.end, _certain)
        took = time.perf_counter() - start
        short, long = sorted(times[name] for name in runners)
        if long > SURPRISING * short and took < self._left():
            again = stopwatch.rounds(runners, self.idle, self.end, _certain)
            times = {name: min(seconds, again[name]) for name, seconds in times.items()}
        return times

    def _repeat(self, once: float) -> int:
        """How often one call runs the operation; once if XLA would merge them."""
        if self.one.executor == "xla":
            return 1
        nothing = min(self.idle.seconds() for _ in range(3))
        alone = max(once - nothing, CALL_SECONDS / MOST_REPEATS)
        least = LEAST_AFTER_FORWARD if facts(self.one.op).forward else 1
        seconds = COLD_SECONDS if self.one.op in COMPUTE else CALL_SECONDS
        return max(least, min(math.ceil(seconds / alone), MOST_REPEATS))


def _certain(times: Mapping[str, Sequence[float]]) -> bool:
    """Whether the middle half of the times is narrow enough, for as many as there are.

    The spread of an idle call does not count.
    """
    for name, taken in times.items():
        if len(taken) < ROUNDS and sum(taken) < LEAST_MEASURED:
            return False
        lower, median, upper = statistics.quantiles(taken, n=4, method="inclusive")
        if name and upper - lower > CERTAIN * median * math.sqrt(len(taken)):
            return False
    return True


def _body(form: Form, repeat: int, copies: int) -> Callable[..., Any]:
    """Builds the function to time: an operation, `repeat` times one after the other.

    Of `copies` sets of operands it reads one after the other.
    """
    node, attrs = form.node, serde.public_attributes(form.node)

    def body(*given: Any) -> Any:
        rest = iter(given)
        each = [
            [_given(operand, rest) for operand in form.operands] for _ in range(copies)
        ]
        graph, last = tf.compat.v1.get_default_graph(), tf.no_op()
        if facts(node.op).forward:
            for inputs in each:
                inputs[1] = _forward(graph, facts(node.op).forward, inputs[0], attrs)
        for _, inputs in zip(range(repeat), itertools.cycle(each)):
            with tf.control_dependencies([last]):
                last = graph.create_op(node.op, inputs, attrs=attrs)
        return last.outputs[0]

    return body


def _forward(
    graph: tf.Graph, op: str, operand: tf.Tensor, attrs: Mapping[str, Any]
) -> tf.Tensor:
    """The result of the op whose kernel leaves something for that of its gradient."""
    taken = {name: attrs[name] for name in op_schema.attributes(op) & attrs.keys()}
    return graph.create_op(op, [operand], attrs=taken).outputs[0]


def _given(operand: Operand, tensors: Iterator[Any]) -> Any:
    """What an operand is in the function: the next of the tensors, or a constant."""
    if operand.values is None:
        return next(tensors)
    return tf.constant(operand.values, tf.as_dtype(operand.number))


def _operand(operand: Operand) -> Any:
    if operand.number == ir.BOOL:
        return stopwatch.operand(operand.shape, "float32") > 0.75
    return stopwatch.operand(operand.shape, tf.as_dtype(operand.number).name)


def _room() -> float:
    """The bytes of memory that measuring one operation may take."""
    free = memory.free()
    return UNTOLD_BYTES if free is None else MOST_MEMORY * free
