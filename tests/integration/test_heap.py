"""What the process has freed goes back to the system."""

import contextlib
import ctypes
import os
import pathlib
import threading
import time

import pytest

from amp.integration import heap

BLOCK = 64 << 10  # below every threshold from which glibc maps a block by itself
COUNT = 3200  # 200 MiB


def resident() -> int:
    fields = pathlib.Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


needs_trim = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no trim"
)


@contextlib.contextmanager
def freed():
    """Memory that was freed and stays with the process; yields what is resident."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    blocks = [library.malloc(BLOCK) for _ in range(COUNT)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    last = blocks.pop()  # what lies below it cannot be given back by free(3) alone
    before = resident()
    for block in blocks:
        library.free(block)
    try:
        yield before
    finally:
        library.free(last)


@needs_trim
def test_what_lies_between_blocks_in_use_is_given_back():
    with freed() as before:
        heap.trim()
        assert before - resident() > COUNT * BLOCK * 0.9


@needs_trim
def test_what_a_long_call_frees_is_given_back_while_it_lasts(monkeypatch):
    monkeypatch.setattr(heap, "_FIRST", 0.05)
    with heap.trimmed(), freed() as before:
        end = time.monotonic() + 10
        while before - resident() < COUNT * BLOCK * 0.9:
            assert time.monotonic() < end, "nothing was given back"
            time.sleep(0.05)


def test_a_short_call_is_not_made_longer(monkeypatch):
    monkeypatch.setattr(heap, "trim", lambda: pytest.fail("nothing is worth it"))
    with heap.trimmed():
        pass


def test_a_job_without_a_thread_left_goes_on(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with heap.trimmed():
        done = True
    assert done


def test_an_error_of_the_call_is_passed_on():
    with pytest.raises(ValueError, match="the user's own"), heap.trimmed():
        raise ValueError("the user's own")


@pytest.mark.swallows  # the attribute that is not there
def test_a_library_without_it_is_no_error(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    heap.trim()
