"""`crossing`: one tensor, one value, one list, whatever functions they are in."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from rewriting import analysis_of, context_of, settled, spec, traced

import amp
from amp.graph_rewrite.candidates.call_values import CallValues
from amp.graph_rewrite.candidates.running_sums import running_sums
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import loop_invariants
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.rewrite import rewrite

POLICY = amp.Policy(dtype="bfloat16", assignment="all", strict=True)


def crossed(fn: object, *specs: tf.TensorSpec) -> tuple[ir.Module, CallValues]:
    module, _ = traced(fn, *specs)
    module = loop_invariants.hoist_invariants(inline(module))
    context = context_of(module)
    return module, analysis_of(module, context).call_values


def powers(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(
        lambda i, y: i < 3,
        lambda i, y: (i + 1, tf.matmul(y, w)),
        [tf.constant(0), x],
    )[1]


def test_an_invariant_argument_is_its_callers_tensor() -> None:
    module, crossing = crossed(powers, spec(4, 4), spec(4, 4))
    inner = [place for place, outer in crossing.alias.items() if outer[1] == ("w", 0)]
    assert {place[0].name.partition("_")[0] for place in inner} == {"while"}
    assert {crossing.source(place)[1] for place in inner} == {("w", 0)}


def test_what_changes_from_trip_to_trip_is_carried() -> None:
    _, crossing = crossed(powers, spec(4, 4), spec(4, 4))
    (value,) = crossing.carried
    assert value.begins is not None
    assert value.begins[1] == ("x", 0)
    assert len(value.made) == 3  # the output, and the argument of body and condition


def test_what_either_branch_returns_is_carried_and_arguments_are_the_callers() -> None:
    def fn(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        return tf.cond(flag, lambda: tf.matmul(x, x), lambda: tf.tanh(x))

    _, crossing = crossed(fn, spec(4, 4), spec(dtype=tf.bool))
    (value,) = crossing.carried
    assert value.begins is None
    assert len(value.returned) == 2
    assert {outer[1] for outer in crossing.alias.values()} == {("x", 0)}


def passed(y: tf.Tensor) -> tf.Tensor:
    """The same elements, by ops that only hand them on."""
    y = tf.ensure_shape(tf.stop_gradient(tf.reshape(y, [1, 16])), [1, 16])
    return tf.expand_dims(tf.squeeze(y, 0), 1)


def in_a_branch(y: tf.Tensor, x: tf.Tensor, add: bool = True) -> tf.Tensor:
    """The branch hands on what it is given, and what it adds is another's result."""
    big = tf.reduce_sum(x) > 0
    one = tf.cond(big, lambda: tf.matmul(x, x), lambda: x)
    return tf.cond(big, lambda: y + one if add else one, lambda: y)


def in_nested_branches(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    def inner() -> tf.Tensor:
        return tf.cond(x[0, 0] > 0, lambda: y + x, lambda: y)

    return tf.cond(x[0, 1] > 0, lambda: y, inner)


def sums(fn: object, *specs: tf.TensorSpec) -> set[str]:
    module, _ = traced(fn, *specs)
    module = loop_invariants.hoist_invariants(inline(module))
    made = analysis_of(module, context_of(module))
    graphs = {use: one.graph for use, one in made.uses.items()}
    return {
        graphs[use].nodes[name].op
        for value in made.call_values.carried
        for use, name in running_sums(value, graphs, made.call_values)
    }


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (lambda y, x: y + tf.matmul(x, x), {"AddV2"}),
        (lambda y, x: tf.identity(x) + tf.identity(y), {"AddV2"}),
        (lambda y, x: y * 0.5 + x, set()),  # what was there decays
        (lambda y, x: tf.matmul(y, x), set()),
        (lambda y, x: tf.identity(y), set()),
        (
            lambda y, x: tf.reshape(passed(y) + tf.reshape(x, [16, 1]), [4, 4]),
            {"AddV2", "Reshape", "EnsureShape", "StopGradient"}
            | {"Squeeze", "ExpandDims"},
        ),
        (lambda y, x: tf.reshape(passed(y), [4, 4]), set()),
        (lambda y, x: tf.where(x > 0, y + x, y), {"AddV2", "SelectV2"}),
        (lambda y, x: tf.where(x > 0, x, y), set()),
        (lambda y, x: tf.where(x > 0, x, y) + x, set()),  # a masked state's gradient
        (lambda y, x: tf.concat([y[1:], x[:1] + x[1:2]], 0), set()),  # a window
        (in_a_branch, {"AddV2"}),
        (lambda y, x: in_a_branch(y, x, add=False), set()),
        (in_nested_branches, {"AddV2"}),
    ],
)
def test_a_sum_that_grows_on_every_trip_is_found(step: object, found: set[str]) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        body = lambda i, y: (i + 1, step(y, x))  # noqa: E731
        return tf.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x])[1]

    assert sums(fn, spec(4, 4)) - {"Identity"} == found


@pytest.mark.parametrize(
    "step",
    [
        lambda i, y, a: y + a,
        lambda i, y, a: tf.where(i >= 0, y + a, y),
        lambda i, y, a: tf.cond(i >= 0, lambda: y + a, lambda: y),
        lambda i, y, a: tf.reshape(tf.reshape(y, [16]) + tf.reshape(a, [16]), [4, 4]),
    ],
    ids=["plain", "where", "cond", "reshape"],
)
def test_a_sum_over_the_trips_is_as_exact_as_float32_makes_it(step: object) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        body = lambda i, y: (i + 1, step(i, y, tf.matmul(x, x)))  # noqa: E731
        start = [tf.constant(0), x * 0]
        return tf.while_loop(lambda i, y: i < 1024, body, start)[1] @ x

    # In bfloat16 the sum would stop growing at 256 times its terms.
    x = np.eye(4, dtype=np.float32)
    got = amp.twin(fn, x, policy=POLICY)(x)
    np.testing.assert_array_equal(got, 1024 * x)


def listed(x: tf.Tensor) -> tf.Tensor:
    rows = tf.TensorArray(tf.float32, 3)
    for index in range(3):
        rows = rows.write(index, tf.matmul(x, x))
    return tf.tanh(tf.matmul(rows.read(0), rows.read(2)))


def test_all_ops_on_a_list_are_one_choice() -> None:
    _, crossing = crossed(listed, spec(4, 4))
    assert set(crossing.lists.values()) == {0}
    assert not crossing.open
    module, _ = traced(listed, spec(4, 4))
    report = rewrite(module, settled()).report
    types = {d.dtype for d in report.decisions if d.op.startswith("TensorList")}
    assert types == {"bfloat16"}


def test_a_list_that_leaves_the_function_stays_float32() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        handle = tf.raw_ops.TensorListFromTensor(
            tensor=tf.matmul(x, x), element_shape=[4]
        )
        return handle, tf.raw_ops.TensorListStack(
            input_handle=handle, element_shape=[4], element_dtype=tf.float32
        )

    module, crossing = crossed(fn, spec(4, 4))
    assert crossing.open == frozenset(crossing.lists.values())
    report = rewrite(module, settled()).report
    rules = {d.rule for d in report.decisions if d.op.startswith("TensorList")}
    assert rules == {"list"}


def test_one_op_on_a_list_that_has_to_be_float32_keeps_the_list_so() -> None:
    report = rewrite(
        traced(listed, spec(4, 4))[0], settled(keep=("*TensorListGetItem",))
    ).report
    found = {d.rule for d in report.decisions if d.op == "TensorListSetItem"}
    assert found == {"list"}


def handed_on(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return i + 1, y


def once(body: object, y: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, y: i < 1, body, [tf.constant(0), y])[1]


def read_by_one_branch(x: tf.Tensor) -> tf.Tensor:
    """The other takes it and has no use for it."""
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x + 1.0, lambda: tf.zeros([4, 4]))


@pytest.mark.parametrize(
    ("use", "unread"),
    [
        (lambda y: once(handed_on, y), True),
        (lambda y: once(lambda i, y: (i + 1, once(handed_on, y)), y), True),
        (lambda y: once(lambda i, y: (i + 1, y + 0 * once(handed_on, y)), y), True),
        (read_by_one_branch, False),
    ],
    ids=["a loop", "a loop within one", "one that reads it too", "one branch"],
)
def test_what_a_loop_only_hands_on_is_a_tensor_with_a_reader(
    use: object, unread: bool
) -> None:
    """In float32, as its functions do not turn; so its cast is in the plan."""

    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(use(tf.matmul(x, x)), x)

    _, crossing = crossed(fn, spec(4, 4))
    assert (len(crossing.unread) > 0) == unread
    report = rewrite(traced(fn, spec(4, 4))[0], settled()).report  # the plan is checked
    assert report.rewritten
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(amp.twin(fn, x, policy=POLICY)(x), fn(x))
