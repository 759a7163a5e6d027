"""`trim`: gives back to the system what the process has freed.

Called after work that needs much memory for a short time. What is in use stays where it
is; no object is freed here.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

from amp.integration import fallback

# Seconds. What makes a function ready in less leaves little; each pause is twice the
# one before, since a call may take all of a job's steps.
_FIRST = 0.5


def trim() -> None:
    """Gives freed memory back, where the C library does so when asked.

    glibc keeps what lies between blocks in use, and returns it by malloc_trim(3), some
    hundredths of a second for a gigabyte. Other libraries have no such function.
    """
    fallback.attempt_quietly(lambda: ctypes.CDLL(None).malloc_trim(0), 0)


@contextlib.contextmanager
def trimmed() -> Iterator[None]:
    """Gives back what a function's first call frees, while it lasts, if that is long.

    TensorFlow optimizes the graph and makes kernels then, and XLA compiles, in several
    threads, for each of which the C library keeps what was freed: 60 MB stayed with the
    process after each plan of a MobileNetV2.
    """
    over, long = threading.Event(), threading.Event()

    def now_and_then() -> None:
        pause = _FIRST
        while not over.wait(pause):
            long.set()
            trim()
            pause *= 2

    trimmer = threading.Thread(target=now_and_then, name="amp-heap", daemon=True)
    fallback.attempt_quietly(trimmer.start, None)  # there may be no thread left
    try:
        yield
    finally:
        over.set()
        if trimmer.ident is not None:
            trimmer.join()
        if long.is_set():
            trim()
