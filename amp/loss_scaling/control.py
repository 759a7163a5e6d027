"""What users call on a scaler: its name, its text, its numbers read and set.

Everything here happens between steps, on the host. No gradient is looked at, and the
scale does not change by its rule here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from amp.errors import LossScaleError
from amp.loss_scaling import backup
from amp.loss_scaling.scale import LossScale


class Controlled:
    """The part of a `Scaler` that users call between steps.

    Outside of session graphs a call acts at once, on the copies of all replicas of this
    process. A scaler of a session graph has its values in a session: that is the
    argument `session`, by default the current one (`with session.as_default()`).
    Nothing is added to the graph, so it may be finalized.
    """

    settings: LossScale
    line: str
    _called: str
    _ready: Any

    @property
    def name(self) -> str:
        """What this scaler is called; no other scaler that lives has this name."""
        return self._called

    @property
    def in_session(self) -> bool:
        """Whether it belongs to a session graph, so that only sessions know it."""
        return self._ready is not None

    def __repr__(self) -> str:
        parts = [f"rule {self.settings}"]
        if self.line:
            parts.append(f"at {self.line}")
        if not self.in_session:
            with tf.init_scope():
                now = backup.state_of(self)
            parts.insert(
                0,
                f"scale {now['scale']:g}, good steps {now['good_steps']}, "
                f"skipped {now['skipped_steps']}",
            )
        return f"<Scaler {self.name!r}: {'; '.join(parts)}>"

    def set_scale(self, scale: float, session: Any = None) -> None:
        """Sets the scale; the rule goes on from it and counts from 0.

        Args:
          scale: a number between the rule's minimum and maximum.
          session: see the class.

        Raises:
          LossScaleError: a scale that the rule never has, or no place to set it.
        """
        bounds = self.settings.bounds
        number = isinstance(scale, (int, float, np.number))
        number = number and not isinstance(scale, bool)
        if bounds is None or not number or not bounds[0] <= scale <= bounds[1]:
            raise self._cannot_be(scale)
        self._write({"scale": float(scale), **_COUNTED_ANEW}, session)

    def reset(self, session: Any = None) -> None:
        """Sets the scale to the rule's first; skipped updates stay counted.

        Args:
          session: see the class.

        Raises:
          LossScaleError: no place to set it.
        """
        self._write({"scale": self.settings.initial, **_COUNTED_ANEW}, session)

    def state_dict(self, session: Any = None) -> dict[str, float | int]:
        """Returns the state as Python numbers, from which it goes on bit for bit.

        Overflows that wait for an optimizer are not in it.

        Args:
          session: see the class.

        Raises:
          LossScaleError: no session to read it from.
        """
        session = self._session(session)
        if session is None:
            return backup.state_of(self)
        session.run(self._ready)
        values = session.run([getattr(self, field) for field in backup.FIELDS])
        return backup.as_state([value.item() for value in values])

    def load_state_dict(self, state: Mapping[str, Any], session: Any = None) -> None:
        """Sets the state to what `state_dict` returned, here or in another process.

        The scale is kept between the rule's minimum and maximum, and a constant one
        stays the rule's, as when a checkpoint is restored.

        Args:
          state: the numbers.
          session: see the class.

        Raises:
          CheckpointError: numbers that are missing, too many, or out of range.
          LossScaleError: no place to set them.
        """
        row = backup.row_of(state, f"the state of {self.name!r}")
        session = self._session(session)
        if session is None:
            backup.give_back(self, row)
            return
        values = backup.as_state(row.tolist())
        if self.settings.bounds is None:
            values = {"skipped_steps": values["skipped_steps"]}
        else:
            values["scale"] = float(np.clip(values["scale"], *self.settings.bounds))
        self._write({**values, "stalled": 0}, session)

    def _write(self, values: Mapping[str, float], session: Any) -> None:
        session = self._session(session)
        if session is None:
            for field, value in values.items():
                for copy in self.copies(field):
                    copy.assign(value)
            return
        session.run(self._ready)  # otherwise its first step would begin afresh
        starts = {getattr(self, f).initializer: value for f, value in values.items()}
        session.run(list(starts), {s.inputs[1]: value for s, value in starts.items()})

    def _session(self, session: Any) -> Any:
        """Returns the session that has the values; None where they are at hand."""
        if self.in_session:
            found = session or tf.compat.v1.get_default_session()
            if found is not None:
                return found
        elif tf.executing_eagerly():
            return None
        raise self._nowhere()

    def _nowhere(self) -> LossScaleError:
        if self.in_session:
            return LossScaleError(
                f"the loss scale {self.name!r}, but no session",
                where="a scaler of a session graph",
                allowed="session=..., or a call in `with session.as_default()`",
                remedy="pass the session that trains",
            )
        return LossScaleError(
            f"the loss scale {self.name!r} read or set while a graph is built",
            where="a scaler outside of session graphs",
            allowed="a call between steps, outside of tf.function and of graphs",
            remedy="move the call out; in a step `scaler.scale` is a variable to read",
        )

    def _cannot_be(self, scale: float) -> LossScaleError:
        bounds = self.settings.bounds
        if bounds is None:
            allowed = f"{self.settings.initial:g}, as the rule says: {self.settings}"
        else:
            allowed = f"{bounds[0]:g} to {bounds[1]:g}, the minimum and maximum of its "
            allowed += "rule"
        return LossScaleError(
            f"{scale!r} as the loss scale {self.name!r}",
            where="set_scale",
            allowed=allowed,
            remedy="take another scale, or another rule: loss_scale=... of the policy, "
            "rule=... of scaler_for",
        )

    def copies(self, name: str) -> Sequence[tf.Variable]:
        """Returns the variable of that name in each replica of this process."""
        variable = getattr(self, name)
        strategy = getattr(variable, "distribute_strategy", None)
        if strategy is None:
            return [variable]
        return strategy.experimental_local_results(variable)  # type: ignore[no-any-return]


_COUNTED_ANEW = {"good_steps": 0, "bad_steps": 0, "stalled": 0}
