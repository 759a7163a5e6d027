"""`context`: formats are the types' own limits; a node is typed by its attributes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from rewriting import context_of, graph_def, matmul_chain, module_of

from amp.graph_rewrite.candidates.context import (
    FORMATS,
    Typed,
    is_low,
    turning,
    type_ports,
)
from amp.graph_rewrite.graph import ir


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_format_has_the_limits_of_its_type(name: str) -> None:
    limits = ml_dtypes.finfo(getattr(tf, name).as_numpy_dtype)
    found = FORMATS[name]
    assert found.largest == float(limits.max)
    assert found.smallest == float(limits.smallest_normal)
    assert found.counts == 2 ** (limits.nmant + 1)
    assert found.number == getattr(tf, name).as_datatype_enum


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_integers_are_exact_up_to_what_a_format_counts(name: str) -> None:
    counts = FORMATS[name].counts
    dtype = getattr(tf, name).as_numpy_dtype
    assert np.float32(dtype(counts)) == counts
    assert np.float32(dtype(counts + 1)) != counts + 1


def typed(**fields: object) -> dict[str, Typed]:
    module = module_of(graph_def(matmul_chain))
    return type_ports(module.main, context_of(module, **fields))


def test_the_attributes_that_turn_are_the_float32_ones_of_the_row() -> None:
    views = typed()
    assert turning(views["product"], ir.HALF) == {"T": ir.HALF}
    assert turning(views["x"], ir.HALF) == {}
    assert turning(views["out"], ir.HALF) == {"T": ir.HALF}  # and not Tshape


def test_a_node_is_low_by_its_type_or_its_mark() -> None:
    views = typed()
    node = views["product"].node
    low = node.changed(updates={"T": ir.Type(ir.BFLOAT16)})
    marked = node.changed(updates={ir.EMULATED: "bfloat16"})
    row, signature = views["product"].row, views["product"].signature
    assert not is_low(views["product"], ir.BFLOAT16)
    assert is_low(Typed(low, row, signature), ir.BFLOAT16)
    assert not is_low(Typed(low, row, signature), ir.HALF)
    assert is_low(Typed(marked, row, signature), ir.BFLOAT16)


def test_an_unknown_op_has_no_ports() -> None:
    module = module_of(graph_def(matmul_chain))
    strange = ir.Node("strange", "NoSuchOp", (("x", 0),), (), "", None)
    graph = module.main.with_nodes({**module.main.nodes, "strange": strange})
    view = type_ports(graph, context_of(module))["strange"]
    assert view.ins == view.outs == ()
    assert not view.touches(ir.FLOAT)
