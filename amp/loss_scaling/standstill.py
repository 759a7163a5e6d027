"""`Standstill`: whether gradients stay not finite where their scale can fall no more.

`stalls` and sessions, which read the counts, show them to it. A job may skip an update
at its smallest scale, and go on; this one trains nothing any more. Nothing is read from
TensorFlow here and no scale is moved; what becomes of the step is decided by those who
run it.
"""

from __future__ import annotations

from collections.abc import Callable

from amp.loss_scaling.scale import LossScale
from amp.loss_scaling.tally import Tally

# Gradient calls in a row. A scale that starts at 2**15 has overflowed 29 times before.
LIMIT = 20


class Standstill:
    """What was seen of one scaler.

    ::

        the scale could still fall:          no
        a call since then had a gradient:    no; calls are counted anew
        LIMIT calls since then, none had:    yes
    """

    def __init__(self) -> None:
        self._since: Tally | None = None

    def reached(self, rule: LossScale, scale: float, tally: Callable[[], Tally]) -> str:
        """Takes in a reading.

        Args:
          rule: the settings of the scaler.
          scale: its scale.
          tally: reads its tally; called only if the scale can fall no more.

        Returns:
          What the user is to be told, "" if the job may go on.
        """
        if rule.bounds is not None and scale > rule.bounds[0]:
            self._since = None
            return ""
        now = tally()
        came = None if self._since is None else now.since(self._since)
        if came is None or not came.never_finite:
            self._since = now
            return ""
        if came.calls < LIMIT:
            return ""
        return (
            f"none of the last {came.calls} gradients was finite, and the loss scale, "
            f"{scale:g}, cannot fall any more"
        )
