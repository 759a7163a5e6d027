"""What TensorFlow's allocator keeps goes back to the system, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import thorough

from amp.integration import tensor_pool

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc and madvise(2)")


def memory() -> tuple[int, int]:
    """The bytes of the address space that are mapped, and those that are resident."""
    fields = Path("/proc/self/statm").read_text().split()
    page = os.sysconf("SC_PAGE_SIZE")
    return int(fields[0]) * page, int(fields[1]) * page


def pooled() -> bool:
    """Whether this TensorFlow has such an allocator: with oneDNN, as on x86."""
    try:
        tf.config.experimental.get_memory_info("CPU:0")
    except ValueError:
        return False
    return os.environ.get("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "") != "1"


def much(mebibytes: int) -> None:
    """Needs so much memory at once, writes all of it, and frees it."""
    parts = [tf.fill([MIB], tf.constant(1, tf.uint8)) for _ in range(mebibytes)]
    del parts


@linux
def test_what_is_free_is_given_back_and_no_memory_is_added() -> None:
    if not pooled():
        pytest.skip("tensors have the system's allocator")
    tensor_pool.trim()
    before = memory()[1]
    much(600)
    mapped, touched = memory()
    assert touched - before > 500 * MIB
    given = tensor_pool.trim()
    after, left = memory()
    assert given > 500 * MIB
    assert touched - left > 500 * MIB
    # A region more would be as large as all of them; threads' stacks are small.
    assert after - mapped < 100 * MIB
    assert tensor_pool.trim() == pytest.approx(given, rel=0.01)
    assert memory()[0] - mapped < 100 * MIB


@linux
def test_tensors_in_use_keep_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie between the pieces that are given back, whatever their sizes."""
    if not pooled():
        pytest.skip("tensors have the system's allocator")
    monkeypatch.setattr(tensor_pool, "LEAST", MIB)
    random = np.random.default_rng(0)
    held: list[tuple[int, tf.Tensor]] = []
    given = 0
    for turn in range(6):
        for _ in range(40):
            size, value = int(random.integers(1, 3 * MIB)), int(random.integers(256))
            held.append((value, tf.fill([size], tf.cast(value, tf.uint8))))
        random.shuffle(held)
        del held[:: 2 + turn % 2]
        given += tensor_pool.trim()
        for value, tensor in held:
            assert np.unique(tensor.numpy()).tolist() == [value]
    assert given > 50 * MIB


SCATTERED = """
import numpy as np, tensorflow as tf
from pathlib import Path
from amp.integration import tensor_pool

def mapped():
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

random, given, added = np.random.default_rng(0), [], []
for _ in range(4):
    sizes = random.integers(300_000, 3_000_000, 250)
    held = [tf.zeros([size], tf.uint8) for size in sizes.tolist()]
    held = held[::5]  # as weights, among what is free
    before = mapped()
    given.append(tensor_pool.trim())
    added.append(mapped() - before)
print("given", given, "added", added)
assert min(given) > 200 << 20
assert max(added) < 50 << 20
"""


@linux
def test_no_memory_is_added_where_what_is_free_lies_in_parts() -> None:
    """Neither by parts smaller than a piece, nor by a peak that a trim has made."""
    if not pooled():
        pytest.skip("tensors have the system's allocator")
    told = [sys.executable, "-c", SCATTERED]
    made = subprocess.run(told, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr[-2000:]


@linux
def test_a_step_is_the_same_afterwards() -> None:
    x = tf.random.stateless_normal([512, 2048], [1, 2])
    step = tf.function(lambda x: tf.reduce_sum(tf.tanh(x @ tf.transpose(x)), 1))
    want = step(x).numpy()
    much(200)
    tensor_pool.trim()
    np.testing.assert_array_equal(step(x), want)


def test_little_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    much(10)
    monkeypatch.setattr(tensor_pool, "LEAST", 1 << 50)
    assert tensor_pool.trim() == 0


def test_two_threads_do_not_take_the_same_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trimmed() -> int:
        assert tensor_pool.trim() == 0  # as another thread would meanwhile
        return 1

    monkeypatch.setattr(tensor_pool, "_trimmed", trimmed)
    assert [tensor_pool.trim(), tensor_pool.trim()] == [1, 1]


def test_another_system_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    much(100)
    monkeypatch.setattr(Path, "read_text", missing)
    assert tensor_pool.trim() == 0


ALONE = """
import tensorflow as tf
from amp.integration import tensor_pool
{before}
x = [tf.zeros([1 << 20], tf.uint8) for _ in range(200)] if {eager} else None
del x
print("given", tensor_pool.trim())
"""

WITHOUT = (
    # Asking would start what a job with sessions alone never starts.
    ({}, "tf.compat.v1.disable_eager_execution()", False),
    ({"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}, "", True),
    ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "", True),
)


@pytest.mark.parametrize(
    ("variables", "before", "eager"), thorough.but(WITHOUT[:1], WITHOUT)
)
def test_where_there_is_no_such_allocator_nothing_is_done(
    variables: dict[str, str], before: str, eager: bool
) -> None:
    made = subprocess.run(
        [sys.executable, "-c", ALONE.format(before=before, eager=eager)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == "given 0\n"


@pytest.mark.parametrize(
    ("pieces", "ranges"),
    [
        ([], []),
        ([(10, 5)], [(10, 15)]),
        ([(20, 5), (10, 5), (15, 5)], [(10, 25)]),
        ([(20, 5), (10, 5)], [(10, 15), (20, 25)]),
    ],
)
def test_pieces_that_meet_are_one_range(
    pieces: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    assert list(tensor_pool._joined(pieces)) == ranges
