"""What a policy comes to on the device that a function is called on.

`twins` asks here at calls inside device scopes: a function called under
`tf.device("/CPU:0")` on a machine with a GPU gets a plan for the CPU. What is placed
inside a function is not known here; the rewriter reads that from the nodes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.report_builder import called_elsewhere
from amp.integration import fallback, reports
from amp.integration.measuring import hardware
from amp.integration.runtime import definitions
from amp.policy import Policy


def settled_on(device: str, usual: Resolution, asked: Policy) -> Resolution:
    """What a policy comes to for calls on a device.

    Case 1: emulation needs only the kernels of float32, which every device has. A
    device that is not there is not used: TensorFlow takes the one it computes on.
    Case 2: of a kind that this process has none of, on another worker, nothing is known
    that a plan could be made from. Case 3: one of the usual kind and model. Case 4: a
    CPU or GPU of a worker is taken to be one like that of this process.

    Args:
      device: its whole name, as `Context.device_name` has it inside a device scope.
      usual: the policy on the device that TensorFlow computes on.
      asked: the policy as the user gave it.
    """
    spec = tf.DeviceSpec.from_string(device)
    kind, number = spec.device_type, spec.device_index
    there = frozenset(each.device_type for each in tf.config.list_logical_devices())
    if usual.policy is None or usual.policy.emulate or kind not in there:
        return usual  # Case 1
    here, local = hardware.kinds() | {usual.device.kind}, _is_local(spec)
    kinds = usual.kinds if local else there
    if kind not in here or kind not in ("CPU", "GPU"):
        return Resolution(None, usual.device, _UNKNOWN)  # Case 2
    place = f"{kind}:{number if local and kind == 'GPU' else 0}"
    if kind == usual.device.kind and _model(place) == _model(""):
        return dataclasses.replace(usual, kinds=kinds)  # Cases 3 and 4
    settled = hardware.resolve_on(place, asked)
    return dataclasses.replace(settled, kinds=kinds)


_UNKNOWN = "this process has none of its kind, and knows nothing of it"


def _is_local(spec: tf.DeviceSpec) -> bool:
    """Whether a device is of this process."""
    own = tf.DeviceSpec.from_string(context_lib.context().host_address_space())
    return (spec.job, spec.task) == (own.job, own.task)


def _model(place: str) -> str:
    with hardware.on(place):
        return hardware.model()


class DeviceReports:
    """Reports on the functions that run as they are on a device.

    Args:
      settled: the policy on the device that TensorFlow computes on.
    """

    def __init__(self, settled: Resolution) -> None:
        self._settled = settled
        self._told: set[bytes] = set()

    def tell(self, context: Any, name: bytes, device: str, why: str) -> None:
        """Adds a report, once for each function, that says why it runs in float32.

        Args:
          context: TensorFlow's eager context.
          name: the function's.
          device: the name of the device that it is called on.
          why: what is known of that device.
        """
        if name in self._told:
            return
        self._told.add(name)
        policy = self._settled.policy
        assert policy is not None

        def report() -> None:
            module = definitions.read(context, name.decode())
            made = called_elsewhere(module, self._settled, device, why)
            reports.add(made, policy.report)

        says = f"there is no report on function {name.decode()}, called on {device}"
        fallback.attempt(fallback.Part(says, policy.strict), report, lambda: None)

    def forget(self, name: bytes) -> None:
        """Drops what is known of a function that is going; takes no lock."""
        self._told.discard(name)
