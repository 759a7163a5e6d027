"""`loads`: what nodes do is counted from sizes, and is the same for any cost model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from rewriting import context_of, graph_def, module_of, spec, traced, v1

from amp.graph_rewrite.candidates.analysis import UseAnalysis, analyze
from amp.graph_rewrite.cost.loads import Load, loads_of
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.inline import inline
from amp.graph_rewrite.normalize.row_reads import read_rows


def step() -> None:
    """A product, an addition to it, and arithmetic on integers of which one is fed."""
    x = v1.placeholder(tf.float32, [8, 4], name="x")
    y = tf.matmul(x, tf.ones([4, 16]), name="product")
    tf.add(y, 1.0, name="sum")
    fed = v1.placeholder(tf.int32, [5], name="fed")
    tf.add(fed, np.int32(1), name="integers")
    tf.add(tf.constant([1, 2], name="known"), 3, name="folded")


def analyzed(**context: object) -> UseAnalysis:
    module = module_of(graph_def(step))
    made = dataclasses.replace(context_of(module), **context)
    (one,) = analyze(module, lambda use: made).uses.values()
    return one


def test_a_product_moves_its_tensors_and_multiplies() -> None:
    own = loads_of(analyzed()).own
    assert own["product"] == Load(
        "matmul", 8 * 4 + 4 * 16 + 8 * 16, 2 * 8 * 4 * 16, "MatMul"
    )


def test_arithmetic_only_moves() -> None:
    assert loads_of(analyzed()).own["sum"] == Load(
        "elementwise", 2 * 8 * 16 + 1, 0.0, "AddV2"
    )


@pytest.mark.parametrize(
    ("equation", "work"),
    [("bth,hno->btno", "matmul"), ("bshk,bthk->bhts", "batch_matmul")],
)
def test_an_einsum_is_work_of_the_kernel_that_multiplies(
    equation: str, work: str
) -> None:
    def step() -> None:
        sizes = {label: 2 + i for i, label in enumerate("bthnosk")}
        x, y = (
            v1.placeholder(tf.float32, [sizes[label] for label in term])
            for term in equation.split("->")[0].split(",")
        )
        tf.raw_ops.Einsum(inputs=[x, y], equation=equation, name="product")

    module = module_of(graph_def(step))
    (one,) = analyze(module, lambda use: context_of(module)).uses.values()
    assert loads_of(one).own["product"].work == work


def test_nodes_of_other_types_are_counted_apart() -> None:
    loads = loads_of(analyzed())
    assert "integers" not in loads.own
    assert (1.0, Load("elementwise", 5 + 1 + 5, 0.0, "AddV2")) in loads.rest


def test_under_xla_these_are_part_of_other_loops() -> None:
    loads = loads_of(analyzed(xla=True))
    assert "product" in loads.own
    assert loads.rest == ()


def lookup(written: tf.Variable, read: tf.Variable) -> UseAnalysis:
    """A step that writes rows of a variable and uses all of it, as of another."""

    def step(ids: tf.Tensor) -> tf.Tensor:
        used = tf.reduce_sum(tf.convert_to_tensor(written) * read)
        rows = tf.gather(tf.convert_to_tensor(written), ids)
        written.scatter_sub(tf.IndexedSlices(rows, ids))
        return used

    module = read_rows(inline(traced(step, spec(3, dtype=tf.int32))[0]), False)
    shapes = {node.name: (8, 4) for node in module.main.nodes.values()}
    sized = module.main.with_shapes(lambda _: lambda edge: shapes.get(edge[0]))
    module = ir.Module(sized, module.functions)
    (one,) = analyze(module, lambda use: context_of(module)).uses.values()
    return one


def test_a_read_of_a_variable_of_which_rows_are_written_is_a_copy() -> None:
    """Of any other it gives the variable's memory."""
    rows, other = tf.Variable(tf.zeros([8, 4])), tf.Variable(tf.zeros([8, 4]))
    one = lookup(rows, other)
    reads = [n for n in one.graph.nodes.values() if n.op == "ReadVariableOp"]
    assert len(reads) == 2
    copies = [load for _, load in loads_of(one).rest if load.work == "copy"]
    assert copies == [Load("copy", 2 * 8 * 4, 0.0)]


def test_a_lookup_of_rows_spares_such_a_copy() -> None:
    rows, other = tf.Variable(tf.zeros([8, 4])), tf.Variable(tf.zeros([8, 4]))
    one = lookup(rows, other)
    assert "ResourceGather" in one.graph.ops
    assert [load.work for _, load in loads_of(one).spared] == ["copy"]
    assert loads_of(analyzed()).spared == ()


@pytest.mark.parametrize(
    ("stride", "work"), [(1, "depthwise"), (2, "depthwise_grad_strided")]
)
def test_the_gradient_of_a_strided_depthwise_convolution_is_work_of_its_own(
    stride: int, work: str
) -> None:
    """oneDNN has no fast kernel for it in 16 bits: 16.7 ms for 1.0 in float32."""

    def build() -> None:
        x = v1.placeholder(tf.float32, [2, 8, 8, 4], name="x")
        w = v1.placeholder(tf.float32, [3, 3, 4, 1], name="w")
        y = tf.nn.depthwise_conv2d(x, w, [1, stride, stride, 1], "SAME")
        tf.gradients(y, [x, w])

    module = module_of(graph_def(build))
    context = context_of(module)
    (one,) = analyze(module, lambda use: context).uses.values()
    own = loads_of(one).own.values()
    works = {load.op: load.work for load in own if "Depthwise" in load.op}
    assert works.pop("DepthwiseConv2dNativeBackpropInput") == work
    assert set(works.values()) == {"depthwise"}


@pytest.mark.parametrize(
    ("rows", "transposed", "work"),
    [
        (4, True, "matmul_transposed"),
        (4, False, "matmul"),
        (64, True, "matmul"),  # its result is larger than its second operand
    ],
)
def test_a_product_of_few_rows_with_a_transposed_operand_is_work_of_its_own(
    rows: int, transposed: bool, work: str
) -> None:
    """oneDNN takes five times as long for it in float32 on AVX512-BF16."""

    def build() -> None:
        sizes = [32, 16] if transposed else [16, 32]
        x, w = v1.placeholder(tf.float32, [rows, 16]), v1.placeholder(tf.float32, sizes)
        tf.matmul(x, w, transpose_b=transposed, name="product")

    module = module_of(graph_def(build))
    context = context_of(module)
    (one,) = analyze(module, lambda use: context).uses.values()
    assert loads_of(one).own["product"].work == work


def test_channels_first_and_a_filter_elsewhere_are_not_taken_for_groups() -> None:
    """A filter of 4 by 2 was read where the op has its paddings."""

    def build() -> None:
        volume = v1.placeholder(tf.float32, [2, 3, 8, 8, 8])
        window = v1.placeholder(tf.float32, [3, 3, 3, 3, 4])
        tf.nn.conv3d(volume, window, [1] * 5, "SAME", data_format="NCDHW", name="first")
        tf.raw_ops.FusedPadConv2D(
            input=v1.placeholder(tf.float32, [2, 8, 8, 16]),
            paddings=np.zeros([4, 2], np.int32),
            filter=v1.placeholder(tf.float32, [3, 3, 16, 4]),
            mode="REFLECT",
            strides=[1, 1, 1, 1],
            padding="SAME",
            name="padded",
        )

    module = module_of(graph_def(build))
    context = context_of(module)
    (one,) = analyze(module, lambda use: context).uses.values()
    own = loads_of(one).own
    assert own["first"].work == "conv"
    assert own["padded"].work == "conv"
