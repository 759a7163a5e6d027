"""A matrix that is factored, inverted or solved by is float32 up to its products."""

from __future__ import annotations

import contextlib

import pytest
import tensorflow as tf
from between_layers import WIDTH, Between, found, rules_of
from frames import version_1
from rewriting import settled, spec, traced, v1

from amp.graph_rewrite.rewrite import rewrite


def covariance(x: tf.Tensor) -> tf.Tensor:
    inner = tf.matmul(x, x, transpose_a=True, name="inner")
    return tf.multiply(inner, 1 / WIDTH, name="scaled")


SOLVED: dict[str, Between] = {
    "Cholesky": tf.linalg.cholesky,
    "inverse": tf.linalg.inv,
    "determinant": tf.linalg.slogdet,
    "eigenvalues": tf.linalg.eigvalsh,
    "QR": tf.linalg.qr,
    "SVD": lambda k: tf.linalg.svd(k, compute_uv=False),
    "system": lambda k: tf.linalg.solve(k, tf.ones([WIDTH, 1])),
    "right side": lambda k: tf.linalg.solve(tf.eye(WIDTH), k),
    "triangle": lambda k: tf.linalg.triangular_solve(k, tf.ones([WIDTH, 1])),
}


@pytest.mark.parametrize("name", SOLVED)
def test_what_is_solved_by_is_computed_in_float32_from_products_on(name: str) -> None:
    """Through an exponential, which is float32 itself, up to the nearest products."""

    def between(x: tf.Tensor) -> tf.Tensor:
        kernel = tf.exp(-covariance(x), name="kernel")
        made = tf.nest.flatten(SOLVED[name](kernel + tf.eye(WIDTH)))[-1]
        return x + tf.reduce_sum(made)

    one = found(between, assignment="all")
    assert (one["inner"], one["scaled"]) == ("solve", "solve")
    assert (one["one"], one["two"]) == ("compute", "compute")


READ: dict[str, Between] = {
    "factor": tf.linalg.cholesky,
    "inverse": tf.linalg.inv,
    "vectors": lambda k: tf.linalg.eigh(k)[1],
    "solution": lambda k: tf.linalg.solve(k, tf.eye(WIDTH)),
}


@pytest.mark.parametrize("name", READ)
def test_what_reads_a_solution_is_float32_up_to_the_nearest_product(name: str) -> None:
    def between(x: tf.Tensor) -> tf.Tensor:
        solution = tf.nn.relu(READ[name](tf.eye(WIDTH) * 2.0), name="read")
        following = tf.nn.relu(tf.matmul(solution, x, name="next"))
        return tf.matmul(following, x, name="after")

    one = found(between, assignment="all")
    assert (one["read"], one["next"], one["after"]) == ("solve", "solve", "compute")


@pytest.mark.parametrize("trained", [False, True])
def test_products_that_follow_one_another_are_float32_where_nothing_is_trained(
    trained: bool,
) -> None:
    """Woodbury: I - A K^-1 A' is small where its terms are near each other."""

    def between(x: tf.Tensor) -> tf.Tensor:
        inverse = tf.linalg.inv(tf.eye(WIDTH) * 2.0)
        left = 0.5 * tf.matmul(x, inverse, name="next")
        both = tf.matmul(left, tf.ones([WIDTH, WIDTH]), name="after")
        off = tf.subtract(tf.eye(WIDTH), both, name="off")
        return tf.matmul(tf.nn.relu(off), x, name="layer")

    one = found(between, gradient=trained, assignment="all")
    assert one["next"] == "solve"
    assert (one["after"] == "solve", one["off"] == "solve") == (not trained,) * 2
    assert one["layer"] == "compute"


def test_the_gradient_of_a_cholesky_factor_has_no_16_bit_product() -> None:
    """Of a Gaussian process' likelihood: terms of 1e3 cancel to what is below 1."""
    points = tf.linspace(0.0, 1.0, 20)[:, None]

    def likelihood(scale: tf.Tensor) -> tf.Tensor:
        apart = tf.math.squared_difference(points, tf.transpose(points))
        kernel = scale**2 * tf.exp(-apart / 0.18) + 0.01 * tf.eye(20)
        factor = tf.linalg.cholesky(kernel)
        solution = tf.linalg.triangular_solve(factor, tf.sin(6 * points))
        volume = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
        loss = 0.5 * tf.reduce_sum(solution * solution) + volume
        return tf.gradients(loss, scale)[0]

    report = rewrite(traced(likelihood, spec())[0], settled()).report
    products = [d for d in report.decisions if "MatMul" in d.op]
    assert len(products) >= 3
    assert {d.rule for d in products} == {"solve"}


def test_a_matrix_that_nothing_solves_by_is_16_bit() -> None:
    def between(x: tf.Tensor) -> tf.Tensor:
        return tf.exp(-covariance(x), name="kernel") @ x

    assert found(between, assignment="all")["inner"] == "compute"


SQUARE = spec(WIDTH, WIDTH)


def test_what_a_sandwich_is_made_of_is_float32_and_so_is_its_gradient() -> None:
    """A B A' of a rounded B is not symmetric, and of a rounded A B neither."""

    def fn(a: tf.Tensor, b: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        root = tf.nn.softplus(tf.matmul(b, x, name="nonlinear"))
        inner = tf.matmul(root, root, transpose_b=True, name="gram")
        half = tf.matmul(inner, a, transpose_b=True, name="half")
        whole = tf.matmul(a, half, name="whole") + tf.eye(WIDTH)
        loss = tf.reduce_sum(
            tf.math.log(tf.linalg.diag_part(tf.linalg.cholesky(whole)))
        )
        return (*tf.gradients(loss, [a, b]), tf.matmul(x, x, name="beside"))

    found = rules_of(fn, SQUARE, SQUARE, SQUARE)
    assert {found[name] for name in ("gram", "half", "whole")} == {"solve"}
    assert {found[name] for name in ("nonlinear", "beside")} == {"compute"}
    slopes = [f"{name}_grad" for name in ("gram", "half", "whole")]
    report = rewrite(traced(fn, SQUARE, SQUARE, SQUARE)[0], settled()).report
    within = [d for d in report.decisions if any(one in d.node for one in slopes)]
    assert {d.rule for d in within if d.op == "MatMul"} == {"solve"}


def test_a_product_with_itself_needs_no_better_operand() -> None:
    """Features that are whitened: the covariance of rounded ones has no less a root."""

    def fn(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        features = tf.matmul(x, w, name="features")
        near = tf.matmul(features, features, transpose_a=True, name="covariance")
        return tf.linalg.cholesky(near + tf.eye(WIDTH))

    found = rules_of(fn, SQUARE, SQUARE)
    assert (found["features"], found["covariance"]) == ("compute", "solve")


def test_the_other_operand_of_a_product_that_reads_a_solution_is_float32() -> None:
    """Woodbury: y' y - u' M^-1 u, whose terms are near each other."""

    def fn(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        u = tf.matmul(x, w, name="u")
        inverse = tf.linalg.inv(tf.eye(WIDTH) * 2.0)
        read = tf.matmul(u, inverse, name="read")
        return tf.matmul(tf.nn.relu(read), x, name="after")

    found = rules_of(fn, SQUARE, SQUARE)
    assert (found["u"], found["read"], found["after"]) == ("solve", "solve", "compute")


@pytest.mark.parametrize("version", [1, 2])
def test_a_covariance_that_a_loop_hands_on_is_float32(version: int) -> None:
    """A filter: what the next trip factors is computed in this one."""

    def fn(a: tf.Tensor, p: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        def body(
            i: tf.Tensor, p: tf.Tensor, x: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            factor = tf.linalg.cholesky(p + tf.eye(WIDTH))
            half = tf.matmul(p, a, transpose_b=True, name="half")
            x = tf.tanh(tf.matmul(x, a, name="beside")) + tf.reduce_sum(factor)
            return i + 1, tf.tanh(tf.matmul(a, half, name="next")), x

        start = tf.matmul(p, p, name="start")
        with version_1() if version == 1 else contextlib.nullcontext():
            found = v1.while_loop(lambda i, *_: i < 3, body, [0, start, x])
        return tuple(found[1:])

    found = rules_of(fn, SQUARE, SQUARE, SQUARE)
    assert {found[name] for name in ("start", "half", "next")} == {"solve"}
    assert found["beside"] == "compute"
