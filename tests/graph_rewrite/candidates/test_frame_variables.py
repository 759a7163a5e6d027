"""Which loop variables and arrays of TensorFlow 1 stay float32, and by which rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import frames as built
import pytest
import tensorflow as tf
from rewriting import GraphDef, decisions, low, module_of, nodes, rewritten, v1

from amp.graph_rewrite.graph import frames
from amp.graph_rewrite.plan import Reason

Body = Callable[[Any, Any, Any], Any]


def looped(
    body: Body, begin: Callable[[Any], Any] = lambda x: tf.reverse(x, [0])
) -> GraphDef:
    """A loop with one float32 state, multiplied by w after the loop."""

    def build() -> None:
        x, w = built.given()
        step = lambda i, h: (i + 1, body(i, h, w))  # noqa: E731
        start = [tf.constant(0), begin(x)]
        _, h = tf.while_loop(lambda i, _: i < 9, step, start, name="loop")
        tf.matmul(h, w, name="last")

    return built.proto(build)


def reasons(proto: GraphDef, **policy: Any) -> set[tuple[str, Reason]]:
    """The types of the nodes of the last loop variable, and why they have them."""
    report = rewritten(proto, feeds=built.FEEDS, **policy).report
    *_, variable = frames.loop_variables(module_of(proto).main)
    found = decisions(report)
    return {
        (found[n].dtype, Reason(found[n].rule, found[n].cause)) for n in variable.nodes
    }


def types_of(proto: GraphDef, **policy: Any) -> set[str]:
    return {dtype for dtype, _ in reasons(proto, **policy)}


def why(proto: GraphDef, **policy: Any) -> set[Reason]:
    found = reasons(proto, **policy)
    assert {dtype for dtype, _ in found} == {"float32"}
    return {reason for _, reason in found}


def product(i: Any, h: Any, w: Any) -> Any:
    return tf.nn.relu(tf.matmul(h, w, name="product"), name="relu")


def test_a_state_that_a_product_makes_is_16_bit() -> None:
    assert types_of(looped(product)) == {"bfloat16"}


def test_a_state_that_only_moves_is_16_bit_where_a_product_reads_it() -> None:
    proto = looped(lambda i, h, w: tf.reverse(h, [0]))
    assert types_of(proto) == {"bfloat16"}


def test_a_state_without_products_stays_float32() -> None:
    """Rounding it on every trip would save no cast."""
    proto = looped(lambda i, h, w: tf.tanh(h, name="tanh"))
    assert why(proto) == {
        Reason("loop", "loop/tanh gives its next value"),
    }


def test_a_state_that_the_condition_reads_stays_float32() -> None:
    def build() -> None:
        x, w = built.given()
        step = lambda h: (tf.matmul(h, w),)  # noqa: E731
        (h,) = tf.while_loop(
            lambda h: tf.reduce_max(h) < 9.0, step, [tf.reverse(x, [0])], name="loop"
        )
        tf.matmul(h, w, name="last")

    assert why(built.proto(build)) == {Reason("decision", "loop/Merge")}


def test_a_sum_over_the_trips_stays_float32() -> None:
    def step(i: Any, h: Any, w: Any) -> Any:
        return h + tf.tanh(tf.matmul(tf.reverse(h, [0]), w, name="product"))

    proto = looped(step)
    (reason,) = why(proto)
    assert reason.rule == "count"
    report = rewritten(proto, feeds=built.FEEDS).report
    assert decisions(report)["loop/add_1"].rule == "count"
    assert "loop/product" in low(report)


@pytest.mark.parametrize(
    "step",
    [
        lambda i, h, a: tf.cond(i >= 0, lambda: h + tf.tanh(a), lambda: h),
        lambda i, h, a: tf.where(i >= 0, h + tf.tanh(a), h),
    ],
    ids=["cond", "where"],
)
def test_a_sum_over_some_of_the_trips_stays_float32(step: Any) -> None:
    proto = looped(lambda i, h, w: step(i, h, tf.matmul(h[::-1], w, name="product")))
    (reason,) = why(proto)
    assert reason.rule == "count"
    assert "loop/product" in low(rewritten(proto, feeds=built.FEEDS).report)


def test_a_decay_stays_float32_with_what_it_decays() -> None:
    proto = looped(lambda i, h, w: tf.multiply(product(i, h, w), 0.999, name="decayed"))
    (reason,) = why(proto)
    assert reason == Reason("loop", "loop/decayed gives its next value")


def test_a_value_to_begin_with_that_has_to_be_exact_keeps_the_state_float32() -> None:
    proto = looped(product, lambda x: tf.fill([2, 4], tf.constant(1e-42)))
    assert {reason.rule for reason in why(proto)} <= {"range", "loop"}
    kept = looped(product, lambda x: tf.reverse(x, [0], name="begin"))
    assert Reason("loop", "begin gives its initial value") in why(kept, keep=("begin",))


def test_one_node_that_is_kept_keeps_the_whole_variable() -> None:
    found = why(looped(product), keep=("loop/Switch_1",))
    assert Reason("loop", "loop/Switch_1 is of the same loop variable") in found


def test_a_difference_keeps_what_goes_around_the_loop_to_it_float32() -> None:
    """x - mean(x) reads the state, which comes around through a move."""

    def centred(i: Any, h: Any, w: Any) -> Any:
        other = h - tf.reduce_mean(h, 1, keepdims=True)
        return tf.reverse(tf.tanh(other + h, name="feeds"), [0], name="moved")

    proto = looped(centred)
    report = rewritten(proto, feeds=built.FEEDS).report
    found = decisions(report)
    assert found["loop/moved"].rule == "cancels"
    assert found["loop/feeds"].rule == "cancels"


def strange() -> None:
    """A loop of which another node reads the value to begin with."""
    raw = tf.raw_ops
    x, w = built.given()
    enter = raw.Enter(data=tf.reverse(x, [0]), frame_name="frame")
    weight = raw.Enter(data=w, frame_name="frame", is_constant=True)
    count = raw.Enter(data=tf.constant(0), frame_name="frame")
    at, _ = raw.Merge(inputs=[count, count])
    merge, _ = raw.Merge(inputs=[enter, enter], name="joined")
    go = raw.LoopCond(input=at < 3)
    _, i = raw.Switch(data=at, pred=go)
    out, value = raw.Switch(data=merge, pred=go, name="taken")
    made = tf.matmul(value, weight, name="product")
    tf.matmul(enter, weight, name="beside")
    merge.op._update_input(1, raw.NextIteration(data=made, name="back"))
    at.op._update_input(1, raw.NextIteration(data=i + 1))
    tf.matmul(raw.Exit(data=out, name="out"), w, name="last")


def test_a_loop_that_is_built_otherwise_stays_float32() -> None:
    proto = built.proto(strange)
    twin = rewritten(proto, feeds=built.FEEDS)
    found = decisions(twin.report)
    assert found["product"].dtype == "bfloat16"
    for name in ("joined", "taken", "back", "out"):
        assert found[name].dtype == "float32"
        assert found[name].rule == "loop"
    assert nodes(twin.graph)["joined"] == nodes(proto)["joined"]


def array_read_at(index: Callable[[Any], Any]) -> GraphDef:
    def build() -> None:
        x, w = built.given()
        rows = v1.TensorArray(tf.float32, 4, clear_after_read=False)
        rows = rows.unstack(tf.tile(x, [2, 1])[:, None])

        def body(i: Any, h: Any) -> Any:
            return i + 1, tf.matmul(rows.read(index(i)) + h, w)

        begin = [tf.constant(0), tf.zeros([1, 4])]
        _, h = tf.while_loop(lambda i, _: i < 4, body, begin, name="loop")
        tf.matmul(h, w, name="last")

    return built.proto(build)


@pytest.mark.parametrize(
    ("index", "dtype"),
    [
        (lambda i: i, "bfloat16"),
        (lambda i: 3 - i, "bfloat16"),
        (lambda i: tf.identity(i) + 1, "bfloat16"),
        (lambda i: tf.constant(0), "float32"),
        (lambda i: i // 2, "float32"),
        (lambda i: i - i, "float32"),
    ],
)
def test_an_array_is_16_bit_if_each_trip_reads_another_element(
    index: Callable[[Any], Any], dtype: str
) -> None:
    """The gradient of an element that is read again is added up in the array."""
    report = rewritten(array_read_at(index), feeds=built.FEEDS).report
    found = decisions(report)
    arrays = {d.dtype for d in found.values() if d.op.startswith("TensorArray")}
    assert arrays == {dtype}
    if dtype == "float32":
        assert found["loop/TensorArrayReadV3"].rule == "count"
        assert found["TensorArray"].rule == "list"


def test_an_array_that_an_unknown_op_takes_stays_float32() -> None:
    def build() -> None:
        x, w = built.given()
        rows = v1.TensorArray(tf.float32, 2).unstack(x)
        handle = tf.raw_ops.IdentityN(input=[rows.handle])[0]
        tf.raw_ops.DestroyResourceOp(resource=handle)
        tf.matmul(rows.stack(), w, name="last")

    report = rewritten(built.proto(build), feeds=built.FEEDS).report
    arrays = [d for d in report.decisions if d.op.startswith("TensorArray")]
    assert {(d.dtype, d.rule) for d in arrays} == {("float32", "list")}
