"""`measure`: what can be run is timed in both precisions, in the time that there is."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import pytest
import tensorflow as tf
from rewriting import v1

from amp.graph_rewrite.cost.measurement_candidates import wanted
from amp.graph_rewrite.cost.op_instance import Form, Instance, Operand, Times
from amp.graph_rewrite.graph import ir
from amp.integration.measuring import memory, operation_timer, stopwatch
from tests.graph_rewrite.cost.test_measurement_candidates import layers, part

pytestmark = pytest.mark.kernels


def instances(*widths: int, **fields: Any) -> list[Instance]:
    return wanted([part(layers(*widths), **fields)])


def made(op: str, *shapes: tuple[int, ...], attr: str = "T", **attrs: Any) -> Instance:
    """An instance of any op, whether the rewriter would turn it or not."""

    def form(number: int) -> Form:
        node = ir.Node("op", op, (), (), "", None, {attr: ir.Type(number), **attrs})
        return Form(node, tuple(Operand(shape, number) for shape in shapes))

    forms = (form(ir.FLOAT), form(ir.BFLOAT16))
    return Instance(op, "elementwise", forms, "kernels", (1e-5, 1e-5), 1.0, 4000)


def timed(given: list[Instance], seconds: float, *progress: Any) -> dict[str, Times]:
    return dict(operation_timer.measure(given, seconds, *progress))


def test_every_instance_is_timed_in_both_precisions() -> None:
    given = instances(512, 1024)
    told: list[tuple[str, int, int]] = []
    found = timed(given, 60.0, lambda *step: told.append(step))
    assert {one.key for one in given if one.work == "matmul"} <= found.keys()
    for high, low in found.values():
        assert 0 < high < 1
        assert 0 < low < 10
    assert told[0] == (given[0].key, 0, len(given))
    assert told[-1] == ("", len(given), len(given))


def test_a_larger_product_takes_longer() -> None:
    """By 64 times; one that is much smaller is not always told from no call."""
    small, large = (made("MatMul", *[(width, width)] * 2) for width in (256, 1024))
    large = dataclasses.replace(large, key="large")
    found = timed([small, large], 60.0)
    assert found["large"][0] > 10 * found["MatMul"][0]


def test_xla_products_are_timed() -> None:
    (one, *_) = instances(1024, xla=True)
    assert one.executor == "xla"
    assert 0 < timed([one], 60.0)[one.key][0] < 1


@pytest.mark.parametrize(("op", "sets"), [("MatMul", 7), ("Sub", 1)])
def test_a_product_alone_takes_turns_at_operands_that_no_cache_holds(
    monkeypatch: Any, op: str, sets: int
) -> None:
    """With one set, bfloat16 was 2.2 times as fast in an LSTM's gradient, in turns 3.4.

    The step of that LSTM took 301 ms in float32, and 298 by times taken in turns, but
    209 by the others (AVX512-BF16).
    """
    calls = []
    ready = stopwatch.ready
    monkeypatch.setattr(
        stopwatch, "ready", lambda *given: calls.append(given) or ready(*given)
    )
    # So many calls as one are short on an idle machine; on a busy one it is one.
    monkeypatch.setattr(operation_timer._Attempt, "_repeat", lambda *_: 64)
    one = made(op, *[(32, 32)] * 2)
    timed([dataclasses.replace(one, moved=10 * 2**20)], 60.0)
    last = max((given for given in calls if given[2][0] == op), key=lambda g: g[2][1])
    assert last[2][1] >= sets
    assert len(last[1]) == 2 * sets
    assert len(set(map(id, last[1]))) == len(last[1])


def test_a_long_product_is_not_repeated_for_its_operands() -> None:
    """Its time is that of arithmetic."""
    attempt = operation_timer._Attempt(made("MatMul", (8, 8), (8, 8)), None, 0.0, 0.0)
    assert attempt._copies(1) == 1


def test_constants_are_part_of_what_is_run() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [1024, 256])
        w = v1.placeholder(tf.float32, [256, 1024])
        y = tf.transpose(tf.matmul(x, w))
        tf.nn.softmax(tf.concat([y, y], 1))

    given = [one for one in wanted([part(build)]) if one.work != "cast"]
    assert {one.key.split()[0] for one in given} >= {"MatMul", "Transpose", "ConcatV2"}
    assert timed(given, 60.0).keys() == {one.key for one in given}


def pooling() -> None:
    x = v1.placeholder(tf.float32, [64, 32, 32, 64])
    y = tf.nn.conv2d(x, tf.ones([1, 1, 64, 64]), 1, "SAME")
    y = tf.nn.max_pool2d(y, 2, 2, "SAME")
    tf.gradients(tf.nn.conv2d(y, tf.ones([1, 1, 64, 8]), 1, "SAME"), y.op.inputs)


@pytest.mark.parametrize("low", [False, True])
def test_a_gradient_of_pooling_is_timed_behind_the_forward_kernel_of_its_type(
    low: bool,
) -> None:
    """Alone it took five times as long, as oneDNN's kernel found no places to take."""
    found = wanted([part(pooling)])
    (one,) = (each for each in found if each.key.startswith("MaxPool MaxPoolGrad "))
    body = operation_timer._body(one.forms[low], 3, 1)
    given = [tf.TensorSpec(o.shape, o.number) for o in one.forms[low].operands]
    nodes = tf.function(body).get_concrete_function(*given).graph.get_operations()
    (forward,) = (node for node in nodes if node.type == "MaxPool")
    again = [node for node in nodes if node.type == "MaxPoolGrad"]
    assert [node.inputs[1].op for node in again] == [forward] * 3
    assert all(node.inputs[0] is forward.inputs[0] for node in again)
    assert forward.outputs[0].dtype == (tf.bfloat16 if low else tf.float32)
    assert len(timed([one], 60.0)) == 1


def test_an_op_without_a_16_bit_kernel_takes_for_ever_there() -> None:
    one = made("Betainc", (64,), (64,), (64,))
    high, low = timed([one], 60.0)[one.key]
    assert 0 < high < 1
    assert low == math.inf


def test_what_fails_in_float32_is_left_out() -> None:
    bad = made("MatMul", (3, 4), (5, 6))
    unknown = made("NoSuchOp", (3,))
    good = made("Relu", (512, 1024))
    assert timed([bad, unknown, good], 60.0).keys() == {"Relu"}


def test_what_needs_too_much_memory_is_left_out(monkeypatch: Any) -> None:
    huge = dataclasses.replace(made("Relu", (2**20, 2**20)), moved=2**43)
    assert timed([huge], 60.0) == {}
    monkeypatch.setattr(memory, "free", lambda: 100.0)
    assert timed([made("Relu", (512, 1024))], 60.0) == {}


@pytest.mark.parametrize(
    ("free", "measured"),
    [
        (80 * 2**30, {"small", "2 GiB"}),
        (15 * 2**30, {"small"}),
        (None, {"small"}),
    ],
)
def test_what_is_large_is_measured_where_the_device_has_the_memory(
    free: float | None, measured: set[str], monkeypatch: Any
) -> None:
    """Both precisions of one that moves 2 GiB are a quarter of 16 GiB."""
    monkeypatch.setattr(memory, "free", lambda: free)
    small = dataclasses.replace(made("Relu", (512, 1024)), key="small", moved=2**22)
    large = dataclasses.replace(small, key="2 GiB", moved=2**31)
    assert timed([large, small], 60.0).keys() == measured


def test_what_is_hopeless_is_called_twice(monkeypatch: Any) -> None:
    calls = []
    ready = stopwatch.ready

    def counted(*args: Any) -> stopwatch.Runner:
        runner = ready(*args)

        def run() -> None:
            calls.append(args[1][0].dtype.name)
            runner.run()

        return dataclasses.replace(runner, run=run)

    monkeypatch.setattr(stopwatch, "ready", counted)
    monkeypatch.setattr(stopwatch, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(stopwatch, "SLOW_RATIO", 1e-9)
    one = made("Relu", (1024, 1024))
    high, low = timed([one], 60.0)[one.key]
    assert math.isfinite(low)
    assert calls.count("bfloat16") == 1  # after the call that made it ready
    assert calls.count("float32") == 1


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 0), (0.3, 200)])
def test_the_time_is_kept(seconds: float, most: int) -> None:
    given = [
        dataclasses.replace(made("Relu", (512, 1024 + i)), key=str(i))
        for i in range(1000)
    ]
    start = time.perf_counter()
    found = timed(given, seconds)
    assert time.perf_counter() - start < seconds + 1.0
    assert len(found) <= most
    assert bool(found) is bool(most)
    assert list(found) == [one.key for one in given[: len(found)]]


def test_a_job_is_not_disturbed() -> None:
    tf.random.set_seed(3)
    wanted_numbers = [tf.random.uniform([]).numpy() for _ in range(3)]
    tf.random.set_seed(3)
    numbers = []
    with tf.GradientTape() as tape:
        x = tf.constant(2.0)
        tape.watch(x)
        for _ in range(3):
            numbers.append(tf.random.uniform([]).numpy())
            timed([made("Relu", (64, 1024))], 1.0)
        y = x * x
    assert numbers == wanted_numbers
    assert tape.gradient(y, x).numpy() == 4.0


def test_what_is_surprising_is_measured_twice(monkeypatch: Any) -> None:
    given = [{"": 1e-6, "float32": 1e-3, "low": 9e-3}]
    given += [{"": 1e-6, "float32": 2e-3, "low": 3e-3}]
    monkeypatch.setattr(stopwatch, "rounds", lambda *args: given.pop(0))
    one = made("MatMul", (1024, 1024), (1024, 1024))  # not short enough to repeat
    assert timed([one], 60.0) == {"MatMul": (1e-3, 3e-3)}


def test_a_first_call_that_compiles_is_not_taken_for_the_operation(
    monkeypatch: Any,
) -> None:
    ready = stopwatch.ready

    def compiled(*args: Any) -> stopwatch.Runner:
        return dataclasses.replace(ready(*args), first=100.0)

    monkeypatch.setattr(stopwatch, "ready", compiled)
    one = dataclasses.replace(made("MatMul", *[(512, 512)] * 2), executor="xla")
    assert timed([one], 50.0) == {}, "there was no time for a second call"
    assert timed([one], 500.0)["MatMul"][1] < 10.0


def test_a_first_call_that_was_held_up_is_confirmed_where_there_is_time(
    monkeypatch: Any,
) -> None:
    ready = stopwatch.ready

    def held_up(*args: Any) -> stopwatch.Runner:
        return dataclasses.replace(ready(*args), first=100.0)

    monkeypatch.setattr(stopwatch, "ready", held_up)
    one = made("MatMul", *[(512, 512)] * 2)
    assert timed([one], 500.0)["MatMul"][1] < 10.0
    assert timed([one], 50.0)["MatMul"][1] == 100.0


@pytest.mark.parametrize("kind", [tf.errors.InternalError, tf.errors.NotFoundError])
@pytest.mark.parametrize("times", [1, 2])
def test_what_fails_once_in_16_bits_may_have_met_what_passes(
    kind: type[tf.errors.OpError], times: int, monkeypatch: Any
) -> None:
    ready, left = stopwatch.ready, [times]

    def failing(body: Any, operands: Any, *rest: Any) -> stopwatch.Runner:
        if operands and operands[0].dtype == tf.bfloat16 and left[0]:
            left[0] -= 1
            raise kind(None, None, "No algorithm worked!")
        return ready(body, operands, *rest)

    monkeypatch.setattr(stopwatch, "ready", failing)
    found = timed([made("MatMul", *[(512, 512)] * 2)], 60.0)["MatMul"]
    assert math.isinf(found[1]) is (times == 2)


def test_what_fails_after_it_has_run_is_left_out(monkeypatch: Any) -> None:
    def fails(*args: Any) -> dict[str, float]:
        raise tf.errors.UnknownError(None, None, "driver")

    monkeypatch.setattr(stopwatch, "rounds", fails)
    assert timed([made("MatMul", *[(512, 512)] * 2)], 60.0) == {}
