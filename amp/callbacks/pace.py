"""`Pace`: after how many steps a monitor reads next, so that it takes little time.

Used by the monitors and the session hook. Nothing is read, observed or written here.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable

EVERY = 100  # steps, where a reading takes less than its share of so many
# The least cost of a reading is at most 1/50 of the time to the next, so that the mean
# one is under 3 % on a busy machine too.
TIMES = 50
_LATEST = 3  # readings: the least of their costs is the cost of one


class Pace:
    """The steps from one reading to the next.

    ::

        cost = the time of a step that was read, less that of other steps
        every = the least EVERY * 2**n whose steps take TIMES * cost or more

    A step is read if `every` divides its number, or that of one which came with it.
    Each `every` divides the larger ones, so that the steps that are read stay in turn
    when it changes. What happens once (a
    function that is traced anew) is in one cost, and is left out: the least of the last
    few costs counts, from the second on.

    Args:
      every: the steps, if the user gave them; then they stay.
      clock: gives seconds.

    Attributes:
      every: the steps.
    """

    def __init__(
        self, every: int | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.every = EVERY if every is None else max(1, int(every))
        self._adapts, self._clock = every is None, clock
        self._costs: collections.deque[float] = collections.deque(maxlen=_LATEST)
        self.start()

    def start(self) -> None:
        """Is told that steps begin; the time since the last one is not of a step."""
        self._then: float | None = None
        self._seconds, self._steps = 0.0, 0  # without a reading, since the last one

    def passed(self, *, read: bool) -> None:
        """Is told that a step has passed, with its reading if there was one.

        Args:
          read: whether there was.
        """
        if not self._adapts:
            return
        now = self._clock()
        seconds = None if self._then is None else now - self._then
        self._then = now
        if seconds is None:
            return
        if not read:
            self._seconds, self._steps = self._seconds + seconds, self._steps + 1
        elif self._seconds:
            self._has_read(seconds, self._seconds / self._steps)

    def _has_read(self, seconds: float, other: float) -> None:
        """Sets the steps until the next reading.

        Args:
          seconds: of the step that was read.
          other: of each of those before it.
        """
        self._seconds, self._steps = 0.0, 0
        self._costs.append(seconds - other)
        if len(self._costs) > 1:
            times = max(1.0, TIMES * min(self._costs) / other / EVERY)
            self.every = EVERY * 2 ** math.ceil(math.log2(times))
