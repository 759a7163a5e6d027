"""What a rounded operand would spoil reads float32, and so does what computes it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import tensorflow as tf
from between_layers import WIDTH, Between, found
from rewriting import graph_def, rewritten, rules, settled, spec, traced, v1

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.rewrite import rewrite
from amp.integration.training import markers


def mean(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x, -1, keepdims=True, name="mean")


def centered_sum(x: tf.Tensor) -> tf.Tensor:
    return tf.subtract(x, mean(x), name="it")


def square_of_a_difference(x: tf.Tensor) -> tf.Tensor:
    return tf.math.squared_difference(x, tf.stop_gradient(mean(x)), name="it")


def variance_by_moments(x: tf.Tensor) -> tf.Tensor:
    squares = tf.reduce_mean(x * x, -1, keepdims=True)
    return x * tf.subtract(squares, tf.square(mean(x)), name="it")


def folded_norm(x: tf.Tensor) -> tf.Tensor:
    """As `tf.nn.batch_normalization` has it: a product and a sum with an offset."""
    inverse = tf.constant(0.7)
    offset = tf.subtract(0.3, mean(x) * inverse)
    return tf.add(x * inverse, offset, name="it")


def window_of_a_running_sum(x: tf.Tensor) -> tf.Tensor:
    total = tf.cumsum(x, -1)
    return tf.subtract(total, tf.roll(total, 1, -1), name="it")


CANCELS = [
    centered_sum,
    square_of_a_difference,
    variance_by_moments,
    folded_norm,
    window_of_a_running_sum,
]


@pytest.mark.parametrize("between", CANCELS)
def test_a_difference_that_may_cancel_reads_float32(between: Between) -> None:
    one = found(between)
    assert one["it"] == "cancels"
    assert one["biased"] == "cancels"
    assert (one["one"], one["two"]) == ("compute", "compute")


STEEP: dict[str, Between] = {
    "Log": lambda x: tf.math.log(x, name="it"),
    "Log1p": lambda x: tf.math.log1p(x, name="it"),
    "Exp": lambda x: tf.exp(x, name="it"),
    "Sin": lambda x: tf.sin(x, name="it"),
    "Acos": lambda x: tf.acos(x, name="it"),
    "floor": lambda x: x - tf.floor(x, name="it"),
    "nearest": lambda x: x - tf.round(x, name="it"),
    "remainder": lambda x: tf.math.floormod(x, 2.0, name="it"),
    "quotient": lambda x: tf.math.floordiv(x, 2.0, name="it"),
    "erfinv": lambda x: tf.raw_ops.Erfinv(x=tf.tanh(x), name="it"),
    "digamma": lambda x: tf.math.digamma(x, name="it"),
    "1 / (1 - x)": lambda x: tf.divide(1.0, tf.abs(1.0 - x), name="it"),
    "1 / (1 + elu)": lambda x: tf.math.reciprocal(tf.nn.elu(x) + 1.0, name="it"),
    "1 / (1.7581 + selu)": lambda x: tf.math.reciprocal(
        tf.nn.selu(x) + 1.7581, name="it"
    ),
    "1 / (1 + tanh)": lambda x: tf.divide(x, 1.0 + tf.tanh(x), name="it"),
    "rsqrt": lambda x: tf.math.rsqrt(1.0 - tf.square(x) + 1e-3, name="it"),
}


@pytest.mark.parametrize("name", STEEP)
def test_a_steep_function_reads_float32(name: str) -> None:
    one = found(STEEP[name])
    assert one["it"] in ("steep", "listed", "range")
    assert one["biased"] in ("steep", "decision")


THROUGH: dict[str, Between] = {
    "a maximum": lambda x: x * tf.sin(tf.reduce_max(x, -1, True, name="kept")),
    "a power": lambda x: tf.exp(-tf.pow(x, 1.5, name="kept")),
    "a product": lambda x: x * (1 / (1.0 - tf.reduce_prod(x, -1, True, name="kept"))),
}


@pytest.mark.parametrize("name", THROUGH)
def test_what_is_float32_by_itself_is_no_end(name: str) -> None:
    one = found(lambda x: THROUGH[name](tf.nn.relu(x, name="before")))
    assert one["kept"] == "listed"
    assert one["before"] == one["biased"] in ("steep", "cancels")


OUTER: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "einsum": lambda at, rates: tf.einsum("i,j->ij", at, rates),
    "einsum of batches": lambda at, rates: tf.einsum(
        "bi,j->bij", tf.reshape(at, [2, -1]), rates
    ),
    "product": lambda at, rates: tf.matmul(at[:, None], rates[None]),
    "transposed": lambda at, rates: tf.matmul(at[None], rates[None], transpose_a=True),
    "batches": lambda at, rates: tf.matmul(at[None, :, None], rates[None, None]),
}


@pytest.mark.parametrize("name", OUTER)
def test_an_outer_product_is_no_sum_that_is_rounded_anyway(name: str) -> None:
    """Angles of rotary positions: in bfloat16 the 2,000th is off by a turn."""

    def build() -> None:
        at = v1.placeholder(tf.float32, [None])
        angles = OUTER[name](at, tf.range(8.0))
        tf.matmul(tf.sin(tf.reshape(angles, [-1, 8])), tf.ones([8, 8]), name="last")

    for decision in rewritten(graph_def(build)).report.decisions:
        if decision.op in ("Einsum", "MatMul", "BatchMatMulV2"):
            rule = "compute" if decision.node == "last" else "steep"
            assert (decision.node, decision.rule) == (decision.node, rule)


@pytest.mark.parametrize("width", [2, None])
def test_a_product_that_sums_or_may_is_16_bit_before_a_sine(width: int | None) -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [8, width])
        tf.sin(tf.matmul(x, x, transpose_b=True, name="it"), name="sine")
        tf.matmul(x, x, transpose_b=True, name="other")

    assert rules(rewritten(graph_def(build)).report)["it"] == "compute"


def test_what_the_policy_allows_may_be_steep() -> None:
    one = found(STEEP["Exp"], allow=("Exp",))
    assert (one["it"], one["biased"]) == ("follow", "follow")


@pytest.mark.parametrize(
    ("dtype", "factor", "rule"),
    [
        ("bfloat16", 0.999, "decay"),
        ("bfloat16", 0.99, "decay"),
        ("bfloat16", 0.9, "follow"),
        ("bfloat16", 1.0, "follow"),
        ("bfloat16", 0.1, "follow"),
        ("float16", 0.999, "decay"),
        ("float16", 0.99, "follow"),
    ],
)
def test_a_factor_near_one_decays(dtype: str, factor: float, rule: str) -> None:
    """Half a unit in the last place over 1 - factor is more than 1/16, or less."""
    half_a_unit = {"bfloat16": 2.0**-9, "float16": 2.0**-12}[dtype]
    decays = factor != 1.0 and half_a_unit / abs(1.0 - factor) > 1 / 16
    assert decays == (rule == "decay")
    one = found(lambda x: tf.multiply(x, factor, name="it"), dtype=dtype)
    assert one["it"] == rule


def test_a_factor_near_one_that_a_loop_is_given_decays() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        factor = tf.constant(0.999)

        def body(h: tf.Tensor) -> tuple[tf.Tensor]:
            return (tf.multiply(tf.matmul(h, x), factor, name="it"),)

        start = [x]
        (h,) = tf.while_loop(lambda h: True, body, start, maximum_iterations=3)
        return tf.matmul(h, x)

    report = rewrite(traced(fn, spec(WIDTH, WIDTH))[0], settled()).report
    assert {d.rule for d in report.decisions if d.node.endswith("it")} == {"decay"}


NOT: dict[str, Between] = {
    "a sum with its own mean": lambda x: tf.add(x, mean(x), name="it"),
    "1 - x": lambda x: tf.subtract(1.0, x, name="it"),
    "halves of one tensor": lambda x: tf.tile(
        tf.subtract(*tf.split(x, 2, -1), name="it"), [1, 2]
    ),
    "a quotient by a sum": lambda x: tf.divide(x, 1.0 + mean(tf.abs(x)), name="it"),
    "a quotient by a tanh": lambda x: tf.divide(x, tf.tanh(x), name="it"),
    "1 / -x": lambda x: tf.math.reciprocal(tf.negative(x), name="it"),
    "GELU": lambda x: tf.identity(tf.nn.gelu(x), name="it"),
}


@pytest.mark.parametrize("name", NOT)
def test_well_conditioned_arithmetic_is_no_hazard(name: str) -> None:
    one = found(NOT[name])
    assert one["it"] in ("follow", "move")
    assert one["biased"] == "follow"


def test_what_flows_back_is_not_looked_at_as_the_forward_pass_is() -> None:
    """The gradient of a softmax subtracts a sum from what it is a sum of."""
    one = found(lambda x: tf.nn.softmax(x, name="it"), gradient=True)
    backward = {one[name] for name in one if name.startswith("gradients/it")}
    assert "cancels" not in backward
    assert "follow" in backward


def test_gradients_times_operands_of_a_difference_stay_float32() -> None:
    one = found(variance_by_moments, gradient=True)
    backward = [one[name] for name in one if name.startswith("gradients/mul")]
    assert "cancels" in backward


def test_a_port_that_is_float32_in_any_case_needs_nothing() -> None:
    def between(x: tf.Tensor) -> tf.Tensor:
        made = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(x, [1, 2, 4, WIDTH]),
            scale=tf.ones([WIDTH]),
            offset=tf.zeros([WIDTH]),
            mean=[],
            variance=[],
            name="norm",
        )
        tf.exp(made.batch_mean, name="of_the_mean")
        return tf.reshape(made.y, [WIDTH, WIDTH])

    assert found(between)["norm"] == "follow"


def squares(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x * x, -1, keepdims=True)


def inner(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.matmul(x, y, transpose_b=True, name="inner")


DISTANCES: dict[str, Between] = {
    "of each other": lambda x: squares(x) - 2 * inner(x, x) + tf.transpose(squares(x)),
    "added up": lambda x: -2 * inner(x, x) + squares(x) + tf.transpose(squares(x)),
    "scaled first": lambda x: squares(x) + inner(-2 * x, x) + tf.transpose(squares(x)),
    "of centres": lambda x: squares(x) - 2 * inner(x, tf.eye(WIDTH)) + 1.0,
    "squares by einsum": lambda x: (
        tf.einsum("ij,ij->i", x, x)[:, None]
        + tf.einsum("...j,...j->...", x, x)
        - 2 * inner(x, x)
    ),
    "by einsum": lambda x: (
        squares(x) - 2 * tf.einsum("ij,kj->ik", x, x, name="inner") + 1.0
    ),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_from_a_product_and_sums_of_its_operand_are_float32(
    name: str,
) -> None:
    """|x|^2 - 2 x.y + |y|^2: of equal points 0, if nothing is rounded on one side only.

    Whether by far or near, and what is made of the distances: products before are not.
    """

    def between(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(DISTANCES[name](x))

    one = found(between, assignment="all")
    held = [one[name] for name in ("inner", "inner/Einsum") if name in one]
    assert held == ["cancels"]
    assert (one["one"], one["two"]) == ("compute", "compute")


def test_a_product_beside_sums_of_something_else_is_16_bit() -> None:
    def between(x: tf.Tensor) -> tf.Tensor:
        return inner(x, x) - squares(tf.ones([WIDTH, WIDTH]))

    assert found(between, assignment="all")["inner"] == "compute"


def test_a_product_of_what_is_averaged_too_is_16_bit() -> None:
    """As where a layer has a part for each position and one for all of them."""

    def between(x: tf.Tensor) -> tf.Tensor:
        every = tf.matmul(mean(tf.transpose(x)), tf.ones([1, WIDTH]), name="every")
        return inner(x, tf.ones([WIDTH, WIDTH])) + every

    one = found(between, assignment="all")
    assert (one["inner"], one["every"]) == ("compute", "compute")


def test_a_layer_beside_its_own_normalized_input_is_16_bit() -> None:
    """What the product reads is itself reduced by nobody, but what that comes from."""

    def between(x: tf.Tensor) -> tf.Tensor:
        centered = x - mean(x)
        return centered + inner(centered, tf.ones([WIDTH, WIDTH]))

    assert found(between, assignment="all")["inner"] == "compute"


def unscaled(x: tf.Tensor) -> tf.Tensor:
    with markers.attribute_scope(ir.UNSCALE):
        return tf.identity(x)


def clipped_by_norm(x: tf.Tensor) -> tf.Tensor:
    """As TensorFlow and Keras have it; the difference is to be nan where a norm is."""
    norm = tf.sqrt(tf.reduce_sum(x * x))
    return x * (tf.minimum(1.0 / norm, 1.0) + (norm - norm))


UPDATES: dict[str, Between] = {
    "centered": centered_sum,
    "by moments": variance_by_moments,
    "clipped": clipped_by_norm,
    "steep": lambda x: tf.sin(1e3 * x),
    "by pole": lambda x: 1.0 / (1.0 - x),
}
# What reads the bias of a layer, and whether that is then float32.
READERS: dict[str, tuple[Callable[[Between, tf.Tensor], tf.Tensor], bool]] = {
    "a gradient": (lambda update, x: update(unscaled(x)), False),
    "beside a gradient": (lambda update, x: update(x) * unscaled(tf.abs(x)), True),
    "of a further gradient": (lambda update, x: unscaled(update(unscaled(x))), True),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_holds_no_gradient_in_float32(
    name: str, reader: str, dtype: str
) -> None:
    """It reads them as products made them; what it has otherwise it holds."""
    reads, held = READERS[reader]

    def fn(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        one = tf.matmul(x, tf.ones([WIDTH, WIDTH]))
        biased = tf.nn.bias_add(one, tf.ones([WIDTH]), name="biased")
        two = tf.matmul(biased, tf.ones([WIDTH, WIDTH]))
        return two, reads(UPDATES[name], biased)

    module, _ = traced(fn, spec(WIDTH, WIDTH))
    policy = settled(dtype=dtype, emulate=dtype == "float16")
    (one,) = [d for d in rewrite(module, policy).report.decisions if d.node == "biased"]
    assert (one.dtype == "float32") == held
    assert held == (one.rule in ("cancels", "steep"))


def test_an_update_holds_no_product_for_what_is_summed_beside_it() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        x = tf.matmul(x, tf.ones([WIDTH, WIDTH]))
        return squares(x) - unscaled(inner(x, x))

    module, _ = traced(fn, spec(WIDTH, WIDTH))
    assert rules(rewrite(module, settled()).report)["inner"] == "compute"


def test_a_repeated_constant_is_looked_at_once() -> None:
    """It is one number in the graph; spread out it would take as much as its shape."""
    side = 2048

    def build() -> None:
        x = v1.placeholder(tf.float32, [side, side])
        tf.matmul(x * tf.constant(0.5, shape=[side, side]), x)

    proto = graph_def(build)
    tracemalloc.start()
    try:
        rewritten(proto)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * side * side / 2  # half of it in float64
