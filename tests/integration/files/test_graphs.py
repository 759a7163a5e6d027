"""`amp.rewrite`, `amp.explain`, `amp.twin`: what a user gives, bad input included."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from rewriting import GraphDef, graph_def, low, matmul_chain, nodes, run, spec

import amp
from amp.errors import GraphError, PolicyError
from amp.integration.files import graphs
from amp.integration.runtime import definitions
from amp.policy import Policy

pytestmark = pytest.mark.kernels

v1 = tf.compat.v1

ALL = {"dtype": "bfloat16", "assignment": "all", "strict": True}
POLICY = amp.Policy(**ALL)


def chain(edit: Callable[[GraphDef], object] = lambda proto: None) -> GraphDef:
    proto = graph_def(matmul_chain)
    edit(proto)
    return proto


def has_four_parts(error: amp.AmpError) -> bool:
    return all((error.found, error.where, error.allowed, error.remedy))


def node(proto: GraphDef, name: str) -> object:
    return nodes(proto)[name]


def missing(proto: GraphDef) -> None:
    node(proto, "tanh").input[0] = "nowhere"


def missing_control(proto: GraphDef) -> None:
    node(proto, "tanh").input.append("^nowhere")


def nonsense(proto: GraphDef) -> None:
    node(proto, "tanh").input[0] = "product:first"


def no_such_output(proto: GraphDef) -> None:
    node(proto, "tanh").input[0] = "product:3"


def cycle(proto: GraphDef) -> None:
    node(proto, "product").input[0] = "tanh"


def duplicate(proto: GraphDef) -> None:
    proto.node.add().CopyFrom(node(proto, "tanh"))


def contradiction(proto: GraphDef) -> None:
    node(proto, "tanh").attr["T"].type = tf.float64.as_datatype_enum


@pytest.mark.parametrize(
    ("edit", "found", "where"),
    [
        (missing, "node 'tanh' reads 'nowhere', which is not there", "tanh"),
        (missing_control, "node 'tanh' reads 'nowhere', which is not there", "tanh"),
        (nonsense, "node 'tanh' reads 'product:first', which is not there", "tanh"),
        (no_such_output, "product:3 is not one of its outputs", "tanh, product:3"),
        (cycle, "node 'out' depends on itself|node 'product' depends", ""),
        (duplicate, "two nodes are called 'tanh'", ""),
        (
            contradiction,
            "'T' of node 'tanh' says that input 'x' has type float64, but product:0 is",
            "tanh, product:0",
        ),
    ],
)
def test_a_graph_that_is_not_well_formed_is_refused(
    edit: Callable[[GraphDef], object], found: str, where: str
) -> None:
    for call in (amp.rewrite, lambda g, p: amp.explain(g, policy=p)):
        with pytest.raises(GraphError, match=found) as caught:
            call(chain(edit), POLICY)
        assert has_four_parts(caught.value)
        assert "the GraphDef" in caught.value.where
        assert where in caught.value.where


@pytest.mark.parametrize("what", ["fetches", "feeds"])
def test_a_name_that_does_not_exist_is_refused(what: str) -> None:
    with pytest.raises(GraphError, match="there is no node 'ghost'") as caught:
        amp.rewrite(chain(), POLICY, **{what: ["out:0", "ghost:0"]})
    assert has_four_parts(caught.value)
    assert what in caught.value.where


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(GraphError, match="a Graph was given") as caught:
        amp.rewrite(tf.Graph(), POLICY)
    assert "as_graph_def" in caught.value.remedy
    with pytest.raises(PolicyError, match="a int was given"):
        amp.explain(3, policy=POLICY)
    with pytest.raises(PolicyError, match="a str was given"):
        amp.twin("fn", policy=POLICY)


@pytest.mark.parametrize(
    ("op", "remedy"), [("Matmul", "did you mean MatMul"), ("Qxyzzy", "spelling")]
)
@pytest.mark.parametrize("field", ["allow", "deny"])
def test_an_op_that_does_not_exist_is_refused_with_the_closest(
    field: str, op: str, remedy: str
) -> None:
    policy = amp.Policy(**ALL, **{field: op})
    with pytest.raises(PolicyError, match=f"there is no op '{op}'") as caught:
        amp.rewrite(chain(), policy)
    assert remedy in caught.value.remedy
    assert f"AMP_{field.upper()}" in caught.value.where


def test_an_unknown_op_in_the_environment_is_refused_by_a_scope(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AMP_ALLOW", "Matmul")
    policy = amp.Policy.make(amp.Policy.from_env(), dtype="bfloat16")
    with (
        pytest.raises(PolicyError, match="there is no op 'Matmul'"),
        amp.mixed_precision_scope(policy),
    ):
        pass


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    policy = amp.Policy(**ALL, keep=("prod*", "head/*"))
    for call in (
        lambda: amp.rewrite(chain(), policy),
        lambda: amp.explain(lambda x: x @ x, spec(4, 4), policy=policy),
        lambda: amp.twin(lambda x: x @ x, spec(4, 4), policy=policy),
    ):
        with pytest.raises(PolicyError, match="the pattern '(head|prod)") as caught:
            call()
        assert has_four_parts(caught.value)
        assert "AMP_KEEP" in caught.value.where


def test_the_graph_given_is_not_changed() -> None:
    proto = chain()
    before = proto.SerializeToString(deterministic=True)
    amp.rewrite(proto, POLICY)
    assert proto.SerializeToString(deterministic=True) == before


def test_fetches_and_feeds_take_tensors_operations_and_single_names() -> None:
    for fetches in ("product", "product:0", ["product:0", "out"], ("^product",)):
        made = amp.rewrite(chain(), POLICY, fetches=fetches)
        assert nodes(made.graph)["product"].op == "IdentityN"
    assert "tanh" not in low(amp.rewrite(chain(), POLICY, feeds="tanh").report)


def test_every_node_keeps_its_name_and_every_fetch_its_type() -> None:
    proto = chain()
    names = [n.name for n in proto.node if n.op != "Const"]
    made = amp.rewrite(proto, POLICY, fetches=names)
    assert set(names) <= set(nodes(made.graph))
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16)
    for want, got in zip(
        run(proto, names, {"x": x}), run(made.graph, names, {"x": x}), strict=True
    ):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        # Three roundings of 2**-8: of x, of the weights and of the result.
        assert np.abs(got - want).max() <= 3 * 2.0**-8 * np.abs(want).max()


def test_a_fed_node_replaces_its_value_in_the_twin() -> None:
    made = amp.rewrite(chain(), POLICY, fetches=["out"], feeds=["tanh"])
    value = np.full((8, 16), 0.5, np.float32)
    (got,) = run(made.graph, ["out"], {"tanh": value})
    np.testing.assert_array_equal(got, value.reshape(16, 8))


def test_a_second_rewrite_of_a_fetched_move_changes_nothing() -> None:
    for emulate in (False, True):
        policy = amp.Policy.make(POLICY, emulate=emulate)
        once = amp.rewrite(chain(), policy, fetches=["out"])
        assert amp.rewrite(once.graph, policy, fetches=["out"]).graph == once.graph


def test_explaining_changes_nothing_and_says_what_a_rewrite_would() -> None:
    proto = chain()
    report = amp.explain(proto, policy=POLICY)
    assert str(report) == str(amp.rewrite(proto, POLICY).report)
    assert report.nodes_low == 3


def test_a_graph_that_tensorflow_cannot_type_is_rewritten_without_shapes() -> None:
    def unknown(proto: GraphDef) -> None:
        node(proto, "x").attr["shape"].shape.unknown_rank = True
        del node(proto, "x").attr["shape"].shape.dim[:]

    assert amp.rewrite(chain(unknown), POLICY).report.nodes_low == 3


def test_shapes_are_those_that_the_graph_has_once_imported() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        variable = v1.get_variable("v", [4, 4], use_resource=True)
        called = tf.function(lambda y: tf.tanh(y @ variable))(x)
        with v1.colocate_with(called):
            tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y @ y), [0, called])
    proto = graph.as_graph_def()
    with tf.Graph().as_default() as imported:
        tf.graph_util.import_graph_def(proto, name="")
    shape = graphs.read_graph(proto).main.shape
    for operation in imported.get_operations():
        for index, tensor in enumerate(operation.outputs):
            known = definitions.dimensions(tensor.shape)
            assert shape((operation.name, index)) == known
    node(proto, "x").op = "Unregistered"
    assert graphs.read_graph(proto).main.shape(("x", 0)) is None


def test_off_gives_the_graph_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from amp.graph_rewrite.cost.shipped_devices import CPU_PLAIN
    from amp.integration.measuring import hardware
    from amp.integration.process import PROCESS

    monkeypatch.setattr(hardware, "device", lambda: CPU_PLAIN)
    monkeypatch.setattr(PROCESS, "settled", {})
    result = amp.rewrite(chain())
    assert result.graph == chain()
    assert "off" in result.report.verdict


def test_reads_of_a_reference_variable_keep_their_time() -> None:
    with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=False):
        variable = v1.get_variable("v", initializer=np.full((2, 2), 2.0, np.float32))
        before = tf.matmul(variable, variable)
        with tf.control_dependencies([before]):
            changed = v1.assign(variable, tf.fill([2, 2], 100.0))
        with tf.control_dependencies([changed]):
            after = tf.matmul(variable.read_value(), tf.eye(2))
        fetches = [before.name, after.name]
    policy = Policy(dtype="bfloat16", assignment="all")
    made = amp.rewrite(graph.as_graph_def(), policy, fetches=[*fetches, "v/Assign"])
    results = []
    for proto in (graph.as_graph_def(), made.graph):
        with tf.Graph().as_default() as again, v1.Session() as session:
            tf.graph_util.import_graph_def(proto, name="")
            session.run(again.get_operation_by_name("v/Assign"))
            results.append(session.run(fetches))
    np.testing.assert_array_equal(results[0], results[1])


def test_one_value_repeated_stays_one_value() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [4, 2048])
        tf.matmul(x, tf.constant(0.5, shape=[2048, 2048]))
    policy = Policy(dtype="bfloat16", assignment="all")
    made = amp.rewrite(graph.as_graph_def(), policy)
    assert made.report.nodes_low == 1
    assert made.graph.ByteSize() < 4096
    with tf.Graph().as_default(), v1.Session() as session:
        given = {"x": tf.ones([4, 2048])}
        (name,) = [n.name for n in made.graph.node if n.op == "IdentityN"]
        out = tf.graph_util.import_graph_def(
            made.graph, {"Placeholder": given["x"]}, [f"{name}:0"], name=""
        )
        np.testing.assert_array_equal(session.run(out[0]), np.full((4, 2048), 1024.0))


def test_an_op_that_is_not_registered_is_given_float32() -> None:
    """Whoever loads its library later has a graph that runs."""

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [64, 64], name="x")
        strange = tf.exp(tf.matmul(x, x, name="before"), name="strange")
        tf.matmul(strange, strange, name="after")

    proto = graph_def(build)
    (node,) = (one for one in proto.node if one.name == "strange")
    node.op = "NoSuchOp"
    made = amp.rewrite(proto, POLICY)
    assert {"before", "after"} <= low(made.report)
    assert "strange" not in {one.node for one in made.report.decisions}
    found = nodes(made.graph)
    down, up = ("float32", "bfloat16"), ("bfloat16", "float32")
    for reader, (source, target) in {"strange": up, "after/amp_bfloat16": down}.items():
        cast = found[found[reader].input[0]]
        assert cast.op == "Cast"
        assert tf.as_dtype(cast.attr["SrcT"].type).name == source
        assert tf.as_dtype(cast.attr["DstT"].type).name == target


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("small", [False, True])
def test_a_constant_that_is_fed_is_what_is_fed(emulate: bool, small: bool) -> None:
    """And not a rounded copy of what the graph holds, nor one inside a cluster."""
    shape = [4, 4] if small else [64, 64]

    def build() -> None:
        x = v1.placeholder(tf.float32, shape, name="x")
        w = tf.constant(np.eye(shape[0], dtype="f"), name="w")
        tf.tanh(tf.matmul(x, w) + w, name="y")

    policy = dataclasses.replace(POLICY, emulate=emulate)
    made = amp.rewrite(graph_def(build), policy, fetches=["y"], feeds=["w"])
    x, w = np.full(shape, 0.25, "f"), np.full(shape, 0.5, "f")
    (got,) = run(made.graph, ["y"], {"x": x, "w": w})
    want = np.tanh(x @ w + w)
    np.testing.assert_allclose(got, want, rtol=2**-6)


@pytest.mark.parametrize("to", [tf.float32, tf.bfloat16])
def test_a_cast_that_is_fed_is_what_is_fed(to: tf.DType) -> None:
    def build() -> None:
        given = tf.float32 if to == tf.bfloat16 else tf.bfloat16
        x = v1.placeholder(given, [64, 64], name="x")
        cast = tf.cast(x, to, name="cast")
        other = v1.placeholder(tf.float32, [64, 64], name="other")
        tf.matmul(tf.cast(cast, tf.float32), other, name="y")

    made = amp.rewrite(graph_def(build), POLICY, fetches=["y"], feeds=["cast"])
    fed = np.full([64, 64], 0.5, to.as_numpy_dtype)
    (got,) = run(made.graph, ["y"], {"cast": fed, "other": np.eye(64, dtype="f")})
    np.testing.assert_array_equal(got, np.full([64, 64], 0.5, "f"))


def test_16_bit_tensors_of_a_node_leave_its_float32_ones_as_they_are() -> None:
    """A custom gradient of two results, of which one is 16-bit by the program."""

    @tf.custom_gradient
    def pair(a: tf.Tensor, b: tf.Tensor) -> object:
        return (a, b), lambda by_a, by_b: (by_a, by_b)

    def step(x: tf.Tensor, w: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        a, b = pair(tf.cast(x, tf.bfloat16), tf.sin(x))
        return tf.cast(a, tf.float32), tf.matmul(b, w)

    given = tf.random.stateless_normal([2, 64, 64], [1, 2])
    x, w = tf.unstack(given)
    (same, got), (_, want) = amp.twin(step, x, w, policy=POLICY)(x, w), step(x, w)
    np.testing.assert_array_equal(same, tf.cast(tf.cast(x, tf.bfloat16), tf.float32))
    # Operands and result are rounded by at most 2**-8; sums are float32's.
    terms = np.abs(np.sin(x)) @ np.abs(w)
    assert np.all(np.abs(got - want) <= ((1 + 2.0**-8) ** 3 - 1) * terms + 1e-5)


def test_a_16_bit_product_with_a_float32_result_is_left_as_it_is() -> None:
    def build() -> None:  # for GPUs: no CPU has the kernel
        low = v1.placeholder(tf.bfloat16, [2, 64, 64])
        high = tf.matmul(low, low, output_type=tf.float32)
        tf.matmul(high, high, name="y")

    made = amp.rewrite(graph_def(build), POLICY, fetches=["y"])
    (given,) = (one for one in made.graph.node if one.op == "BatchMatMulV3")
    assert given.attr["Tout"].type == tf.float32.as_datatype_enum
    assert made.report.nodes_low == 2  # the one given, and the other
