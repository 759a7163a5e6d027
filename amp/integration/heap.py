"""`trim`: gives back to the system what the process has freed.

Called after work that needs much memory for a short time. What is in use stays where it
is; no object is freed here.
"""

from __future__ import annotations

import ctypes

from amp.integration import fallback


def trim() -> None:
    """Gives freed memory back, where the C library does so when asked.

    glibc keeps what lies between blocks in use, and returns it by malloc_trim(3), some
    hundredths of a second for a gigabyte. Other libraries have no such function.
    """
    fallback.attempt_quietly(lambda: ctypes.CDLL(None).malloc_trim(0), 0)
