"""`ranges`: what float32 keeps finite stays finite, and close, in float16.

The expressions are those that TensorFlow's own pass turns non-finite. Each is computed
with every candidate converted, native and emulated, results and gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from rewriting import graph_def, low, rewritten, rules, run, settled, spec, traced, v1

import amp
from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.graph import ir
from amp.integration.training import markers

Build = Callable[[tf.Tensor], tf.Tensor]
SIZE = 16


def log_softmax(y: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.maximum(tf.nn.softmax(y), 1e-12))


def log_sigmoid(y: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.sigmoid(y) + 1e-8)


def normalised(y: tf.Tensor) -> tf.Tensor:
    return y / (tf.sqrt(tf.reduce_sum(y * y, -1, keepdims=True) + 1e-16) + 1e-8)


def scaled_by_root(y: tf.Tensor) -> tf.Tensor:
    return y * tf.math.rsqrt(tf.reduce_mean(y * y, -1, keepdims=True) + 1e-12)


def masked(y: tf.Tensor) -> tf.Tensor:
    keep = tf.constant([[1.0] * 8 + [0.0] * 8] * 15 + [[0.0] * 16])  # last row: none
    return tf.nn.softmax(y + (1.0 - keep) * -1e9)


def selected(y: tf.Tensor) -> tf.Tensor:
    keep = tf.constant([[True] * 8 + [False] * 8] * 15 + [[False] * 16])
    return tf.nn.softmax(tf.where(keep, y, tf.constant(-1e9)))


def layer_norm(y: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(y, -1, keepdims=True)
    return (y - mean) * tf.math.rsqrt(variance + 1e-3)


def unit_length(y: tf.Tensor) -> tf.Tensor:
    return tf.math.l2_normalize(y, -1)


def length_by_einsum(y: tf.Tensor) -> tf.Tensor:
    return y / tf.sqrt(tf.einsum("ij,ij->i", y, y)[:, None] + 1.0)


def product_and(build: Build, seed: float) -> Callable[[], None]:
    """x @ w, the expression, its sum by random weights, and the gradient to x."""

    def make() -> None:
        x = v1.placeholder(tf.float32, [SIZE, SIZE], name="x")
        # An orthogonal matrix of 0 and 1: the product is exact in both types.
        w = tf.constant(np.roll(np.eye(SIZE, dtype=np.float32), 3, 1))
        result = tf.identity(build(tf.matmul(x, w, name="product")), name="result")
        weights = np.linspace(-1, 1, SIZE * SIZE, dtype=np.float32) * seed
        seeds = tf.constant(weights.reshape(SIZE, SIZE))
        (gradient,) = tf.gradients(result, x, grad_ys=[seeds])
        tf.identity(gradient, name="gradient")

    return make


EXPRESSIONS = [log_softmax, log_sigmoid, normalised, scaled_by_root, masked, selected]
NORMS = [normalised, scaled_by_root, layer_norm, unit_length, length_by_einsum]


def inputs(kind: str) -> np.ndarray:
    random = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    if kind == "zero":
        return np.zeros_like(random)
    # Values that float16 holds, so that the cast of x itself is exact.
    return (
        (random * {"small": 1, "large": 12, "huge": 4096}[kind])
        .astype(np.float16)
        .astype("f")
    )


@pytest.mark.parametrize("emulate", [False, True], ids=["native", "emulated"])
@pytest.mark.parametrize("kind", ["small", "large", "zero"])
@pytest.mark.parametrize("build", EXPRESSIONS)
def test_finite_in_float32_is_finite_and_close_in_float16(
    build: Build, kind: str, emulate: bool
) -> None:
    """The product is exact here, so what differs was rounded in the expression.

    Each 16-bit operation on the way adds at most 2**-11 of its value; there are fewer
    than 16 in a row: 2**-7. In the gradient, terms of the size of the incoming one may
    cancel, so the errors are compared with that where it is larger.
    """
    # The largest incoming gradient. At 0 some of these gradients are it times 1e8,
    # which has to be under 65504: float16 holds no more.
    seed = 2.0**-12 if kind == "zero" else 1.0
    proto = graph_def(product_and(build, seed))
    made = rewritten(proto, dtype="float16", emulate=emulate)
    assert "product" in low(made.report)
    feeds = {"x": inputs(kind)}
    with np.errstate(all="ignore"):
        wants = run(proto, ["result", "gradient"], feeds)
        found = run(made.graph, ["result", "gradient"], feeds)
    for want, got, size in zip(wants, found, (0.0, seed), strict=True):
        assert np.isfinite(want).all()
        assert np.isfinite(got).all()
        assert np.abs(got - want).max() <= 2.0**-7 * max(np.abs(want).max(), size)


@pytest.mark.parametrize("emulate", [False, True], ids=["native", "emulated"])
@pytest.mark.parametrize("kind", ["small", "large", "huge"])
@pytest.mark.parametrize("build", NORMS)
def test_a_norm_of_values_beyond_256_is_finite_and_close_in_float16(
    build: Build, kind: str, emulate: bool
) -> None:
    """A square of 256 is infinite in float16; the bound is that of the test above."""
    proto = graph_def(product_and(build, 1.0))
    made = rewritten(proto, dtype="float16", emulate=emulate)
    assert "product" in low(made.report)
    feeds = {"x": inputs(kind)}
    for name in ("result", "gradient"):
        (want,), (got,) = (run(g, [name], feeds) for g in (proto, made.graph))
        size = np.abs(want).max()
        assert size > 0
        assert np.abs(got - want).max() <= 2.0**-7 * max(size, name == "gradient")


def tail(build: Build, **fields: object) -> dict[str, str]:
    def make() -> None:
        x = v1.placeholder(tf.float32, [SIZE, SIZE], name="x")
        tf.identity(build(tf.matmul(x, x, name="product")), name="end")

    fields = {"dtype": "float16", **fields}
    return rules(rewritten(graph_def(make), **fields).report)


def test_an_epsilon_holds_its_readers_until_it_is_used_up() -> None:
    def build(y: tf.Tensor) -> tf.Tensor:
        shifted = tf.add(tf.nn.relu(y), 1e-8, name="shifted")
        quotient = tf.realdiv(y, shifted, name="quotient")
        return tf.matmul(tf.nn.relu(quotient, name="after"), y)

    found = tail(build)
    assert found["shifted"] == "range"
    assert found["quotient"] == "range"
    assert found["after"] != "range"
    assert tail(build, dtype="bfloat16")["shifted"] == "follow"  # which holds 1e-8


def in_units(y: tf.Tensor) -> tf.Tensor:
    """Into units that some columns have a billionth of, and back."""
    units = tf.constant([1.0, 2.0**-30] * (SIZE // 2))
    return tf.nn.relu(y * units) / units


def by_moved_units(y: tf.Tensor) -> tf.Tensor:
    column = tf.constant([[1.0], [2.0**-30]] * (SIZE // 2))
    units = tf.tile(tf.transpose(column), [SIZE, 1])
    return tf.nn.relu(y * units) / units


@pytest.mark.parametrize("emulate", [False, True], ids=["native", "emulated"])
@pytest.mark.parametrize("build", [in_units, by_moved_units])
def test_values_of_a_constant_that_round_to_zero_divide_in_float32(
    build: Build, emulate: bool
) -> None:
    """Without a gradient, whose sums hold such nodes in float32 anyway."""

    def make() -> None:
        x = v1.placeholder(tf.float32, [SIZE, SIZE], name="x")
        tf.identity(build(tf.matmul(x, tf.eye(SIZE), name="product")), name="end")

    proto = graph_def(make)
    made = rewritten(proto, dtype="float16", emulate=emulate)
    assert "product" in low(made.report)
    (want,), (got,) = (
        run(g, ["end"], {"x": inputs("small")}) for g in (proto, made.graph)
    )
    np.testing.assert_allclose(got, want, rtol=2.0**-9)


def test_a_tiny_weight_beside_others_holds_nobody() -> None:
    """Where nothing is divided by it, it adds next to nothing."""

    def build(y: tf.Tensor) -> tf.Tensor:
        weights = tf.constant([1.0, 2.0**-30] * (SIZE // 2))
        return tf.matmul(tf.multiply(y, weights, name="weighted") + weights, y)

    assert tail(build)["weighted"] == "follow"
    divided = tail(lambda y: tf.math.log(tf.nn.relu(build(y))))
    assert divided["weighted"] == "follow"  # a product of matrices is in between


@pytest.mark.parametrize("product", [tf.square, lambda y: y * y, lambda y: y * (y + 1)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_that_are_summed_are_float32_where_they_may_overflow(
    product: Build, dtype: str
) -> None:
    def build(y: tf.Tensor) -> tf.Tensor:
        products = tf.identity(product(y), name="products")
        return tf.sqrt(tf.reduce_sum(products, -1, name="sum"), name="root")

    found = tail(build, dtype=dtype)
    stays = dtype == "float16"
    assert (found["sum"] == found["root"] == "range") is stays


def test_a_statistic_stays_float32_and_what_it_scales_does_not() -> None:
    def build(y: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(y * (y + 1), -1, keepdims=True)
        statistic = tf.nn.relu(total * 0.5, name="statistic")
        return tf.matmul(tf.multiply(tf.nn.elu(y), statistic, name="scaled"), y)

    found = tail(build)
    assert found["statistic"] == "range"
    assert found["scaled"] == "follow"


def test_a_product_with_a_bounded_factor_or_that_is_not_summed_may_turn() -> None:
    found = tail(lambda y: tf.reduce_sum(tf.multiply(y, tf.tanh(y), name="of"), -1))
    assert found["of"] == "follow"
    found = tail(lambda y: tf.nn.relu(tf.square(y, name="square")))
    assert found["square"] == "follow"


def test_a_factor_is_bounded_behind_a_cast_too() -> None:
    def build(y: tf.Tensor) -> tf.Tensor:
        factor = tf.cast(tf.cast(tf.tanh(y), tf.float16), tf.float32)
        return tf.reduce_sum(tf.multiply(y, factor, name="of"), -1)

    assert tail(build)["of"] == "follow"


def test_a_product_of_a_statistic_is_summed_in_float32_of_unknown_size_too() -> None:
    """What the axes are that are summed, gradients of a broadcast do not tell."""

    def make() -> None:
        x = v1.placeholder(tf.float32, [None, SIZE], name="x")
        axes = v1.placeholder(tf.int32, [None], name="axes")
        y = tf.matmul(x, tf.ones([SIZE, SIZE]))
        total = tf.reduce_sum(y * (y + 1), -1, keepdims=True)
        products = tf.multiply(total, total + 1, name="products")
        tf.reduce_sum(products, axes, keepdims=True, name="summed")

    found = rules(rewritten(graph_def(make), dtype="float16").report)
    assert found["products"] == found["summed"] == "range"


def test_an_equation_of_second_derivatives_is_rewritten_for_any_batch() -> None:
    """A second rewrite, of what the first has cast, must convert nothing more."""

    def make() -> None:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        shapes = [(2, 20), (20, 20), (20, 1)]
        weights = [v1.placeholder(tf.float32, shape) for shape in shapes]
        u = x
        for weight in weights[:-1]:
            u = tf.tanh(tf.matmul(u, weight))
        u = tf.matmul(u, weights[-1])
        (first,) = tf.gradients(u, x)
        (second,) = tf.gradients(first[:, :1], x)
        residual = first[:, 1:] + u * first[:, :1] - 0.01 * second[:, :1]
        tf.gradients(tf.reduce_mean(tf.square(residual)), weights)

    found = rules(rewritten(graph_def(make), dtype="float16").report)
    assert "compute" in found.values()


def test_a_constant_that_the_type_holds_holds_nobody() -> None:
    found = tail(lambda y: tf.matmul(tf.add(y, 0.5, name="shifted"), y))
    assert found["shifted"] == "follow"


def test_the_result_of_a_function_singular_at_zero_may_be_huge() -> None:
    def build(y: tf.Tensor) -> tf.Tensor:
        inverse = tf.math.rsqrt(tf.add(tf.nn.relu(y), 1e-12, name="sum"), name="root")
        scaled = tf.multiply(y, inverse, name="scaled")
        return tf.nn.relu(scaled, name="after")

    found = tail(build)
    assert [found[n] for n in ("sum", "root", "scaled")] == ["range"] * 3
    assert found["after"] != "range"


@pytest.mark.parametrize(("dtype", "rule"), [("float16", "range"), ("bfloat16", None)])
def test_a_scaled_seed_over_the_largest_float16_is_read_in_float32(
    dtype: str, rule: str | None
) -> None:
    def make() -> None:
        x = v1.placeholder(tf.float32, [8, 8], name="x")
        with markers.attribute_scope(ir.SEED):
            tf.multiply(tf.ones([]), 2.0**17, name="seed")
        seed = v1.get_default_graph().get_tensor_by_name("seed:0")
        product = tf.matmul(x, x, name="product")
        scaled = tf.multiply(product, seed, name="scaled")
        tf.matmul(scaled, x, name="back")

    proto = graph_def(make)
    made = rewritten(proto, dtype=dtype)
    found = rules(made.report)
    assert (found["scaled"] == "range") is (rule == "range")
    assert found["back"] == "compute"
    value = np.full((8, 8), 2.0**-6, np.float32)
    (got,) = run(made.graph, ["back"], {"x": value})
    (want,) = run(proto, ["back"], {"x": value})
    np.testing.assert_allclose(got, want, rtol=2.0**-6)


def test_a_mean_loss_under_a_scale_of_2_to_the_17_has_its_gradient() -> None:
    weights = tf.Variable(np.eye(8, dtype=np.float32))
    x = tf.constant(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8))

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, weights))))
        return tape.gradient(loss, weights)

    want = step()
    scope = {"dtype": "float16", "assignment": "all", "strict": True}
    with amp.mixed_precision_scope(loss_scale=2.0**17, **scope):
        got = step()
    assert np.isfinite(got).all()
    assert sum(report.nodes_low for report in amp.reports())
    assert np.abs(got - want).max() <= 2.0**-7 * np.abs(want).max()


def test_a_constant_inside_a_function_holds_its_readers_as_well() -> None:
    module, _ = traced(lambda x: log_sigmoid(tf.matmul(x, x)), spec(8, 8))
    report = rewrite_lib.rewrite(module, settled(dtype="float16")).report
    assert {d.rule for d in report.decisions if d.op == "AddV2"} == {"range"}


def masked_outside(q: tf.Tensor, k: tf.Tensor, pad: tf.Tensor) -> tf.Tensor:
    """Attention in a loop by a mask made before it; all of one example is pad."""
    mask, h = pad[:, None, :] * tf.float32.min, q
    for _ in tf.range(3):
        weights = tf.nn.softmax(tf.matmul(h, k, transpose_b=True) + mask)
        h = tf.matmul(weights, k)
    return tf.matmul(h, k, transpose_b=True)


def masked_in_a_branch(q: tf.Tensor, k: tf.Tensor, pad: tf.Tensor) -> tf.Tensor:
    """The mask is made in one branch and read in another one."""
    some = tf.reduce_any(pad > 0)
    make = lambda: pad[:, None, :] * tf.float32.min  # noqa: E731
    mask = tf.cond(some, make, lambda: tf.zeros_like(pad)[:, None, :])
    scores = tf.matmul(q, k, transpose_b=True)
    read = lambda: tf.nn.softmax(scores + mask)  # noqa: E731
    return tf.matmul(tf.cond(some, read, lambda: scores), k)


def masked_by_a_state(q: tf.Tensor, k: tf.Tensor, pad: tf.Tensor) -> tf.Tensor:
    """The mask is a loop variable that begins with it."""
    mask, h = pad[:, None, :] * tf.float32.min, q
    for _ in tf.range(3):
        scores = tf.matmul(h, k, transpose_b=True)
        h = tf.matmul(tf.nn.softmax(scores + mask), k)
        mask = tf.reverse(mask, [1])
    return tf.matmul(h, k, transpose_b=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fn", [masked_outside, masked_in_a_branch, masked_by_a_state])
def test_a_mask_of_another_function_is_read_in_float32(
    fn: Callable[..., tf.Tensor], dtype: str
) -> None:
    """A wholly masked row is uniform; of infinities it would be NaN."""
    q, k = np.random.default_rng(0).uniform(-1, 1, (2, 2, 4, 8)).astype(np.float32)
    pad = np.array([[0, 0, 0, 1], [1, 1, 1, 1]], np.float32)
    policy = amp.Policy(dtype=dtype, assignment="all", emulate=True, strict=True)
    twin = amp.twin(fn, q, k, pad, policy=policy)
    assert "Cast" in {op.type for op in twin.graph.get_operations()}
    got, want, unmasked = twin(q, k, pad), fn(q, k, pad), fn(q, k, 0 * pad)
    apart = np.abs(want - unmasked).max()
    assert np.abs(got - want).max() < 0.1 * apart  # NaN is not


def test_what_tends_to_zero_is_float32_before_what_is_singular_there() -> None:
    """In float16 softplus(-17) is 0, and bfloat16 has float32's range."""

    def build(y: tf.Tensor) -> tf.Tensor:
        soft = tf.nn.softplus(y, name="soft")
        return tf.matmul(tf.tanh(tf.math.reciprocal(soft)), y)

    assert tail(build)["soft"] == "range"
    assert tail(build, dtype="bfloat16")["soft"] == "follow"


def test_a_product_of_what_tends_to_zero_is_float32_before_it_is_divided_by() -> None:
    """As in entropic transport, or attention by features of an exponential."""

    def build(y: tf.Tensor) -> tf.Tensor:
        kernel = tf.exp(-tf.square(y))
        weights = tf.ones([SIZE, 1])
        total = tf.matmul(kernel, weights, name="total")
        after = tf.matmul(kernel, y, name="after")
        return after / tf.add(total, 1e-16, name="guarded")

    found = tail(build)
    assert found["total"] == found["guarded"] == "range"
    assert found["after"] == "compute"


def test_an_epsilon_that_a_loop_is_given_holds_its_readers_and_probabilities() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        epsilon, h = tf.constant(1e-8), x
        for _ in tf.range(3):
            odds = tf.sigmoid(tf.matmul(h, x), name="odds")
            h = tf.tanh(tf.math.rsqrt(tf.add(odds, epsilon, name="sum")))
        return tf.matmul(h, x)

    module, _ = traced(fn, spec(8, 8))
    report = rewrite_lib.rewrite(module, settled(dtype="float16")).report
    names = {d.node.rpartition("/")[2].rpartition("::")[2]: d for d in report.decisions}
    assert {names["odds"].rule, names["sum"].rule} == {"range"}


def test_a_sum_of_products_of_arguments_is_float32_too() -> None:
    def fn(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, y) + tf.reduce_sum(x * y, -1, keepdims=True)

    module, _ = traced(fn, spec(8, 8), spec(8, 8))
    report = rewrite_lib.rewrite(module, settled(dtype="float16")).report
    assert {d.rule for d in report.decisions if d.op == "Sum"} == {"range"}
