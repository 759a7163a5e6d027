"""Which calls of functions run on another kind of device than a policy's plans are for.

`function_hooks` asks at every call under a policy: a function called under
`tf.device("/CPU:0")` on a machine with a GPU then runs as it was. What is placed inside
a function is not known here; the rewriter reads that from the nodes.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.report_builder import called_elsewhere
from amp.integration import fallback, reports
from amp.integration.functions import definitions


class CallDevices:
    """The devices that functions are called on under one settled policy.

    Args:
      settled: the policy, and the device that its plans are for.
    """

    def __init__(self, settled: Resolution) -> None:
        self._settled = settled
        self._other: dict[str, bool] = {}
        self._told: set[bytes] = set()

    def is_other(self, device: str) -> bool:
        """Whether calls on a device are not what the plans are for.

        They are not if it is of another kind: its kernels, 16-bit types and speeds are
        others. Emulation needs only the kernels of float32, which every device has.

        Args:
          device: its whole name, as `Context.device_name` has it inside a device scope.
        """
        found = self._other.get(device)
        if found is None:
            found = self._other[device] = self._is_of_other_kind(device)
        return found

    def _is_of_other_kind(self, device: str) -> bool:
        policy = self._settled.policy
        if policy is None or policy.emulate:
            return False
        kind = tf.DeviceSpec.from_string(device).device_type
        if kind in (None, self._settled.device.kind):
            return False
        # On a device that is not there TensorFlow runs nothing: it takes the CPU.
        return bool(tf.config.list_logical_devices(kind))

    def tell(self, context: Any, name: bytes, device: str) -> None:
        """Adds a report, once for each function, that says why it runs in float32.

        Args:
          context: TensorFlow's eager context.
          name: the function's.
          device: the name of the device that it is called on.
        """
        if name in self._told:
            return
        self._told.add(name)
        policy = self._settled.policy
        assert policy is not None

        def report() -> None:
            module = definitions.read(context, name.decode())
            made = called_elsewhere(module, self._settled, device)
            reports.add(made, policy.report)

        says = f"there is no report on function {name.decode()}, called on {device}"
        fallback.attempt(fallback.Part(says, policy.strict), report, lambda: None)

    def forget(self, name: bytes) -> None:
        """Drops what is known of a function that is going; takes no lock."""
        self._told.discard(name)
