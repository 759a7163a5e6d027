"""Whether an all-reduce between hosts is faster in bfloat16, casts included.

Constants and one inequality; nothing is reduced here.
"""

from __future__ import annotations

from amp.graph_rewrite.cost.device import ITEM
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX

# Bytes per second between hosts: 10 Gbit/s Ethernet (IEEE 802.3ae). An assumption; the
# link is not measured.
LINK = 1.25e9
# Bytes per element.
_SAVED = ITEM["float32"] - ITEM["bfloat16"]
_CAST = 2 * (ITEM["float32"] + ITEM["bfloat16"])  # down and up, each reads and writes


def gains(elements: int, replicas: int) -> bool:
    """Whether summing a float32 tensor over replicas is faster in bfloat16.

    In the ring algorithm, every replica sends and receives each byte 2(n-1)/n times.
    All replicas have to get the same answer whatever hosts they run on, so the casts
    are priced with the shipped figures of one CPU and not with measured ones.

    Args:
      elements: number of elements of the tensor.
      replicas: number of replicas.
    """
    trips = 2 * (replicas - 1) / replicas
    casts = _CAST * elements / CPU_AMX.casts["bfloat16"] + 2 * CPU_AMX.launch
    return trips * _SAVED * elements / LINK > casts
