"""When an all-reduce between hosts gains from carrying 16 bits.

Figures and one inequality; what is reduced, and how, is not known here.
"""

from __future__ import annotations

from amp.graph_rewrite.cost.device import CPU_AMX
from amp.graph_rewrite.cost.model import ITEM

# Bytes a second between hosts: 10 Gbit/s Ethernet (IEEE 802.3ae). An assumption, as no
# link is measured.
LINK = 1.25e9
# Bytes an element.
_SAVED = ITEM["float32"] - ITEM["bfloat16"]
_CAST = 2 * (ITEM["float32"] + ITEM["bfloat16"])  # down and up, each reads and writes


def gains(elements: int, replicas: int) -> bool:
    """Whether a float32 tensor is summed sooner in bfloat16, its casts included.

    Every replica sends and receives each byte 2(n-1)/n times, by the ring algorithm.
    Replicas have to come to the same answer on whatever hosts they are, so that the
    casts cost what the shipped table says of one CPU, not what was measured here.
    """
    trips = 2 * (replicas - 1) / replicas
    casts = _CAST * elements / CPU_AMX.bandwidth + 2 * CPU_AMX.launch
    return trips * _SAVED * elements / LINK > casts
