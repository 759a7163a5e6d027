"""`attributes`: what is written is read back; rounding is TensorFlow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from amp.graph_rewrite.graph import attributes, ir


def written(value: ir.Value) -> attr_value_pb2.AttrValue:
    proto = attr_value_pb2.AttrValue()
    attributes.write(proto, value)
    return proto


def reader(**values: ir.Value) -> attributes.NodeAttributes:
    proto = node_def_pb2.NodeDef()
    for name, value in values.items():
        attributes.write(proto.attr[name], value)
    return attributes.NodeAttributes(proto)


def test_what_is_written_is_read_back() -> None:
    shapes = ((2, -1), (), None)
    held = reader(
        t=ir.Type(ir.HALF),
        ts=ir.Types((ir.FLOAT, ir.HALF)),
        f=ir.Function("body"),
        s=ir.Shapes(shapes),
        i=-3,
        b=True,
        text="same",
    )
    assert held.types("t") == (ir.HALF,)
    assert held.types("ts") == (ir.FLOAT, ir.HALF)
    assert held.functions("f") == ("body",)
    assert held.shapes("s") == shapes
    assert held.integer("i", 0) == -3
    assert held.flag("b")
    assert held.text("text") == "same"


def test_an_absent_attribute_reads_as_nothing_and_stays_absent() -> None:
    held = reader()
    assert held.types("x") == held.functions("x") == held.shapes("x") == ()
    assert held.shape("x") is held.tensor("x") is None
    assert held.integer("x", 7) == 7
    assert held.text("x") == ""
    assert not held.flag("x")
    assert held.integers("x") == ()
    assert "x" not in held


def test_a_list_of_numbers_is_read() -> None:
    proto = node_def_pb2.NodeDef()
    proto.attr["ksize"].list.i.extend([1, 3, 3, 1])
    assert attributes.NodeAttributes(proto).integers("ksize") == (1, 3, 3, 1)


def test_a_list_of_functions_keeps_what_else_is_said_of_each() -> None:
    proto = attr_value_pb2.AttrValue()
    for name in ("one", "two"):
        proto.list.func.add(name=name).attr["T"].type = ir.FLOAT
    attributes.write(proto, ir.Functions(("three", "four")))
    assert [f.name for f in proto.list.func] == ["three", "four"]
    assert all(f.attr["T"].type == ir.FLOAT for f in proto.list.func)


def test_one_value_repeated_is_kept_as_one() -> None:
    proto = written(ir.Tensor(np.broadcast_to(np.float32(0.5), (1000, 1000)), ir.FLOAT))
    assert proto.ByteSize() < 100
    held = reader(value=ir.Tensor(np.full((3, 2), 0.5, np.float32), ir.FLOAT))
    np.testing.assert_array_equal(held.tensor("value"), np.full((3, 2), 0.5))


def test_the_key_leaves_out_name_and_inputs_and_bare_leaves_out_private_ones() -> None:
    one = node_def_pb2.NodeDef(name="a", op="Relu", input=["x"])
    two = node_def_pb2.NodeDef(name="b", op="Relu", input=["y"])
    for proto in (one, two):
        proto.attr["T"].type = ir.FLOAT
    two.attr["_output_shapes"].i = 1
    two.attr["_amp_keep"].b = True
    assert attributes.NodeAttributes(one).key() != attributes.NodeAttributes(two).key()
    bare = attributes.NodeAttributes(two).bare()
    assert "_output_shapes" not in bare
    assert "_amp_keep" in bare
    del two.attr["_output_shapes"], two.attr["_amp_keep"]
    assert attributes.NodeAttributes(one).key() == attributes.NodeAttributes(two).key()


FORMATS = [
    pytest.param(ir.HALF, tf.float16, id="float16"),
    pytest.param(ir.BFLOAT16, tf.bfloat16, id="bfloat16"),
]


@pytest.mark.parametrize(("number", "dtype"), FORMATS)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_a_rounded_constant_is_the_tensor_that_the_cast_gives(
    number: int, dtype: Any, shape: tuple[int, ...]
) -> None:
    values = np.full(shape, 1 / 3, np.float32)
    array = tf.make_ndarray(written(ir.Tensor(values, number)).tensor)
    np.testing.assert_array_equal(array, tf.cast(values, dtype).numpy())
    assert array.shape == shape


@pytest.mark.parametrize("values", [True, [[False, True]]])
def test_booleans_are_constants_too(values: Any) -> None:
    array = tf.make_ndarray(written(ir.Tensor(np.array(values), ir.BOOL)).tensor)
    np.testing.assert_array_equal(array, np.array(values))
    assert array.dtype == bool


def test_small_constants_are_read_once_and_large_ones_take_no_memory() -> None:
    small, large = np.arange(64, dtype=np.float32), np.arange(65, dtype=np.float32)
    held = reader(small=ir.Tensor(small, ir.FLOAT), large=ir.Tensor(large, ir.FLOAT))
    assert held.tensor("small") is held.tensor("small")
    assert held.tensor("large") is not held.tensor("large")
    np.testing.assert_array_equal(held.tensor("small"), small)
    np.testing.assert_array_equal(held.tensor("large"), large)
