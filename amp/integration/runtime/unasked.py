"""`Unasked`: what is called without a question, until something is to be decided again.

Nearly all calls of a job are such, and take no lock. What is due, and when, is known by
`checks`, `contest`, `later_plan` and `step_probes`; nothing is called here.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Form = TypeVar("_Form")


class Due(NamedTuple):
    """Something that is to come after a number of calls.

    Attributes:
      left: the calls before it, None if it never comes.
      passed: takes the number of calls that are made without a question; a negative one
        takes back calls that were announced and not made.
    """

    left: int | None
    passed: Callable[[int], None]


class Unasked(Generic[_Key, _Form]):
    """The forms that functions, or runs of a session, are called in without a question.

    Attributes:
      given: by function or run, what gives the form to call at each call. It ends
        before a call that is to be asked for.
    """

    def __init__(self) -> None:
        self.given: dict[_Key, Iterator[_Form]] = {}
        self._dues: dict[_Key, list[Due]] = {}

    def put(self, key: _Key, form: _Form, *dues: Callable[[], Due]) -> None:
        """Has a form called at each call, until the first of `dues` is due.

        All of them are told at once of as many calls as go by.
        """
        self.end(key)
        found = [due() for due in dues]
        times = min((due.left for due in found if due.left is not None), default=None)
        if times is None:
            self.given[key] = itertools.repeat(form)
            return
        for due in found:
            due.passed(times)
        self._dues[key] = found
        self.given[key] = itertools.repeat(form, times)

    def end(self, key: _Key) -> None:
        """Has the next call ask; the calls that went by before it alone have passed."""
        given, dues = self.given.pop(key, None), self._dues.pop(key, ())
        left = 0 if given is None else operator.length_hint(given)  # 0: endless
        for due in dues if left else ():
            due.passed(-left)

    def end_all(self) -> None:
        """Has the next call of everything ask."""
        for key in list(self.given):
            self.end(key)

    def forget(self, key: _Key) -> None:
        """Drops what is going, which nobody counts any more; takes no lock."""
        self.given.pop(key, None)
        self._dues.pop(key, None)
