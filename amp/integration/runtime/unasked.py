"""`unasked`: how often a function is called before anything is to be decided on again.

Nearly all calls of a job are such, and take no lock. What is due, and when, is known by
`checks`, `contest`, `later_plan` and `step_probes`; nothing is called here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Due(NamedTuple):
    """Something that is to come after a number of calls.

    Attributes:
      left: the calls before it, None if it never comes.
      passed: is told of calls that go by without a question.
    """

    left: int | None
    passed: Callable[[int], None]


def unasked(function: bytes, *dues: Due) -> Iterator[bytes]:
    """Gives the name of a function at each call, until the first of `dues` is due.

    All of them are told at once of as many calls as it gives.
    """
    times = min((due.left for due in dues if due.left is not None), default=None)
    if times is None:
        return itertools.repeat(function)
    for due in dues:
        due.passed(times)
    return itertools.repeat(function, times)
