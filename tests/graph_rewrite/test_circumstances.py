"""`contexts`: what each use of a function is decided by, from what was asked."""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from rewriting import CPU, graph_def, matmul_chain, module_of, settled, spec, traced

from amp.graph_rewrite.circumstances import contexts
from amp.graph_rewrite.cost.device import Device
from amp.graph_rewrite.cost.shipped_devices import A100
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.calls import FunctionUse

NONE: frozenset[str] = frozenset()


def calling() -> ir.Module:
    """A function that calls another one."""

    @tf.function(autograph=False)
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, x)

    return traced(lambda x: inner(x) + inner(tf.tanh(x)), spec(8, 8))[0]


def test_policy_and_device_hold_for_every_use() -> None:
    module, asked = calling(), settled(dtype="float16")
    context_of = contexts(module, asked, NONE, NONE)
    for graph in module.graphs():
        context = context_of(FunctionUse(graph.name, xla=False))
        assert context.policy is asked.policy
        assert (context.format.name, context.device_type) == ("float16", CPU.kind)
        assert context.native


def test_a_type_that_the_device_does_not_know_is_not_native() -> None:
    module = module_of(graph_def(matmul_chain))
    device = dataclasses.replace(CPU, native=("bfloat16",))
    context_of = contexts(module, settled(device, dtype="float16"), NONE, NONE)
    assert not context_of(FunctionUse(module.main.name, xla=False)).native


def test_what_is_fetched_and_fed_is_so_in_the_main_graph_alone() -> None:
    module = calling()
    context_of = contexts(module, settled(), frozenset({"f"}), frozenset({"g"}))
    main = context_of(FunctionUse(module.main.name, xla=False))
    assert (main.fetched, main.fed) == ({"f"}, {"g"})
    for name in module.functions.keys() - {module.main.name}:
        inner = context_of(FunctionUse(name, xla=False))
        assert (inner.fetched, inner.fed) == (NONE, NONE)


def test_a_use_is_compiled_or_not_by_itself() -> None:
    module = calling()
    context_of = contexts(module, settled(), NONE, NONE)
    for xla in (False, True):
        assert context_of(FunctionUse(module.main.name, xla)).xla is xla


def test_functions_of_the_module_have_schemas() -> None:
    module = calling()
    lookup = contexts(module, settled(), NONE, NONE)(
        FunctionUse(module.main.name, xla=False)
    ).lookup
    assert all(lookup(name) is not None for name in module.functions)
    assert lookup("MatMul") is not None
    assert lookup("NoSuchOp") is None


def test_a_function_is_called_on_the_other_kind_that_any_call_is_placed_on() -> None:
    @tf.function(autograph=False)
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, x)

    product = inner.get_concrete_function(spec(8, 8))

    both = frozenset({"CPU", "GPU"})

    def on(place: str, device: Device, kinds: frozenset[str] = both) -> str:
        def fn(x: tf.Tensor) -> tf.Tensor:
            with tf.device(place):
                return product(x) + product(tf.tanh(x))

        module, _ = traced(lambda x: product(x) + fn(x), spec(8, 8))
        (name,) = module.functions
        asked = dataclasses.replace(settled(device), kinds=kinds)
        context_of = contexts(module, asked, NONE, NONE)
        return context_of(FunctionUse(name, xla=False)).called_on

    assert on("/CPU:0", A100) == "/device:CPU:0"
    assert on("/GPU:0", A100) == ""
    assert on("/GPU:0", CPU) == "/device:GPU:0"
    assert on("/CPU:0", CPU) == ""
    alone = frozenset({"CPU"})
    assert on("/GPU:0", CPU, alone) == "", "without a GPU it is called on the CPU"


def test_what_attributes_delimit_for_xla_holds_the_module() -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.xla.experimental.compile(lambda x: tf.matmul(x, x), [x])[0]

    for build, held in ((fn, "computation"), (lambda x: tf.matmul(x, x), "")):
        module, _ = traced(build, spec(8, 8))
        context = contexts(module, settled(), NONE, NONE)(
            FunctionUse(module.main.name, xla=False)
        )
        assert (context.held.rule if context.held else "") == held
