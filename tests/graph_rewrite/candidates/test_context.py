"""`context`: formats are the types' own limits; a node is typed by its attributes."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from rewriting import context_of, graph_def, matmul_chain, module_of

from amp.graph_rewrite import verify
from amp.graph_rewrite.candidates.context import (
    FORMATS,
    Typed,
    is_low,
    kind_of,
    turning,
    type_ports,
)
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.ops.op_table import TABLE, Role, Row
from amp.policy import Policy


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


KEPT = [row for row in TABLE.values() if row.role is Role.KEEP]


@pytest.mark.parametrize("row", KEPT, ids=lambda row: row.op)
def test_allowing_an_op_gives_it_a_role_and_keeps_all_else_that_is_known(
    row: Row,
) -> None:
    if op_schema.schema(row.op) is None:
        pytest.skip("no public OpDef")
    node = ir.Node("n", row.op, (), (), "", None, {})
    graph = module_of(graph_def(matmul_chain)).main.with_nodes({"n": node})
    policy = Policy(dtype="float16", allow=(row.op,))
    context = dataclasses.replace(context_of(ir.Module(graph, {})), policy=policy)
    found = type_ports(graph, context)["n"].row
    assert found is not None
    assert found.role is Role.FOLLOW
    assert found == dataclasses.replace(
        row, role=Role.FOLLOW, why=found.why, source=found.source
    )


def test_an_op_without_a_role_turns_by_every_type_that_may_be_16_bit() -> None:
    node = ir.Node("n", "Lgamma", (), (), "", None, {"T": ir.Type(ir.FLOAT)})
    module = module_of(graph_def(matmul_chain))
    graph = module.main.with_nodes({"n": node})
    policy = Policy(dtype="float16", allow=("Lgamma",))
    context = dataclasses.replace(context_of(module), policy=policy)
    view = type_ports(graph, context)["n"]
    assert turning(view, ir.HALF) == {"T": ir.HALF}


def test_a_node_is_low_by_its_type_or_its_mark() -> None:
    views = typed()
    node = views["product"].node
    low = node.changed(updates={"T": ir.Type(ir.BFLOAT16)})
    marked = node.changed(updates={ir.EMULATED: "bfloat16"})
    row, signature = views["product"].row, views["product"].signature
    assert not is_low(views["product"], ir.BFLOAT16)
    assert is_low(Typed.of(low, row, signature), ir.BFLOAT16)
    assert not is_low(Typed.of(low, row, signature), ir.HALF)
    assert is_low(Typed.of(marked, row, signature), ir.BFLOAT16)


def test_an_unknown_op_reads_what_is_made_and_keeps_to_it() -> None:
    module = module_of(graph_def(matmul_chain))
    context = context_of(module)
    strange = ir.Node("strange", "NoSuchOp", (("x", 0), ("other", 0)), (), "", None)
    other = ir.Node("other", "NoSuchOp", (), (), "", None)
    nodes = {**module.main.nodes, "strange": strange, "other": other}
    typed = type_ports(module.main.with_nodes(nodes), context)
    view = typed["strange"]
    assert [slot.type for slot in view.ins] == [ir.FLOAT, 0]
    assert view.outs == ()
    assert not view.float32
    changed = strange.changed((("low", 0), ("other", 0)))
    types = {"SrcT": ir.Type(ir.FLOAT), "DstT": ir.Type(ir.BFLOAT16)}
    low = ir.Node("low", "Cast", (("x", 0),), (), "", None, types)
    graph = module.main.with_nodes({**nodes, "low": low, "strange": changed})
    after = type_ports(graph, context, typed)
    assert after["strange"].ins == view.ins
    (problem,) = verify.well_typed(graph, after)
    assert "bfloat16" in problem.found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", ""),
        ("/CPU:0", "CPU"),
        ("/gpu:1", "GPU"),
        ("GPU:1", "GPU"),
        ("/device:GPU:*", "GPU"),
        ("/job:worker/replica:0/task:1/device:cpu:0", "CPU"),
        ("/job:worker/replica:0/task:1", ""),
        ("/job:cpu/task:0", ""),
        ("/device:XLA_CPU_JIT:0", "XLA_CPU_JIT"),
    ],
)
def test_the_kind_of_a_device_is_in_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind
