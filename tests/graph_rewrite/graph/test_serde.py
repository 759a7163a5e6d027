"""`serde`: what is read is written back, any graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
import thorough
from google.protobuf import text_format
from rewriting import GraphDef, graph_def, matmul_chain, module_of, spec, v1
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context as context_lib

from amp.errors import GraphError
from amp.graph_rewrite.graph import ir, op_schema, serde
from amp.integration.runtime import definitions
from models import lstm_lm, mlp, resnet, transformer


def differences(one: Any, two: Any) -> list[str]:
    """Every line in which two protobufs differ, both ways, library order aside."""
    lines = [set(lines_of(message)) for message in (one, two)]
    return [f"- {line}" for line in sorted(lines[0] - lines[1])] + [
        f"+ {line}" for line in sorted(lines[1] - lines[0])
    ]


def lines_of(message: Any, prefix: str = "") -> Iterator[str]:
    for field, value in message.ListFields():
        values = list(value) if hasattr(value, "extend") else [value]
        map_type = field.message_type is not None and field.message_type.GetOptions()
        if map_type and map_type.map_entry:
            for key in value:
                text = str(value[key])
                yield f"{prefix}{field.name}[{key}]={text}"
            continue
        for index, item in enumerate(values):
            name = getattr(item, "name", "") or index
            path = f"{prefix}{field.name}[{name}]"
            if hasattr(item, "ListFields"):
                yield path
                yield from lines_of(item, f"{path}.")
            else:
                yield f"{path}={item!r}"


def test_the_comparison_lists_every_difference() -> None:
    one = graph_def(matmul_chain)
    two = GraphDef()
    two.CopyFrom(one)
    assert differences(one, two) == []
    two.node[0].device = "/CPU:0"
    two.node[2].attr["transpose_a"].b = True
    del two.node[3].input[:]
    assert len(differences(one, two)) >= 4
    assert differences(one, two)[-1].startswith("+ node[x].device")


def originals_of(concrete: Any) -> dict[str, Any]:
    """A traced function's definition and those of every function it reaches."""
    context = context_lib.context()
    module = definitions.read(context, concrete.name)
    return {g.name: context.get_function_def(g.name) for g in module.graphs()}


def definition_of(fn: Callable[..., Any], **options: Any) -> Any:
    """A copy of the definition that a function of a vector of 2 is traced to."""
    concrete = tf.function(fn, **options).get_concrete_function(spec(2))
    copy = function_pb2.FunctionDef()
    copy.CopyFrom(context_lib.context().get_function_def(concrete.name))
    return copy


def round_trips(concrete: Any) -> int:
    context = context_lib.context()
    module = definitions.read(context, concrete.name)
    lookup = op_schema.lookup_of(module)
    originals = originals_of(concrete)
    for graph in module.graphs():
        written = serde.write_function(graph, lookup)
        assert differences(originals[graph.name], written) == []
        assert written == originals[graph.name]
        # Every edge is written again as well, not only handed through as bytes.
        anew = graph.with_nodes(
            {name: node.changed() for name, node in graph.nodes.items()}
        )
        assert (
            differences(originals[graph.name], serde.write_function(anew, lookup)) == []
        )
    return len(originals)


@pytest.mark.parametrize(
    "model", thorough.but((mlp, transformer), (mlp, resnet, lstm_lm, transformer))
)
@pytest.mark.slow
def test_train_steps_of_models_round_trip(model: Any) -> None:
    made = model.build()
    made.compile("adam", model.LOSS(), jit_compile=False)
    x, y = model.example_batch(4, seed=0)
    made.make_train_function()
    step = tf.function(made.train_step).get_concrete_function((tf.constant(x), y))
    assert round_trips(step) >= 1
    graph = step.graph.as_graph_def()
    assert differences(graph, serde.write_graph(serde.read_graph(graph))) == []


def loops_and_branches(x: tf.Tensor) -> tf.Tensor:
    def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.cond(i > 1, lambda: tf.tanh(y), lambda: y * 2.0)

    with tf.GradientTape() as tape:
        tape.watch(x)
        _, y = tf.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x])
        out = tf.map_fn(lambda row: row * 2.0, y)
    return tape.gradient(out, x)


def many_outputs(x: tf.Tensor) -> list[tf.Tensor]:
    a, b, c = tf.split(x, 3)
    d, e = tf.raw_ops.IdentityN(input=[a, b])
    values, indices = tf.math.top_k(c, 1)
    return [d, e, values, tf.cast(indices, tf.float32), tf.unstack(x)[1]]


def random_and_strings(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_all_finite(x, "not finite")]):
        return x + tf.random.normal(tf.shape(x)) + tf.reduce_mean(x)


@pytest.mark.parametrize("fn", [loops_and_branches, many_outputs, random_and_strings])
def test_functions_round_trip(fn: Callable[..., Any]) -> None:
    assert round_trips(tf.function(fn).get_concrete_function(spec(3, 4))) >= 1


def test_nested_and_forward_functions_round_trip() -> None:
    weights = tf.Variable(tf.ones([4, 4]))
    inner = tf.function(lambda x: tf.matmul(x, weights), jit_compile=True)

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.recompute_grad(inner)(x)
        return tape.gradient(y, weights)

    assert round_trips(outer.get_concrete_function(spec(2, 4))) >= 2


def test_v1_control_flow_and_loops_round_trip() -> None:
    def build() -> None:
        v1.disable_control_flow_v2()
        try:
            x = v1.placeholder(tf.float32, [4], name="x")
            _, y = tf.while_loop(
                lambda i, y: i < 3, lambda i, y: (i + 1, y * 2.0), [tf.constant(0), x]
            )
            z = v1.cond(tf.reduce_sum(y) > 0, lambda: y + 1.0, lambda: y)
            variable = v1.Variable(tf.ones([4]), use_resource=False)
            v1.assign(variable, z)
            tf.gradients(z, x)
        finally:
            v1.enable_control_flow_v2()

    proto = graph_def(build)
    assert {"Enter", "Switch", "Merge", "VariableV2"} <= {n.op for n in proto.node}
    assert serde.write_graph(serde.read_graph(proto)) == proto


def test_a_function_called_as_an_op_round_trips() -> None:
    inner = tf.function(lambda x: (x, x * 2.0)).get_concrete_function(spec(2))
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2], name="x")
        inner.add_to_graph(graph)
        operation = graph.create_op(
            inner.name, [x], [tf.float32, tf.float32], name="direct"
        )
        tf.identity(operation.outputs[1], name="y")
    proto = graph.as_graph_def()
    module = serde.read_graph(proto)
    assert module.main.nodes["y"].inputs == (("direct", 1),)
    assert serde.write_graph(module) == proto


def test_unknown_fields_travel_untouched() -> None:
    proto = graph_def(matmul_chain)
    # Field 1000, a string, which no version of the format has.
    extra = b"\xc2\x3e\x05hello"
    for message in (proto, proto.node[2], proto.node[0].attr["dtype"]):
        message.MergeFromString(extra)
    written = serde.write_graph(serde.read_graph(proto))
    assert written.SerializeToString(deterministic=True).count(extra) == 3
    module = serde.read_graph(proto)
    changed = {n: node.changed() for n, node in module.main.nodes.items()}
    anew = serde.write_graph(ir.Module(module.main.with_nodes(changed), {}))
    assert anew.SerializeToString(deterministic=True).count(extra) == 3


def test_function_attributes_and_argument_attributes_travel() -> None:
    definition = definition_of(lambda x: x + 1.0, jit_compile=True)
    definition.attr["mine"].s = b"kept"
    definition.arg_attr[0].attr["mine"].i = 3
    graph = serde.read_function(definition)
    assert "_XlaMustCompile" in graph.flags
    assert serde.write_function(graph) == definition


def test_reading_changes_nothing_and_makes_no_attributes() -> None:
    proto = graph_def(matmul_chain)
    before = proto.SerializeToString(deterministic=True)
    module = serde.read_graph(proto)
    for node in module.main.nodes.values():
        assert node.types("not_there") == ()
        assert node.tensor("not_there") is None
    assert proto.SerializeToString(deterministic=True) == before


def test_a_changed_node_is_written_with_its_changes_alone() -> None:
    module = module_of(graph_def(matmul_chain))
    main = module.main
    product = main.nodes["product"].changed(updates={"T": ir.Type(ir.BFLOAT16)})
    anew = main.with_nodes({**main.nodes, "product": product})
    written = serde.write_graph(ir.Module(anew, {}))
    found = differences(graph_def(matmul_chain), written)
    assert [line.split("=")[0] for line in found] == [
        "- node[product].attr[T]",
        "+ node[product].attr[T]",
    ]


def damaged(**changes: str) -> GraphDef:
    proto = graph_def(matmul_chain)
    text = text_format.MessageToString(proto)
    for old, new in changes.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return text_format.Parse(text, GraphDef())


def test_a_duplicate_node_is_refused() -> None:
    with pytest.raises(GraphError, match="two nodes are called 'tanh'") as caught:
        serde.read_graph(damaged(product="tanh"))
    assert caught.value.where == "the GraphDef"


def test_an_edge_to_no_port_of_a_function_is_refused() -> None:
    definition = definition_of(lambda x: tf.tanh(x) + 1.0)
    (add,) = [n for n in definition.node_def if n.op == "AddV2"]
    add.input[0] = "Tanh:z:0"
    with pytest.raises(GraphError, match="the edge Tanh:z leads nowhere"):
        serde.read_function(definition)
    add.input[0] = "Ghost:y:0"
    with pytest.raises(GraphError, match="the edge Ghost:y leads nowhere"):
        serde.read_function(definition)


@pytest.mark.parametrize("edge", ["a:b:c:d", "Tanh:y:x", "x:y", "Tanh:y:"])
def test_an_edge_that_is_none_is_refused(edge: str) -> None:
    definition = definition_of(lambda x: tf.tanh(x) + 1.0)
    (add,) = [n for n in definition.node_def if n.op == "AddV2"]
    add.input[0] = edge
    with pytest.raises(GraphError, match="leads nowhere"):
        serde.read_function(definition)


@pytest.mark.parametrize("text", ["", "^"])
def test_an_input_without_a_name_is_refused(text: str) -> None:
    definition = definition_of(lambda x: tf.tanh(x) + 1.0)
    (add,) = [n for n in definition.node_def if n.op == "AddV2"]
    add.input[0] = text
    with pytest.raises(GraphError, match="an input of node 'add' has no name"):
        serde.read_function(definition)


def test_an_argument_that_is_a_list_is_refused() -> None:
    definition = definition_of(lambda x: tf.tanh(x))
    definition.signature.input_arg[0].number_attr = "N"
    with pytest.raises(GraphError, match="'x' is a list of tensors"):
        serde.read_function(definition)


def test_an_edge_of_an_unregistered_op_cannot_be_named() -> None:
    graph = serde.read_function(definition_of(lambda x: tf.tanh(x)))

    def forgets(op: str) -> op_schema.Schema | None:
        return None if op == "Tanh" else op_schema.schema(op)

    anew = graph.with_nodes({n: node.changed() for n, node in graph.nodes.items()})
    with pytest.raises(GraphError, match="op 'Tanh' is not registered"):
        serde.write_function(anew, forgets)


def test_keras_is_float32_here() -> None:
    assert keras.config.dtype_policy().name == "float32"


def test_tensorflow_is_asked_for_a_shape_once() -> None:
    asked: list[str] = []

    class Made:
        @property
        def shape(self) -> tf.TensorShape:
            asked.append("shape")
            return tf.TensorShape([2, None])

    def load() -> dict[str, list[Made]]:
        asked.append("load")
        return {"x": [Made()]}

    shape = definitions.static_shapes(load)
    assert not asked
    assert [shape(("x", 0)), shape(("x", 0)), shape(("x", 1)), shape(("y", 0))] == [
        (2, -1),
        (2, -1),
        None,
        None,
    ]
    assert asked == ["load", "shape"]
