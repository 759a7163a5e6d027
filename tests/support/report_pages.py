"""Reports of any number of nodes, as of a training step, and the data in a page."""

from __future__ import annotations

import json
import re
from typing import Any

from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.outcomes import RacedPlan
from amp.graph_rewrite.report import Report

# Name in its layer, op, rule ("" where the node is 16-bit), cause, and what it reads.
LAYER = (
    ("kernel/Read", "ReadVariableOp", "variable", "ReadVariableOp", ()),
    ("MatMul", "MatMul", "", "a product", (-1, 0)),
    ("BiasAdd", "BiasAdd", "", "MatMul", (1,)),
    ("Relu", "Relu", "", "BiasAdd", (2,)),
    ("norm/Mean", "Mean", "cancels", "norm/Mean", (3,)),
    ("norm/Sub", "Sub", "cancels", "norm/Mean", (3, 4)),
    ("norm/eps", "Const", "range", "norm/eps", ()),
    ("norm/add", "AddV2", "range", "norm/eps", (5, 6)),
    ("norm/mul", "Mul", "range", "norm/add", (5, 7)),
)


def large_report(nodes: int) -> Report:
    """A report on a chain of layers, ten to a block, with `nodes` decisions."""
    found = [Decision("x", "Placeholder", "float32", "fed", "x", elements=64)]
    while len(found) < nodes:
        found += _layer(len(found) // len(LAYER), len(found))
    found = found[:nodes]
    before = sum(one.seconds32 for one in found)
    after = sum(one.seconds for one in found)
    return Report(
        function="train_step",
        dtype="bfloat16",
        emulated=False,
        device="a device",
        loss_scale="none",
        nodes_total=nodes,
        nodes_low=sum(one.dtype != "float32" for one in found),
        casts=2,
        seconds32=before,
        seconds16=after,
        decisions=tuple(found),
        verdict=f"rewritten, predicted {before / after:.2f}x faster",
        plans=(
            RacedPlan("float32", before, before, 4, "won", 0, 0, 3 * 2**20),
            RacedPlan("everything", after, None, 0, "not made, the race was over"),
        ),
    )


def _layer(number: int, first: int) -> list[Decision]:
    scope = f"model/block_{number // 10}/layer_{number}/"
    names = {name for name, *_ in LAYER}
    return [
        Decision(
            node=scope + name,
            op=op,
            dtype="float32" if rule else "bfloat16",
            rule=rule or ("compute" if op == "MatMul" else "follow"),
            cause=scope + cause if cause in names else cause,
            seconds32=(number % 7 + 1) * 2e-5,
            seconds16=(number % 7 + 1) * 1e-5,
            elements=100 * (number + 1),
            reads=tuple(first + place for place in reads),
        )
        for name, op, rule, cause, reads in LAYER
    ]


def embedded(html: str) -> dict[str, Any]:
    """The data in a page."""
    found = re.search(r'<script id="data"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data
