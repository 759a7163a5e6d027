"""`planned_casts`: each cast in the function that needs it, as often as that runs."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import tensorflow as tf
from rewriting import settled, spec, traced

import amp
from amp.graph_rewrite.assign.decide import decide
from amp.graph_rewrite.cost.op_instance import Instance, Times
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.plan import Cast, Plan
from amp.graph_rewrite.rewrite import prepare, rewrite

SIZE = 4
ARGS = (spec(SIZE, SIZE), spec(dtype=tf.bool))
Plans = Mapping[FunctionUse, Plan]


def planned(fn: object, *args: tf.TensorSpec) -> Plans:
    return decide(prepare(traced(fn, *args)[0], settled()).priced)


def casts(plans: Plans, function: str) -> frozenset[Cast]:
    """Of the one function in whose name a text is; "" for the main function."""
    main = next(iter(plans))
    uses = [use for use in plans if function in use.name and use != main]
    (use,) = uses if function else [main]
    return plans[use].casts


def one_branch(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
    return tf.cond(flag, lambda: tf.math.lgamma(x @ x), lambda: tf.math.lgamma(x))


def test_what_only_one_branch_reads_in_16_bits_is_cast_in_it() -> None:
    plans = planned(one_branch, *ARGS)
    assert not casts(plans, "")
    (then,) = (use for use in plans if "true" in use.name)
    assert len([cast for cast in plans[then].casts if cast.down]) == 1
    assert not plans[then].interface.args
    assert not casts(plans, "false")


def test_what_is_made_in_16_bits_is_cast_up_in_the_branch_that_reads_float32() -> None:
    def fn(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        y = x @ x
        return tf.cond(flag, lambda: tf.math.lgamma(y), lambda: tf.ones_like(y))

    plans = planned(fn, *ARGS)
    assert casts(plans, "") == {(("x", 0), True)}
    assert {cast.down for cast in casts(plans, "true")} == {False}


def test_what_the_caller_casts_anyway_is_passed_in_that_type() -> None:
    def fn(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        return tf.math.lgamma(x @ x) + one_branch(x, flag)

    plans = planned(fn, *ARGS)
    assert (("x", 0), True) in casts(plans, "")
    assert not any(cast.down for cast in casts(plans, "true"))


def test_what_all_branches_read_in_16_bits_is_cast_once_before_them() -> None:
    def fn(x: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        one = lambda scale: lambda: tf.math.lgamma(x @ (x * scale))  # noqa: E731
        return tf.switch_case(index, [one(1.0), one(2.0), one(3.0)])

    plans = planned(fn, spec(SIZE, SIZE), spec(dtype=tf.int32))
    assert casts(plans, "") == {(("x", 0), True)}


def test_a_loop_in_a_branch_is_given_the_cast_that_is_made_before_it() -> None:
    def fn(x: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
        def loop() -> tf.Tensor:
            step = lambda i, y: (i + 1, tf.math.lgamma(y @ x))  # noqa: E731
            return tf.while_loop(lambda i, y: i < 3, step, [0, tf.ones_like(x)])[1]

        return tf.cond(flag, loop, lambda: tf.ones_like(x))

    made = rewrite(traced(fn, *ARGS)[0], settled()).graph
    found = {
        name: [n for n in graph.nodes.values() if n.types("DstT") == (ir.BFLOAT16,)]
        for name, graph in made.functions.items()
        if "__amp" in name
    }
    assert [len(nodes) for name, nodes in found.items() if "cond_true" in name] == [1]
    (body,) = (name for name in found if "while_body" in name)
    assert not any(node.inputs[0][0] == "x" for node in found[body])
    assert not [n for n in made.main.nodes.values() if n.op == "Cast"]


def saved(gain: float, fn: Callable[..., object]) -> float:
    """What plans save where every product gains `gain`, all in seconds of a cast."""
    amp.enable(dtype="bfloat16")  # from here on shapes are remembered
    amp.disable()
    module, _ = traced(fn, *ARGS)
    priced = prepare(module, settled(assignment="cost")).priced.without_memory()
    uses = {}
    for use, one in priced.uses.items():
        cast, nodes = one.cost_model.cast((SIZE, SIZE)), one.use_analysis.graph.nodes
        times = {
            name: (gain * cast, 0.0) if nodes[name].op == "MatMul" else (0.0, 0.0)
            for name in one.times
        }
        uses[use] = dataclasses.replace(one, times=times)
    plans = decide(dataclasses.replace(priced, uses=uses))
    return sum(
        uses[use].use_analysis.weight * (plan.seconds32 - plan.seconds16) / cast
        for use, plan in plans.items()
    )


def test_a_cast_in_a_branch_is_priced_by_how_often_the_branch_runs() -> None:
    """The product needs two casts, one in and one out, and all run half the time.

    With a cast before the branch, it would have to gain three to be converted.
    """
    assert saved(2.5, one_branch) == pytest.approx((2.5 - 2) / 2)
    assert saved(1.9, one_branch) == 0.0


def random_branches(seed: int) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Nested branches and loops that read what is around them in both types."""
    draw = random.Random(seed)
    made: dict[int, int] = {}

    def choice(at: int, count: int) -> int:  # the same at each trace
        return made.setdefault(at, draw.randrange(120)) % count

    def leaf(at: int, x: tf.Tensor) -> tf.Tensor:
        return [x @ x, tf.math.lgamma(x), tf.zeros_like(x)][choice(at, 3)]

    def level(depth: int, at: int, xs: list[tf.Tensor], flag: tf.Tensor) -> tf.Tensor:
        x = xs[choice(-at, len(xs))]
        inner = lambda i, *new: level(depth - 1, 3 * at + i, [*xs, *new], flag)  # noqa: E731
        if depth == 0:
            return leaf(at, x)
        if choice(at, 4) == 0:
            step = lambda i, y: (i + 1, y + inner(1, y))  # noqa: E731
            return tf.while_loop(lambda i, y: i < 2, step, [0, leaf(at, x)])[1]
        if choice(at, 4) == 1:
            return inner(1, leaf(at, x)) + inner(2)
        return tf.cond(flag, lambda: inner(1), lambda: inner(2)) + inner(3)

    return lambda x, flag: level(3, 1, [x, tf.math.lgamma(x), x @ x], flag)


@pytest.mark.parametrize("assignment", ["all", "cost"])
@pytest.mark.parametrize("seed", range(8))
def test_the_casts_made_are_those_planned_wherever_they_are(
    seed: int, assignment: str
) -> None:
    """`rewrite` checks it, and that a second rewrite saves nothing."""
    module, _ = traced(random_branches(seed), *ARGS)
    draw = random.Random(seed)

    def timer(instances: Sequence[Instance]) -> Mapping[str, Times]:
        highs = {one.key: one.predicted[0] for one in instances}
        return {key: (s, s * 10 ** draw.uniform(-1, 0.5)) for key, s in highs.items()}

    rewrite(module, settled(assignment=assignment), timer=timer)


@pytest.mark.parametrize("emulate", [False, True])
def test_values_agree_whichever_branch_runs(emulate: bool) -> None:
    policy = amp.Policy(
        dtype="bfloat16", assignment="all", emulate=emulate, strict=True
    )
    x = np.linspace(0.1, 0.5, SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    fn = lambda x, flag: tf.cond(flag, lambda: x @ x, lambda: tf.sin(x))  # noqa: E731
    twin = amp.twin(fn, x, tf.constant(True), policy=policy)
    for flag in (tf.constant(True), tf.constant(False)):
        got, want = twin(x, flag), fn(x, flag)
        # Two roundings of operands and one of the result, of 2**-9 each.
        assert np.abs(got - want).max() <= 4 * 2.0**-9 * np.abs(want).max()
