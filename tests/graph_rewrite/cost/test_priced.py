"""`price`: seconds of every node that may matter, measured before modelled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import tensorflow as tf
from rewriting import (
    analysis_of,
    context_of,
    graph_def,
    matmul_chain,
    module_of,
    plan_of,
    priced_of,
    settled,
    spec,
    traced,
)

from amp.graph_rewrite.assign.nominee import CUT, EVERYTHING
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.liveness import Liveness
from amp.graph_rewrite.cost.model import MOST_RATIO, CostModel, Measured, Point
from amp.graph_rewrite.cost.op_instance import Times
from amp.graph_rewrite.cost.priced import (
    Priced,
    PricedUse,
    cost_models,
    key_of,
    measured_share,
)
from amp.graph_rewrite.cost.shipped_devices import A100, CPU_AMX
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse
from amp.graph_rewrite.ops import arithmetic
from amp.graph_rewrite.rewrite import prepare, rewrite
from amp.integration.install import install

MODEL = CostModel(A100, "bfloat16")


def chain(model: CostModel = MODEL) -> Priced:
    module = module_of(graph_def(matmul_chain))
    return priced_of(module, context_of(module, A100), model)


def only(priced: Priced) -> PricedUse:
    (one,) = priced.uses.values()
    return one


def measured(**by_node: Times) -> CostModel:
    """A model that has measured these products of `matmul_chain`."""
    use = only(chain()).use_analysis
    times = {
        key_of(use, use.found.typed[name], MODEL): both
        for name, both in by_node.items()
    }
    points = [Point("MatMul", "matmul", both, both) for both in by_node.values()]
    return CostModel(A100, "bfloat16", Measured(times, points))


def test_a_node_costs_what_the_model_says_of_its_shapes() -> None:
    one = only(chain())
    ins = [(8, 16), (16, 16)]
    moved = arithmetic.moved("matmul", ins, [(8, 16)])
    operations = 2.0 * 8 * 16 * 16
    assert one.times["product"] == MODEL.node("matmul", moved, operations)
    assert one.cast(("product", 0)) == MODEL.cast((8, 16))


def test_what_xla_compiles_has_the_figures_for_that() -> None:
    model_of = cost_models(settled(CPU_AMX))
    kernels, compiled = (model_of(FunctionUse("f", xla)) for xla in (False, True))
    assert CPU_AMX.compiled is not None
    assert kernels.start == CPU_AMX.launch
    assert compiled.start == CPU_AMX.compiled.launch
    assert (kernels.widens, compiled.widens) == (False, True)


def compiled(fn: Callable[..., tf.Tensor], device: Device, *shapes: int) -> PricedUse:
    install()  # so that shapes are known
    module, _ = traced(fn, *(spec(*shapes) for _ in range(2)))
    context = context_of(module, device, xla=True)
    return only(priced_of(module, context, CostModel(device.under(True), "bfloat16")))


def seconds_of(one: PricedUse, op: str) -> Times:
    nodes = one.use_analysis.graph.nodes.values()
    (name,) = (node.name for node in nodes if node.op == op)
    return one.times[name]


def test_within_a_loop_of_xla_nothing_is_moved_or_started() -> None:
    one = compiled(lambda x, y: tf.nn.relu(tf.matmul(x, y) + 1.0), A100, 512, 512)
    moving = 4.0 * 512 * 512 / A100.bandwidth
    number = 4.0 / A100.bandwidth  # the one that is added
    assert seconds_of(one, "AddV2") == (number, number)
    assert seconds_of(one, "Relu") == (A100.launch + moving, A100.launch + moving / 2)
    product = CostModel(A100, "bfloat16").node("matmul", 3 * 512**2, 2.0 * 512**3)
    read = (product[0] + moving, product[1] + moving / 2)
    assert seconds_of(one, "MatMul") == pytest.approx(read)


def test_a_cast_beside_a_loop_of_xla_is_part_of_it() -> None:
    """It has no start; one between two products is a loop of its own."""
    fn = lambda x, y: tf.nn.relu(tf.matmul(tf.matmul(x, y), y))  # noqa: E731
    one = compiled(fn, A100, 512, 512)
    names = [n for n, v in one.use_analysis.graph.nodes.items() if v.op == "MatMul"]
    alone, beside = (one.cast((name, 0)) for name in names)
    assert alone == one.cost_model.cast((512, 512)) > A100.launch
    assert beside == 0.0


@pytest.mark.parametrize("count", [1, 2])
def test_on_a_cpu_xla_computes_a_product_in_float32_and_converts(count: int) -> None:
    """What no loop makes is converted by a loop of its own."""

    def fn(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.matmul(x + 1.0 if count == 1 else x, y))

    one, device = compiled(fn, CPU_AMX, 512, 512), CPU_AMX.under(True)
    high, low = seconds_of(one, "MatMul")
    converted = count * 6.0 * 512 * 512 / device.bandwidth
    assert low - high == pytest.approx(device.launch + converted)


def test_on_a_cpu_nothing_becomes_16_bit_under_xla() -> None:
    """A layer and its gradients; as kernels the same step converts its products."""
    install()
    weights = tf.Variable(tf.ones([1024, 1024]))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.gelu(tf.matmul(x, weights)) ** 2)
        return tape.gradient(loss, weights)

    low = []
    for compile_it in (False, True):
        fn = tf.function(step, jit_compile=compile_it)
        module, _ = traced(fn, spec(1024, 1024))
        report = rewrite(module, settled(CPU_AMX, assignment="cost")).report
        low.append(report.nodes_low)
    assert low[0] >= 2
    assert low[1] == 0


def test_what_touches_no_float32_has_no_price() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.range(tf.shape(tf.tanh(x))[0])

    module, _ = traced(fn, spec(4, 4))
    one = only(priced_of(module, context_of(module, A100), MODEL))
    ops = {name: node.op for name, node in one.use_analysis.graph.nodes.items()}
    priced = {ops[name] for name in one.times}
    assert "Tanh" in priced
    assert "Range" not in priced


def test_time_that_no_plan_changes_is_in_a_step() -> None:
    def fn(x: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        unique, _ = tf.unique(places)
        return tf.tanh(x), unique, tf.sort(places)

    model = CostModel(CPU_AMX, "bfloat16")
    module, _ = traced(fn, spec(4, 4), spec(1000, dtype=tf.int32))
    context = context_of(module, CPU_AMX)
    one = only(priced_of(module, context, model))
    assert one.rest > 2 * CPU_AMX.launch  # two kernels at least
    plan = plan_of(module, context, model)
    known = sum(high for high, _ in one.times.values())
    assert plan.seconds32 == pytest.approx(known + one.rest)
    compiled = only(priced_of(module, context_of(module, CPU_AMX, xla=True), model))
    assert compiled.rest == 0.0


def test_what_takes_no_time_has_none() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        return variable.read_value() + tf.reshape(x, tf.shape(variable))

    variable = tf.Variable(tf.ones([64, 64]))
    module, _ = traced(fn, spec(4096))
    one = only(priced_of(module, context_of(module, CPU_AMX), MODEL))
    ops = {name: one.use_analysis.graph.nodes[name].op for name in one.times}
    busy = {ops[name] for name, (high, _) in one.times.items() if high > 0.0}
    assert "ReadVariableOp" in ops.values()
    assert busy == {"AddV2"}
    assert one.rest == 0.0


def test_an_update_of_rows_pays_for_finding_each_row() -> None:
    """A table of an embedding: its other rows take no time."""
    table, rows, width = tf.Variable(tf.zeros([1000, 8])), 10, 8

    def fn(indices: tf.Tensor, gradient: tf.Tensor) -> None:
        tf.raw_ops.ResourceScatterSub(
            resource=table.handle, indices=indices, updates=gradient
        )

    specs = (spec(rows, dtype=tf.int32), spec(rows, width))
    module, keep = traced(fn, *specs)
    assert keep is not None
    sizes = {"indices": (rows,), "gradient": (rows, width)}
    main = dataclasses.replace(module.main, shape=lambda edge: sizes.get(edge[0], ()))
    sized = ir.Module(main, {})
    three = {"float32": {"scatter": 3.0}}
    device = dataclasses.replace(CPU_AMX, launch=0.0, slowdown=three)
    model = CostModel(device, "bfloat16")
    one = only(priced_of(sized, context_of(sized, CPU_AMX), model))
    (update,) = (n for n in one.times if "Scatter" in main.nodes[n].op)
    elements = rows * width + 2 * (rows * width + arithmetic.LOOKUP * rows)
    assert one.times[update][0] == pytest.approx(3 * 4 * elements / CPU_AMX.bandwidth)


def test_finding_the_distinct_values_is_slower_than_reading_them() -> None:
    module, _ = traced(lambda x: tf.unique(x).idx, spec(1000, dtype=tf.int32))
    sized = module_of_sizes(module, 1000)
    device = dataclasses.replace(CPU_AMX, slowdown={"float32": {"unique": 7.0}})
    for on, times in ((CPU_AMX, 50.0), (device, 7.0)):
        model = CostModel(dataclasses.replace(on, launch=0.0), "bfloat16")
        one = only(priced_of(sized, context_of(sized, on), model))
        moved = 1000 + 1 + 1  # the results have one element each, as it is told here
        assert one.rest == pytest.approx(times * 4 * moved / on.bandwidth)


@pytest.mark.parametrize("variables", [1, 3])
def test_an_update_reads_and_writes_its_variables(variables: int) -> None:
    names = {"var": 0, "m": 1, "v": 2} if variables == 3 else {"var": 0}
    state = [tf.Variable(tf.zeros([1000])) for _ in names]

    def fn(gradient: tf.Tensor) -> None:
        handles = {name: state[i].handle for name, i in names.items()}
        if variables == 1:
            rate = {"alpha": tf.constant(0.1), "delta": gradient}
            tf.raw_ops.ResourceApplyGradientDescent(**handles, **rate)
            return
        rates = dict.fromkeys(
            ("beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon"),
            tf.constant(0.1),
        )
        tf.raw_ops.ResourceApplyAdam(**handles, **rates, grad=gradient)

    module, keep = traced(fn, spec(1000))
    assert keep is not None
    with_shapes = module_of_sizes(module, 1000)
    one = only(priced_of(with_shapes, context_of(with_shapes, CPU_AMX), FLAT))
    (update,) = (n for n in one.times if "Apply" in with_shapes.main.nodes[n].op)
    scalars = len(with_shapes.main.nodes[update].inputs) - variables - 1
    elements = 1000 * (1 + 2 * variables) + scalars
    assert one.times[update][0] == pytest.approx(4 * elements / CPU_AMX.bandwidth)


# Prices of bytes alone.
FLAT = CostModel(dataclasses.replace(CPU_AMX, launch=0.0), "bfloat16")


def module_of_sizes(module: ir.Module, size: int) -> ir.Module:
    """The module in which every argument has this many elements, others have one."""
    args = {arg.name for arg in module.main.args}
    shape = lambda edge: (size,) if edge[0] in args else ()  # noqa: E731
    return ir.Module(dataclasses.replace(module.main, shape=shape), module.functions)


def test_what_was_measured_comes_before_the_model() -> None:
    one = only(chain(measured(product=(3.0, 2.0))))
    assert one.times["product"] == (3.0, 2.0)
    assert one.times["tanh"] == only(chain()).times["tanh"]


def test_no_measurement_says_that_16_bits_take_endlessly_longer() -> None:
    one = only(chain(measured(product=(3.0, math.inf))))
    assert one.times["product"] == (3.0, MOST_RATIO * 3.0)


def test_the_share_measured_is_by_seconds_of_candidates() -> None:
    assert measured_share(chain()) == 0.0
    priced = chain(measured(product=(3.0, 2.0)))
    one = only(priced)
    every = sum(one.times[name][0] for name in one.use_analysis.found.allowed)
    assert "product" in one.use_analysis.found.allowed
    assert measured_share(priced) == pytest.approx(3.0 / every)


def test_an_analysis_that_allows_less_has_the_same_prices() -> None:
    priced = chain()
    module = module_of(graph_def(matmul_chain))
    less = analysis_of(module, context_of(module, A100, deny=("MatMul",)))
    narrowed = priced.narrowed(less)
    assert narrowed.analysis is less
    assert only(narrowed).use_analysis is next(iter(less.uses.values()))
    assert only(narrowed).times == only(priced).times
    assert only(narrowed).cost_model is only(priced).cost_model


def test_what_is_stored_is_found_once_for_all_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Liveness] = []
    begin = Liveness.__init__

    def counted(self: Liveness, *args: object) -> None:
        found.append(self)
        begin(self, *args)

    monkeypatch.setattr(Liveness, "__init__", counted)
    module = module_of(graph_def(matmul_chain))
    prepared = prepare(module, settled(CPU_AMX, dtype="bfloat16"))
    for nominee in (CUT, EVERYTHING):
        prepared.foreseen(nominee)
        prepared.draft(nominee, "__draft")
        assert any(prepared.made(nominee, later=True).low.values())
    assert len(found) == len(prepared.priced.uses)
