"""What the process has freed goes back to the system."""

import ctypes
import os
import pathlib

import pytest

from amp.integration import heap

BLOCK = 64 << 10  # below every threshold from which glibc maps a block by itself
COUNT = 3200  # 200 MiB


def resident() -> int:
    fields = pathlib.Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no trim"
)
def test_what_lies_between_blocks_in_use_is_given_back():
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    blocks = [library.malloc(BLOCK) for _ in range(COUNT)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    last = blocks.pop()  # what lies below it cannot be given back by free(3) alone
    for block in blocks:
        library.free(block)
    before = resident()
    heap.trim()
    given = before - resident()
    library.free(last)
    assert given > COUNT * BLOCK * 0.9


def test_a_library_without_it_is_no_error(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    heap.trim()
