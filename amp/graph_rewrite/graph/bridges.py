"""Recognises casts between float32 and a 16-bit type ("bridges").

A rewrite may remove or move such a cast; whether it does is not decided here.
"""

from __future__ import annotations

from amp.graph_rewrite.graph import ir


def is_down(node: ir.Node, low: int) -> bool:
    """Whether a node casts float32 to the 16-bit type with DataType number `low`."""
    return node.op == "Cast" and _ends(node) == (ir.FLOAT, low)


def is_up(node: ir.Node, low: int) -> bool:
    """Whether a node casts the 16-bit type with DataType number `low` to float32."""
    return node.op == "Cast" and _ends(node) == (low, ir.FLOAT)


def is_bridge(node: ir.Node, low: int) -> bool:
    """Whether a node casts between float32 and the 16-bit type, in either direction."""
    return node.op == "Cast" and _ends(node) in ((ir.FLOAT, low), (low, ir.FLOAT))


def is_barrier(node: ir.Node) -> bool:
    """Whether a node hands on one tensor, and keeps XLA from fusing across it.

    Under XLA an emulated value has one between its two casts.
    """
    return node.op == "XlaOptimizationBarrier" and len(node.inputs) == 1


def hands_on(node: ir.Node, low: int) -> bool:
    """Whether a node gives the tensor that it takes, in either type."""
    if node.op == "Cast":
        return is_bridge(node, low)
    return is_barrier(node) and node.types("T") == (low,)


def is_any(node: ir.Node) -> bool:
    """Whether a node casts between float32 and float16 or bfloat16."""
    if node.op != "Cast":
        return False
    return is_bridge(node, ir.HALF) or is_bridge(node, ir.BFLOAT16)


def _ends(node: ir.Node) -> tuple[int, ...]:
    return (*node.types("SrcT"), *node.types("DstT"))
