"""Watching the loss scale: a Keras callback, a session hook, and a plain function.

Names load when first used, because Keras need not be there. No figure is made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp import lazy_names

if TYPE_CHECKING:
    from amp.callbacks.keras_monitor import LossScaleMonitor as LossScaleMonitor
    from amp.callbacks.monitor import monitor_loss_scale as monitor_loss_scale
    from amp.callbacks.session_hook import LossScaleHook as LossScaleHook

_HOME = {
    "LossScaleHook": "amp.callbacks.session_hook",
    "LossScaleMonitor": "amp.callbacks.keras_monitor",
    "monitor_loss_scale": "amp.callbacks.monitor",
}
__all__ = sorted(_HOME)
__getattr__ = lazy_names.getter(__name__, _HOME)


def __dir__() -> list[str]:
    return list(__all__)
