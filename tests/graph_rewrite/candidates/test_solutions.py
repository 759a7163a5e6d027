"""A matrix that is factored, inverted or solved by is float32 up to its products."""

from __future__ import annotations

import pytest
import tensorflow as tf
from between_layers import WIDTH, Between, found
from rewriting import settled, spec, traced

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
        return tf.matmul(tf.matmul(solution, x, name="next"), x, name="after")

    one = found(between, assignment="all")
    assert (one["read"], one["next"], one["after"]) == ("solve", "solve", "compute")


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
