"""The laws of the white-list, against TensorFlow's own lists, OpDefs and kernels."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from amp.errors import AmpError
from amp.graph_rewrite.ops import op_table
from amp.graph_rewrite.ops.op_table import ROWS, TABLE, Kind, Role, Row, facts

LISTED = sorted(TABLE.values(), key=lambda row: row.op)
every_row = pytest.mark.parametrize("row", LISTED, ids=lambda row: row.op)


def words(text: str) -> list[str]:
    return text.split()


# Named by TensorFlow's lists, registered by no public build.
WITHOUT_OPDEF = words(
    """
    FastUnsortedSegmentMax FusedConv2DBiasActivation FusedSparseConvGpuV2 Mha MhaV2 Pmlp
    Tmlp TmlpV2 TmlpV3 VoxelMax
    """
)

# The role that each of TensorFlow's lists stands for.
USUAL = {
    "tf:allow": {Role.COMPUTE},
    "tf:infer": {Role.FOLLOW},
    "tf:deny": {Role.KEEP},
    "tf:clear": {Role.MOVE, Role.FOLLOW},
}


@functools.cache
def tensorflow_lists() -> dict[str, frozenset[str]]:
    """Returns op names by source key, both variants of each list together."""
    header = "tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h"
    text = pathlib.Path(tf.sysconfig.get_include(), header).read_text()
    bodies = re.findall(
        r"FlatSet<string> (\w+)List\(\) override \{(.*?)return list;", text, re.DOTALL
    )
    lists: dict[str, set[str]] = {}
    for kind, body in bodies:
        body = re.sub(r"//[^\n]*|UpdateList\([^)]*\)", "", body)
        lists.setdefault(f"tf:{kind.lower()}", set()).update(
            re.findall(r'"(\w+)"', body)
        )
    list_ops = re.findall(r'"(TensorList\w+)"', text)
    lists["tf:clear"].update(list_ops)
    return {key: frozenset(ops) for key, ops in lists.items()}


def keys_of(op: str) -> set[str]:
    return {key for key, ops in tensorflow_lists().items() if op in ops}


def op_def(row: Row) -> Any:
    if row.op in WITHOUT_OPDEF:
        pytest.skip("no public OpDef")
    return op_def_registry.get(row.op)


def arguments(definition: Any) -> Iterator[Any]:
    yield from definition.input_arg
    yield from definition.output_arg


def type_attr(argument: Any) -> str:
    return argument.type_attr or argument.type_list_attr


def allows_float32(definition: Any, attr: str) -> bool:
    (found,) = [a for a in definition.attr if a.name == attr]
    allowed = found.allowed_values.list.type
    return not allowed or tf.float32.as_datatype_enum in allowed


def may_be_float32(definition: Any, argument: Any) -> bool:
    attr = type_attr(argument)
    if attr:
        return allows_float32(definition, attr)
    return bool(argument.type == tf.float32.as_datatype_enum)


def test_the_header_was_parsed() -> None:
    lists = tensorflow_lists()
    assert set(lists) == set(USUAL)
    assert {"MatMul", "CudnnRNNV3", "FusedPadConv2D"} <= lists["tf:allow"]
    assert {"Rsqrt", "_FusedBatchNormEx"} <= lists["tf:infer"]
    assert {"Sum", "SaveV2"} <= lists["tf:deny"]
    assert {"While", "TensorListStack", "ZerosLike"} <= lists["tf:clear"]


@pytest.mark.parametrize("key", USUAL)
def test_every_op_of_tensorflows_lists_has_a_row(key: str) -> None:
    assert tensorflow_lists()[key] - set(TABLE) == set()


@every_row
def test_source_names_the_list_that_holds_the_op(row: Row) -> None:
    assert row.source in op_table.SOURCES
    if row.source.startswith("tf:"):
        assert row.source in keys_of(row.op)
    elif keys_of(row.op):
        assert "TensorFlow" in row.why or row.source == "opdef"


@every_row
def test_a_role_unlike_tensorflows_says_so(row: Row) -> None:
    keys = keys_of(row.op)
    if keys and not any(row.role in USUAL[key] for key in keys):
        assert "TensorFlow" in row.why


@every_row
def test_row_is_whole(row: Row) -> None:
    assert row.op == row.op.strip() != ""
    assert 3 < len(row.why) <= 160
    assert row.work in op_table.WORK
    for device_type in ("CPU", "GPU"):
        assert set(row.adds_up_low(device_type)) <= {"float16", "bfloat16"}
    assert len(set(row.attrs)) == len(row.attrs)


@every_row
def test_attrs_are_type_attributes_that_allow_float32(row: Row) -> None:
    definition = op_def(row)
    kinds = {attr.name: attr.type for attr in definition.attr}
    for attr in row.attrs:
        assert kinds[attr] in ("type", "list(type)")
        assert allows_float32(definition, attr)


@every_row
def test_float32_ports_are_all_that_attrs_do_not_rule(row: Row) -> None:
    """Law: an argument that may be float32 is ruled by `attrs` or named as a port."""
    definition = op_def(row)
    free = {
        argument.name
        for argument in arguments(definition)
        if type_attr(argument) not in row.attrs and may_be_float32(definition, argument)
    }
    assert free == set(row.float32_ports)


@every_row
def test_a_convertible_row_has_a_16_bit_type(row: Row) -> None:
    if row.role is Role.KEEP:
        return
    definition = op_def(row)
    allowed = {a.name: a.allowed_values.list.type for a in definition.attr}
    low = {t.as_datatype_enum for t in (tf.float16, tf.bfloat16)}
    assert all(not allowed[attr] or low & set(allowed[attr]) for attr in row.attrs)


@every_row
def test_moves_have_one_converted_type(row: Row) -> None:
    """Law: besides the type that turns, a MOVE op handles integers, bools, handles."""
    if row.role is not Role.MOVE:
        return
    definition = op_def(row)
    assert row.float32_ports == row.flows
    assert row.accumulates_low == ()
    assert not row.sums
    assert len(row.attrs) == 1 or row.same_list
    others = (tf.int32, tf.int64, tf.bool, tf.variant, tf.resource)
    for argument in arguments(definition):
        attr = type_attr(argument)
        if not attr and argument.name not in row.flows:
            assert argument.type in {t.as_datatype_enum for t in others}
        elif attr and attr not in row.attrs:
            assert not allows_float32(definition, attr)


@every_row
def test_singular_ports_exist(row: Row) -> None:
    if row.singular:
        assert max(row.singular) < len(op_def(row).input_arg)


@every_row
def test_list_ops_are_known_as_such(row: Row) -> None:
    named = re.match(r"(Empty)?TensorList|TensorArray|Stack", row.op) is not None
    assert named == (row.same_list or (row.hands_on_list and row.role is Role.KEEP))


@every_row
def test_flows_are_the_float32_that_has_no_type_attribute(row: Row) -> None:
    """Law: they are named as such; no cast may change them, nor is there one."""
    plain = (a for a in arguments(op_def(row)) if a.type == tf.float32.as_datatype_enum)
    if row.flows:
        assert {argument.name for argument in plain} == set(row.flows)
        assert all("flow" in name for name in row.flows)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.op)
def test_every_fact_has_an_op(row: Row) -> None:
    """Law: a row is of an op that TensorFlow registers, or that its lists name."""
    assert row.op in WITHOUT_OPDEF or op_def_registry.get(row.op) is not None
    assert facts(row.op) is row


def test_an_op_without_a_role_decides_nothing() -> None:
    apart = [row for row in ROWS.values() if row.role is None]
    assert {"Cast", "Const", "ReadVariableOp"} <= {row.op for row in apart}
    for row in apart:
        assert row.op not in TABLE
        assert row.attrs == row.singular == row.accumulates_low == ()
        assert not row.bounded
        assert not row.sums


def test_writers_are_known_by_their_names() -> None:
    """Law: what is taken for a writer has a variable for its first input."""
    registered = [name for name in dir(tf.raw_ops) if op_def_registry.get(name)]
    writers = [op for op in registered if facts(op).kind is Kind.WRITE]
    assert {"AssignVariableOp", "ResourceApplyAdam", "ScatterAdd"} <= set(writers)
    assert {"ResourceSparseApplyFtrl", "ApplyAdam"} <= set(writers)
    for op in writers:
        first = op_def_registry.get(op).input_arg[0]
        assert first.is_ref or first.type == tf.resource.as_datatype_enum, op


def test_what_writes_rows_takes_their_indices() -> None:
    """Law: a writer of rows has an input with their indices."""
    registered = [name for name in dir(tf.raw_ops) if op_def_registry.get(name)]
    writers = [op for op in registered if facts(op).writes_rows]
    assert {"ResourceScatterAdd", "ResourceSparseApplyAdagradV2"} <= set(writers)
    for op in writers:
        args = op_def_registry.get(op).input_arg
        assert any("indices" in arg.name for arg in args), op
    assert not facts("ResourceApplyAdam").writes_rows
    assert not facts("ScatterNd").writes_rows


def test_what_reads_a_variable_takes_its_handle() -> None:
    readers = [row.op for row in ROWS.values() if row.only_reads]
    assert "ReadVariableOp" in readers
    for op in readers:
        first = op_def_registry.get(op).input_arg[0]
        assert first.type == tf.resource.as_datatype_enum, op


def test_tensorflows_control_flow_in_frames_is_known_as_such() -> None:
    known = {row.op for row in ROWS.values() if row.in_frames}
    names = ("Switch", "Merge", "Enter", "Exit", "NextIteration")
    assert known == {*names, *(f"Ref{n}" for n in names), "_SwitchN", "LoopCond"}


def test_nothing_is_known_of_an_op_without_a_row() -> None:
    row = facts("RandomUniform")
    assert row.role is None
    assert row.kind is Kind.OTHER
    assert not row.fusible


def test_ops_whose_type_is_not_ours_to_choose_have_no_row() -> None:
    ours = {"Cast", "Const", "ReadVariableOp", "Placeholder", "RandomUniform"}
    assert ours.isdisjoint(TABLE)


def test_table_is_read_only_and_rows_are_values() -> None:
    row = TABLE["MatMul"]
    with pytest.raises(TypeError):
        TABLE["MatMul"] = row  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.role = Role.KEEP  # type: ignore[misc]


def test_an_op_with_two_rows_is_an_error() -> None:
    row = TABLE["MatMul"]
    with pytest.raises(AmpError, match="MatMul has two rows"):
        op_table.by_name([row, row])


def test_importing_the_table_imports_no_tensorflow() -> None:
    name = "amp.graph_rewrite.ops.op_table"
    code = f"import sys, {name}; sys.exit('tensorflow' in sys.modules)"
    root = pathlib.Path(op_table.__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def compiled(op: str) -> list[dict[str, set[int]]]:
    """The types that XLA's kernels for an op on a CPU take, by attribute."""
    tf.function(tf.identity, jit_compile=True)(1.0)  # which registers them
    return [
        {limit.name: set(limit.allowed_values.list.type) for limit in kernel.constraint}
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if kernel.device_type == "XLA_CPU_JIT"
    ]


@every_row
def test_what_xla_compiles_in_float32_only_is_said(row: Row) -> None:
    """Law: of the types that the OpDef allows; an op that XLA does not know is free."""
    if row.role is Role.KEEP or not (found := compiled(row.op)):
        return
    definition = op_def(row)
    allowed = {a.name: set(a.allowed_values.list.type) for a in definition.attr}
    low = {t.as_datatype_enum for t in (tf.float16, tf.bfloat16)}
    may = all(
        any((allowed[attr] or low) & low & limits.get(attr, low) for limits in found)
        for attr in row.attrs
    )
    assert may is not row.float32_under_xla


raw = tf.raw_ops
Probe = Callable[[Any], Any]


def call(op: str, operands: list[tf.Tensor]) -> tf.Tensor:
    names = [argument.name for argument in op_def_registry.get(op).input_arg]
    return getattr(raw, op)(**dict(zip(names, operands, strict=True)))


def value_and_slopes(op: str, values: list[float]) -> list[float]:
    operands = [tf.constant([value]) for value in values]
    with tf.GradientTape() as tape:
        tape.watch(operands)
        result = call(op, operands)
    slopes = tape.gradient(result, operands)
    return [float(t[0]) for t in (result, *slopes) if t is not None]


SMOOTH = words(
    """
    Add AddV2 Mul Sub RealDiv Div Xdivy Xlogy Xlog1py Pow Square SquaredDifference Sqrt
    Rsqrt Reciprocal Inv Log Log1p Exp Expm1 Sigmoid Tanh Erf Erfc Elu Selu Softplus
    Softsign MulNoNan SqrtGrad ReciprocalGrad FloorDiv
    """
)


@pytest.mark.parametrize("op", SMOOTH)
def test_singular_is_where_zero_gives_no_finite_value_or_slope(op: str) -> None:
    arity = len(op_def_registry.get(op).input_arg)
    found = []
    for port in range(arity):
        values = [0.5] * arity
        values[port] = 0.0
        if not np.isfinite(value_and_slopes(op, values)).all():
            found.append(port)
    assert tuple(found) == TABLE[op].singular


@pytest.mark.parametrize("op", SMOOTH)
def test_poles_are_where_zero_gives_no_finite_value_whatever_the_others_are(
    op: str,
) -> None:
    arity = len(op_def_registry.get(op).input_arg)
    found = []
    for port in range(arity):
        finite = False
        for other in (0.0, 0.5):
            values = [other] * arity
            values[port] = 0.0
            finite |= bool(np.isfinite(value_and_slopes(op, values)[0]))
        if not finite:
            found.append(port)
    assert tuple(found) == TABLE[op].poles


@pytest.mark.parametrize("op", [row.op for row in TABLE.values() if row.zero])
def test_what_gives_zero_at_zero_does(op: str) -> None:
    assert value_and_slopes(op, [0.0])[0] == 0.0


@pytest.mark.parametrize(
    "op",
    words(
        """
        Abs Elu Erf Erfc Exp LogSoftmax Log1p Neg Relu Relu6 Selu Sigmoid Sign Softmax
        Softplus Softsign Sqrt Square Tanh
        """
    ),
)
def test_bounded_is_what_a_huge_value_shows(op: str) -> None:
    results = [call(op, [tf.constant([[huge, 0.0]])]) for huge in (1e9, -1e9)]
    assert (np.nanmax(np.abs(results)) <= 6) == TABLE[op].bounded


X = tf.constant(np.random.default_rng(0).permutation(np.arange(2.0, 66.0)), tf.float32)
MOVES: dict[str, Probe] = {
    "Transpose": lambda x: raw.Transpose(x=tf.reshape(x, [8, 8]), perm=[1, 0]),
    "Tile": lambda x: raw.Tile(input=x, multiples=[2]),
    "MirrorPad": lambda x: raw.MirrorPad(input=x, paddings=[[2, 3]], mode="REFLECT"),
    "Pad": lambda x: raw.Pad(input=x, paddings=[[2, 3]]),
    "SelectV2": lambda x: raw.SelectV2(condition=x > 9, t=x, e=x[::-1]),
    "SpaceToDepth": lambda x: raw.SpaceToDepth(
        input=tf.reshape(x, [1, 8, 8, 1]), block_size=2
    ),
    "SpaceToBatchND": lambda x: raw.SpaceToBatchND(
        input=tf.reshape(x, [1, 64, 1]), block_shape=[3], paddings=[[1, 1]]
    ),
    "StridedSliceGrad": lambda x: raw.StridedSliceGrad(
        shape=[200], begin=[3], end=[131], strides=[2], dy=x
    ),
    "DynamicStitch": lambda x: raw.DynamicStitch(
        indices=[np.arange(64), np.arange(8)], data=[x, x[:8]]
    ),
    "TensorScatterUpdate": lambda x: raw.TensorScatterUpdate(
        tensor=x, indices=[[3], [4]], updates=x[:2]
    ),
    "ReverseSequence": lambda x: raw.ReverseSequence(
        input=tf.reshape(x, [8, 8]), seq_lengths=[3] * 8, seq_dim=1
    ),
    "MatrixBandPart": lambda x: raw.MatrixBandPart(
        input=tf.reshape(x, [8, 8]), num_lower=1, num_upper=2
    ),
    "MatrixDiagV3": lambda x: raw.MatrixDiagV3(
        diagonal=x, k=1, num_rows=-1, num_cols=-1, padding_value=0.0
    ),
    "ExtractImagePatches": lambda x: raw.ExtractImagePatches(
        images=tf.reshape(x, [1, 8, 8, 1]),
        ksizes=[1, 3, 3, 1],
        strides=[1, 1, 1, 1],
        rates=[1, 1, 1, 1],
        padding="SAME",
    ),
    "ResizeNearestNeighbor": lambda x: raw.ResizeNearestNeighbor(
        images=tf.reshape(x, [1, 8, 8, 1]), size=[5, 20]
    ),
    "OnesLike": lambda x: raw.OnesLike(x=x),
}


@pytest.mark.parametrize("op", MOVES)
def test_moves_make_no_new_value(op: str) -> None:
    assert TABLE[op].role is Role.MOVE
    made = set(MOVES[op](X).numpy().ravel().tolist())
    assert made <= {0.0, 1.0, *X.numpy().tolist()}
