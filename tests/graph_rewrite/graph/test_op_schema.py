"""`op_schema`: ports, types and kernels are what TensorFlow itself registers."""

from __future__ import annotations

import pytest
import tensorflow as tf
from rewriting import graph_def, matmul_chain, module_of, spec, traced, v1

from amp.graph_rewrite.graph import ir, op_schema


def only(build: object, op: str) -> ir.Node:
    main = module_of(graph_def(build)).main
    return next(node for node in main.nodes.values() if node.op == op)


def types(slots: tuple[op_schema.Slot, ...]) -> list[int]:
    return [slot.type for slot in slots]


def signature(node: ir.Node) -> op_schema.Signature:
    known = op_schema.schema(node.op)
    assert known is not None
    return known.signature(node)


def test_an_op_that_is_not_registered_has_no_schema() -> None:
    assert op_schema.schema("NoSuchOp") is None
    assert not op_schema.accepts("NoSuchOp", {"T": ir.HALF})


def test_an_op_may_be_registered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `tf.load_op_library`, after an error has said that it is not there."""
    registry = op_schema.op_def_registry
    get, relu = registry.get, registry.get("Relu")
    assert op_schema.schema("LaterOp") is None
    assert op_schema.is_stateful("LaterOp")
    later = {"LaterOp": relu}
    monkeypatch.setattr(registry, "get", lambda op: later.get(op) or get(op))
    monkeypatch.delitem(op_schema._REGISTERED, "LaterOp", raising=False)
    assert op_schema.schema("LaterOp") == op_schema.from_op_def(relu)
    assert not op_schema.is_stateful("LaterOp")
    op_schema._REGISTERED.pop("LaterOp")


def test_attributes_type_the_ports() -> None:
    product = only(matmul_chain, "MatMul")
    assert types(signature(product).ins) == [ir.FLOAT, ir.FLOAT]
    assert {slot.attr for slot in signature(product).ins} == {"T"}
    assert types(signature(product).outs) == [ir.FLOAT]


def test_a_list_attribute_types_each_tensor_of_its_port() -> None:
    def build() -> None:
        tf.raw_ops.IdentityN(input=[tf.constant(1.0), tf.constant(2), tf.constant(3.0)])

    found = signature(only(build, "IdentityN"))
    assert types(found.ins) == [ir.FLOAT, ir.INT32, ir.FLOAT]
    assert [slot.index for slot in found.outs] == [0, 1, 2]


def test_a_number_attribute_counts_the_tensors_of_its_port() -> None:
    def build() -> None:
        tf.concat([tf.ones([2]), tf.ones([3]), tf.ones([4])], 0)

    found = signature(only(build, "ConcatV2"))
    assert types(found.ins) == [ir.FLOAT] * 3 + [ir.INT32]
    assert [slot.port for slot in found.ins] == ["values"] * 3 + ["axis"]


def test_statistics_of_batch_norm_have_an_attribute_of_their_own() -> None:
    def build() -> None:
        ones = tf.ones([3])
        tf.raw_ops.FusedBatchNormV3(
            x=tf.ones([1, 2, 2, 3]), scale=ones, offset=ones, mean=ones, variance=ones
        )

    found = signature(only(build, "FusedBatchNormV3"))
    assert [slot.attr for slot in found.ins] == ["T", "U", "U", "U", "U"]
    assert [slot.attr for slot in found.outs] == ["T"] + ["U"] * 5


def test_a_reference_is_told_from_its_value() -> None:
    def build() -> None:
        v1.Variable(tf.ones([2]), use_resource=False, trainable=False)

    found = signature(only(build, "VariableV2"))
    assert types(found.outs) == [ir.FLOAT + ir.REF_OFFSET]


def test_a_function_is_typed_by_its_signature() -> None:
    module, concrete = traced(lambda x: (x, tf.cast(x, tf.int32)), spec(2))
    known = op_schema.from_op_def(module.main.origin.signature)
    caller = ir.Node("call", concrete.name, (), (), "", None)
    assert types(known.signature(caller).ins) == [ir.FLOAT]
    assert types(known.signature(caller).outs) == [ir.FLOAT, ir.INT32]


def test_the_same_attributes_give_the_same_signature_and_others_another() -> None:
    product = only(matmul_chain, "MatMul")
    low = product.changed(updates={"T": ir.Type(ir.HALF)})
    assert signature(product) is signature(product)
    assert types(signature(low).ins) == [ir.HALF, ir.HALF]
    assert types(signature(product).ins) == [ir.FLOAT, ir.FLOAT]


@pytest.mark.parametrize(
    ("op", "attr", "yes"),
    [("MatMul", "T", True), ("GRUBlockCell", "T", False), ("MatMul", "U", False)],
)
def test_an_op_def_accepts_the_types_it_lists(op: str, attr: str, yes: bool) -> None:
    assert op_schema.accepts(op, {attr: ir.HALF}) is yes


def test_a_kernel_is_asked_for_with_all_its_constraints() -> None:
    product = only(matmul_chain, "MatMul")
    assert op_schema.has_kernel(product, "CPU", {"T": ir.HALF})
    assert op_schema.has_kernel(product, "CPU", {"T": ir.BFLOAT16})
    assert not op_schema.has_kernel(product, "CPU", {"T": ir.BOOL})


def test_a_kernel_for_any_device_serves_every_device() -> None:
    def build() -> None:
        tf.raw_ops.IdentityN(input=[tf.constant(1.0), tf.constant(2)])

    assert op_schema.has_kernel(only(build, "IdentityN"), "CPU", {"T": ir.BFLOAT16})


def test_a_device_without_kernels_in_this_build_is_taken_by_the_op_def() -> None:
    product = only(matmul_chain, "MatMul")
    assert op_schema.has_kernel(product, "TPU_OF_ANOTHER_BUILD", {"T": ir.HALF})
    assert not op_schema.has_kernel(product, "TPU_OF_ANOTHER_BUILD", {"T": ir.STRING})
