"""A rewrite is the same in every process, whatever order sets have there."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import hash_seeds
import plan_digest
import tensorflow as tf
from rewriting import spec, traced


def printed(seed: int) -> str:
    root = pathlib.Path(__file__).parents[2]
    paths = os.pathsep.join((str(root), str(root / "tests/support")))
    changed = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, hash_seeds.__file__],
        env={**os.environ, **changed},
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout


def test_graphs_and_reports_do_not_depend_on_the_seed_of_hashes() -> None:
    first = printed(1)
    assert first
    assert printed(2) == first


def looped(x: tf.Tensor) -> tf.Tensor:
    """Arguments of its functions are named after other functions; it has a gradient."""

    def inner(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        more = lambda j, z: (j + 1, tf.nn.silu(z @ x) + y)  # noqa: E731
        return i + 1, tf.while_loop(lambda j, z: j < i, more, [0, y])[1]

    return tf.while_loop(lambda i, y: i < 3, inner, [0, x])[1]


def test_a_digest_does_not_depend_on_how_a_process_numbers_functions() -> None:
    texts, digests = [], []
    for _ in range(2):
        module, _ = traced(tf.function(looped), spec(4, 4))
        texts.append(plan_digest.written(module))
        names = [graph.name for graph in module.graphs()]
        digests.append(plan_digest.digest(texts[-1], names))
    assert texts[0] != texts[1]
    assert digests[0] == digests[1]
    assert plan_digest.digest(texts[1].replace("Sigmoid", "Tanh"), names) != digests[1]
