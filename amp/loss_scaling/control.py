"""Reads and sets what a scaler holds, for people and programs outside of the step.

Called by the methods of `Scaler`, which it takes as an argument. No step is taken here,
and no gradient is looked at.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def shown(scaler: Any) -> str:
    """Returns a scaler as text: its name, its numbers, its rule and its line.

    The numbers of a session graph's scaler are left out: only a session has them.
    """
    parts = [f"rule {scaler.settings}"]
    if scaler.line:
        parts.append(f"gradient at {scaler.line}")
    if not scaler.in_session:
        with tf.init_scope():
            scale, good, skipped = (
                scaler.copies(field)[0].numpy()
                for field in ("scale", "good_steps", "skipped_steps")
            )
            numbers = f"scale {scale:g}, good steps {good}, skipped {skipped}"
            parts.insert(0, numbers)
    return f"<Scaler {scaler.name!r}: {'; '.join(parts)}>"
