"""Levels tell the fullest point of a step; what is held past it is held in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from rewriting import (
    CPU,
    context_of,
    graph_def,
    module_of,
    plan_of,
    settled,
    spec,
    traced,
    v1,
)
from rewriting import rewritten as rewritten_graph

from amp.graph_rewrite.candidates.context import type_ports
from amp.graph_rewrite.cost import model
from amp.graph_rewrite.cost.liveness import Liveness
from amp.graph_rewrite.cost.model import HOLD, CostModel
from amp.graph_rewrite.cost.shipped_devices import A100, CPU_AMX
from amp.graph_rewrite.graph import ir, shapes
from amp.graph_rewrite.rewrite import rewrite
from tests.graph_rewrite.candidates.test_stand_ins import biased

LAYERS = 6


def step(rows: int = 512, width: int = 256) -> ir.Module:
    """A chain of products; `bessel_i0e` (float32 only) reads them both ways."""

    def build() -> None:
        y = v1.placeholder(tf.float32, [rows, width], name="x")
        w = v1.placeholder(tf.float32, [width, width], name="w")
        for _ in range(LAYERS):
            y = tf.matmul(y, w) * 0.05
            y = y + tf.math.bessel_i0e(y * y + 2.0)
        tf.identity(v1.gradients(tf.reduce_sum(y), w)[0], name="out")

    return module_of(graph_def(build))


def lives_of(module: ir.Module, **fields: object) -> Liveness:
    context = context_of(module, **fields)
    return Liveness(module.main, type_ports(module.main, context))


def late_casts(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph.nodes.values() if node.has(ir.LATE)]


def above(graph: ir.Graph, name: str) -> set[str]:
    """A node and all that runs before it."""
    seen, todo = set(), [name]
    while todo:
        node = graph.nodes.get(todo.pop())
        if node is not None and node.name not in seen:
            seen.add(node.name)
            todo += [edge[0] for edge in node.inputs] + list(node.controls)
    return seen


def test_the_fullest_point_of_a_step_is_between_forward_and_backward() -> None:
    module = step()
    lives = lives_of(module)
    products = [n.name for n in module.main.nodes.values() if n.op == "MatMul"]
    backward = {name for name in products if name.startswith("gradients")}
    assert len(backward) >= 2 * LAYERS - 1
    assert {name for name in products if lives.late(name)} == backward


def test_a_constant_waits_for_nobody() -> None:
    """A Sum that stands in for another op has one, in the frame of its operand."""
    module = module_of(graph_def(biased(512, 8)))
    before = lives_of(module)
    made = rewrite(module, settled(CPU, assignment="all")).graph
    assert made.main.nodes["sum"].op == "Sum"
    after = lives_of(made)
    names = list(module.main.nodes)
    assert [before._levels[n] for n in names] == [after._levels[n] for n in names]


def test_a_rewritten_graph_has_the_levels_that_it_had_before() -> None:
    module = step()
    before = lives_of(module)
    made = rewrite(module, settled(A100, assignment="all"), suffix="__levels")
    after = lives_of(made.graph)
    names = [n.name for n in module.main.nodes.values() if n.op != "Cast"]
    assert late_casts(made.graph.main)
    assert [before.late(n) for n in names] == [after.late(n) for n in names]


def test_variables_and_constants_take_no_memory_of_their_own() -> None:
    variable = tf.Variable(tf.ones([256, 256]))

    def doubled(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, variable)
        return y + tf.exp(y * 2.0)

    module, _ = traced(doubled, spec(512, 256))
    lives, nodes = lives_of(module), module.main.nodes.values()
    held = {n.op for n in nodes if lives.held((n.name, 0))}
    assert "MatMul" in held
    assert held.isdisjoint({"ReadVariableOp", "Const"})


@pytest.mark.parametrize("returned", [False, True])
def test_a_result_is_stored_to_the_end(returned: bool) -> None:
    """With it the step is the fullest at "wide", and without it before."""

    def build() -> None:
        x = v1.placeholder(tf.float32, [512, 256], name="x")
        first = tf.matmul(x, v1.placeholder(tf.float32, [256, 256]), name="first")
        wide = tf.tile(tf.reduce_mean(first, 0)[None], [460, 1], name="wide")
        tf.reduce_sum(wide, name="last")

    main = module_of(graph_def(build)).main
    names = ("first", "last") if returned else ("last",)
    results = tuple(ir.Result(name, ir.FLOAT, (name, 0)) for name in names)
    module = ir.Module(main.with_nodes(main.nodes, results), {})
    assert lives_of(module).late("wide") is not returned


def test_each_late_cast_waits_for_the_backward_pass_and_makes_no_circle() -> None:
    module = step()
    made = rewrite(module, settled(A100, assignment="all"), suffix="__waits")
    graph, lives = made.graph.main, lives_of(module)
    assert len(late_casts(graph)) >= LAYERS - 1
    for node in late_casts(graph):
        (waits,) = node.controls
        assert lives.late(waits)
        assert node.name not in above(graph, waits)
    assert len(graph.order) == len(graph.nodes)


@pytest.mark.parametrize("count", [50, 200])
def test_a_join_is_looked_at_once_however_many_inputs_it_has(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Where each input asked about all the others, planning took the square of them."""

    def wide() -> None:
        y = tf.matmul(v1.placeholder(tf.float32, [8, 8], name="x"), tf.ones([8, 8]))
        tf.add_n([tf.tanh(y) for _ in range(count)], name="end")

    asked, late = [], Liveness.late
    monkeypatch.setattr(Liveness, "late", lambda *a: asked.append(a) or late(*a))
    rewritten_graph(graph_def(wide))
    assert len(asked) < 30 * count


def float32_held(graph: ir.Graph, module: ir.Module) -> int:
    """Bytes of float32 tensors that early nodes make and late nodes read."""
    lives, found = lives_of(module), {}
    for node in graph.nodes.values():
        if node.has(ir.LATE) or not lives.late(node.name):
            continue
        for edge in node.inputs:
            source = graph.nodes.get(edge[0])
            made_late = source is None or source.has(ir.LATE)
            if made_late or lives.late(edge[0]) or source.op == "Const":
                continue
            cast = source.op == "Cast" and source.types("DstT") == (ir.FLOAT,)
            own = source.types("T") == (ir.FLOAT,) and source.name in module.main.nodes
            if cast or own:
                found[edge] = 4 * shapes.elements(graph.shape(edge))
    return sum(found.values())


def test_no_large_float32_copy_of_a_16_bit_tensor_is_held(monkeypatch) -> None:
    module = step(4096, 1024)
    policy = settled(CPU_AMX, assignment="cost")
    held = rewrite(module, policy, suffix="__held").graph.main
    monkeypatch.setattr(model, "HOLD", 0.0)
    free = rewrite(module, policy, suffix="__free").graph.main
    layer = 4 * 4096 * 1024
    assert float32_held(held, module) <= float32_held(free, module) - layer


def test_the_values_are_those_of_early_casts(monkeypatch) -> None:
    """A second cast of what is made in 16 bits gives the same float32 values."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [64, 32], name="x")
        w = tf.constant(np.full([32, 32], 0.05, np.float32))
        y = tf.matmul(x, w, name="product")
        z = tf.matmul(tf.cast(tf.math.bessel_i0e(y + 2.0), tf.float32), w)
        tf.add(tf.matmul(z, w), tf.math.bessel_i0e(y + 3.0), name="out")
    proto = graph.as_graph_def()
    data = np.random.default_rng(0).normal(size=[64, 32]).astype(np.float32)
    results = []
    for hold in (HOLD, 0.0):
        monkeypatch.setattr(model, "HOLD", hold)
        made = rewritten_graph(proto, fetches=["out"])
        with tf.Graph().as_default() as twin, v1.Session() as session:
            tf.graph_util.import_graph_def(made.graph, name="")
            results.append(session.run("out:0", {"x:0": data}))
            assert twin is session.graph
    np.testing.assert_array_equal(*results)


def branching() -> ir.Module:
    """ "early" is read late: beside a node that one branch runs, and after it."""
    x = v1.placeholder(tf.float32, [64, 64], name="x")
    flag = v1.placeholder(tf.bool, [], name="flag")
    early = tf.exp(x, name="early")
    y = tf.tile(x, [8, 8])
    for _ in range(4):
        y = tf.exp(y)
    y = tf.exp(y[:64, :64])
    _, taken = tf.raw_ops.Switch(data=y, pred=flag)
    taken = tf.exp(taken, name="taken")
    tf.multiply(early, taken, name="beside")
    tf.multiply(early, tf.exp(tf.exp(y), name="always"), name="after")
    return y


def test_a_cast_waits_for_no_node_that_only_a_branch_runs() -> None:
    """It would never be made where the branch is not taken, but read."""
    lives = lives_of(module_of(graph_def(branching)))
    assert lives.held(("early", 0))
    assert lives.late("beside")
    assert lives.before([("after", 0)]) == "always"
    assert lives.before([("beside", 0)]) == ""


def test_a_cast_waits_for_nothing_that_only_nodes_without_effect_need() -> None:
    """It would have them run in a function, from which TensorFlow drops them."""

    def dropping(x: tf.Tensor) -> tf.Tensor:
        early = tf.exp(x, name="early")
        y = tf.tile(x, [8, 8])
        for _ in range(4):
            y = tf.exp(y)
        y = tf.exp(y[:64, :64])
        tf.multiply(early, tf.tan(tf.tan(y), name="unused"), name="dropped")
        return tf.multiply(early, tf.exp(tf.exp(tf.exp(y)), name="used"), name="after")

    lives = lives_of(traced(dropping, spec(64, 64))[0])
    assert lives.held(("early", 0))
    assert lives.late("dropped")
    assert lives.before([("dropped", 0), ("after", 0)]) == "used"


def test_a_merge_is_no_late_reader_as_its_inputs_are_not_there_together() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [512, 256], name="x")
        flag = v1.placeholder(tf.bool, [], name="flag")
        w = v1.placeholder(tf.float32, [256, 256], name="w")
        early = y = tf.matmul(x, w)
        for _ in range(LAYERS):
            y = tf.matmul(y, w)
            y = y + tf.math.bessel_i0e(y * y)
        ends, here = tf.raw_ops.Switch(data=early, pred=flag)
        late, _ = tf.raw_ops.Switch(data=tf.math.bessel_i0e(y), pred=flag)
        joined = tf.raw_ops.Merge(inputs=[here, tf.exp(late)], name="joined")[0]
        tf.add(tf.add(tf.math.bessel_i0e(early), ends), joined * y, name="after")

    module = module_of(graph_def(build))
    context = context_of(module, keep=("joined", "after"))
    plan = plan_of(module, context, CostModel(CPU_AMX, "bfloat16"))
    assert lives_of(module).late("joined")
    assert "joined" not in {name for name, _ in plan.late}
