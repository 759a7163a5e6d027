"""`trim`: gives back to the system what TensorFlow's allocator for tensors has kept.

With oneDNN, TensorFlow on a CPU takes memory for tensors from regions that each are at
least twice as large as the one before, and gives none back (BFCAllocator in
mkl_cpu_allocator.h, tensorflow/core/common_runtime). So a process needs for good what
the most demanding of its steps did, in all places where any of them did. No tensor that
is in use is touched here, and no region is let go: pages of what is free are.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from amp.integration import fallback
from amp.integration.process import PROCESS

# Less than this is not worth it: a gigabyte takes some 0.15 s, and as long again when
# steps use it next, since the system clears every page.
LEAST = 64 << 20
# What is free is taken in tensors of this size, or larger ones where it is much. Even
# smaller ones have another allocator (kSmallAllocationsThreshold, in the same file).
_PIECE, _MOST_PIECES = 1 << 18, 8192
# The part of what is free that is left: in pieces of no use, or taken meanwhile by
# other threads, for which there would be a new region. More of what mappings tell of,
# in which other memory may lie too, and which may be free in small pieces only.
_LEFT, _LEFT_OF_MAPPINGS = 1 / 16, 1 / 4

_LOCK = threading.Lock()


def trim() -> int:
    """Gives back the pages of what is free, where that is known and is much.

    It takes all that is free as tensors without values, has the system forget their
    pages, madvise(2), and frees them. Nothing is done where tensors of a CPU have
    another allocator, in a job with sessions alone, or on another system than Linux.

    Returns:
      The bytes that were given back, of which some may have been in no use before.
    """
    if not _LOCK.acquire(blocking=False):
        return 0  # another thread holds what is free
    try:
        return fallback.attempt_quietly(_trimmed, 0)
    finally:
        _LOCK.release()


def _trimmed() -> int:
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return 0
    in_use, peak = _in_use_and_peak()
    ours, before = PROCESS.trimmed
    peak = before if peak == ours else peak  # that of steps, which fits again
    free = peak - in_use
    if free < LEAST:
        return 0
    size = _PIECE
    while size * _MOST_PIECES < free:
        size *= 2
    with tf.init_scope(), tf.device("CPU:0"):
        held = _taken(_Mappings(), size, free, in_use)
        PROCESS.trimmed = _in_use_and_peak()[1], peak
        return _forgotten([(_address(tensor), size) for tensor in held])


def _in_use_and_peak() -> tuple[int, int]:
    """The bytes in use, and those that were at most."""
    info = tf.config.experimental.get_memory_info("CPU:0")
    return int(info["current"]), int(info["peak"])


class _Mappings:
    """The parts of the address space that the process may write to, as they are now."""

    def __init__(self) -> None:
        ranges = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, rights = line.split(maxsplit=2)[:2]
            if rights.startswith("rw"):
                start, end = (int(text, 16) for text in place.split("-"))
                ranges.append((start, end))
        self._starts = [start for start, _ in ranges]
        self._ends = [end for _, end in ranges]

    def at(self, address: int) -> int | None:
        """The number of the mapping of an address; None if there was none."""
        number = bisect_right(self._starts, address) - 1
        return number if number >= 0 and address < self._ends[number] else None

    def size(self, number: int) -> int:
        """The bytes of a mapping."""
        return self._ends[number] - self._starts[number]


def _taken(mappings: _Mappings, size: int, free: int, in_use: int) -> list[Any]:
    """Tensors that together are about all that is free.

    The allocator would make a region if there were not enough; that ends it, if other
    threads have taken so much meanwhile. At least as much is free as is not in use now
    and was before; the mappings of what was taken tell the rest.

    Args:
      mappings: before any was taken.
      size: bytes of each tensor.
      free: the bytes that are known to be free.
      in_use: the bytes that are in use.
    """
    held: list[Any] = []
    taken: Counter[int] = Counter()  # bytes, by mapping
    wanted = free * (1 - _LEFT)
    while True:
        while (len(held) + 1) * size <= wanted:
            tensor = tf.raw_ops.Empty(shape=[size], dtype=tf.uint8)
            number = mappings.at(_address(tensor))
            if number is None:
                return held
            held.append(tensor)
            taken[number] += size
        regions = sum(_regions(mappings.size(n), of) for n, of in taken.items())
        wider = regions * (1 - _LEFT_OF_MAPPINGS) - in_use
        if wider <= wanted:
            return held
        wanted = wider


def _regions(mapping: int, taken: int) -> int:
    """The bytes of regions in a mapping, of which so many were taken.

    The system joins mappings that meet, those of several regions too. Small regions are
    in the heap, of which they are a small part; a large one has been taken by half when
    as much was taken as is not in use and was before.
    """
    return mapping if taken >= mapping / 4 else taken


def _address(tensor: Any) -> int:
    return int(np.asarray(memoryview(tensor)).ctypes.data)


def _forgotten(pieces: Sequence[tuple[int, int]]) -> int:
    """Has the system forget what is in pieces of memory; returns how many bytes.

    Args:
      pieces: the address of each and its bytes.

    Raises:
      OSError: the system refuses.
    """
    library, given = ctypes.CDLL(None, use_errno=True), 0
    for start, end in _joined(pieces):
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length <= 0:
            continue
        place = ctypes.c_void_p(first), ctypes.c_size_t(length)
        if library.madvise(*place, mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise failed")
        given += length
    return given


def _joined(pieces: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges of pieces, those that meet as one."""
    ranges = sorted((start, start + size) for start, size in pieces)
    start, end = ranges[0] if ranges else (0, 0)
    for first, last in ranges[1:]:
        if first != end:
            yield start, end
            start = first
        end = last
    if ranges:
        yield start, end
