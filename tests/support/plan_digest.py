"""Whether plans are what they were: a digest of every decision, graph and report.

A program anyone can run, before and after a change that is to change no plan::

    PYTHONPATH=. python tests/support/plan_digest.py --out before.json
    PYTHONPATH=. python tests/support/plan_digest.py --against before.json

It traces a training step of every model in models/ (with loss scaling and its markers)
and builds 200 random graphs, rewrites each for several devices and policies, and writes
one digest for the decisions (node, op, type, rule, cause), one for the rewritten graph
and one for the report. Nothing is run; two runs of one version give the same digests.
A step that was traced to another graph, as where a model has changed, is told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import random_graphs
import tensorflow as tf
from rewriting import CPU
from tensorflow.python.eager import context as context_lib

import amp
from amp.errors import AmpError
from amp.graph_rewrite.cost import device as devices
from amp.graph_rewrite.cost import resolution, shipped_devices
from amp.graph_rewrite.graph import ir, op_schema, serde
from amp.graph_rewrite.rewrite import Rewrite, rewrite
from amp.integration.runtime import definitions
from amp.loss_scaling import stalls
from amp.policy import Policy
from models import (
    bert,
    faster_rcnn,
    fcn,
    lstm_lm,
    lstm_nmt,
    mlp,
    mobilenet_v2,
    progressive_gan,
    resnet,
    ssd,
    transformer,
    transformer_nmt,
    unet,
    wide_deep,
)

RANDOM_GRAPHS = 200
BATCH = 4

Loss = Callable[[], tf.Tensor]


def supervised(module: ModuleType) -> tuple[keras.Model, Loss]:
    model = module.build()
    x, y = module.example_batch(BATCH, seed=1)
    x, y = keras.tree.map_structure(tf.convert_to_tensor, (x, y))
    loss = module.LOSS()
    return model, lambda: loss(y, model(x, training=True))


def detector(module: ModuleType) -> tuple[keras.Model, Loss]:
    model = module.build()
    images, targets = module.example_batch(BATCH, seed=1)
    batch = [tf.convert_to_tensor(x) for x in (images, *targets)]
    return model, lambda: module.loss(model, *batch, tf.constant([0, 0]))


def judged(module: ModuleType) -> tuple[keras.Model, Loss]:
    gan = module.build()
    images, latents = map(tf.convert_to_tensor, module.example_batch(BATCH, seed=1))
    places = tf.random.stateless_uniform([BATCH, 1, 1, 1], [0, 1])

    def loss() -> tf.Tensor:
        return module.discriminator_loss(
            gan, images, (latents, places), stage=2, alpha=tf.constant(1.0)
        )

    return gan.discriminator, loss


SUPERVISED = (bert, fcn, lstm_lm, lstm_nmt, mlp, mobilenet_v2, resnet, ssd)
SUPERVISED += (transformer, transformer_nmt, unet, wide_deep)
MODELS: dict[ModuleType, Callable[[ModuleType], tuple[keras.Model, Loss]]] = {
    **dict.fromkeys(SUPERVISED, supervised),
    faster_rcnn: detector,
    progressive_gan: judged,
}
COMPILED = (mlp, transformer)  # traced for XLA as well


def traced(module: ModuleType, xla: bool, scaled: bool = True) -> ir.Module:
    """A training step as it is traced where gradients are scaled, or are not.

    Keras numbers layers and optimizers from 1 again, so that no name depends on the
    models traced before.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model, loss = MODELS[module](module)
    optimizer = keras.optimizers.Adam(1e-3)
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(jit_compile=xla, autograph=False)
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss()
        optimizer.apply(tape.gradient(value, variables), variables)
        return value

    scope = amp.mixed_precision_scope(dtype="float16", emulate=True)
    with scope if scaled else contextlib.nullcontext():
        concrete = step.get_concrete_function()
    return definitions.read(context_lib.context(), concrete.name)


GPU = shipped_devices.of_gpu("NVIDIA A100-SXM4-40GB", (8, 0))
CONFIGURATIONS: dict[str, tuple[devices.Device, dict[str, Any]]] = {
    "amx": (shipped_devices.CPU_AMX, {"dtype": "bfloat16"}),
    "every candidate": (CPU, {"dtype": "bfloat16", "assignment": "all"}),
    "float16": (CPU, {"dtype": "float16", "min_gain": 0.0}),
    "emulated": (shipped_devices.CPU_AMX, {"dtype": "float16", "emulate": True}),
    "gpu": (GPU, {"dtype": "float16"}),
}


def digest(text: str, functions: Collection[str] = ()) -> str:
    """Of a text in which functions are named by the order in which they appear.

    TensorFlow numbers them, and custom gradients, together with all else that a process
    makes. Some arguments are named after functions.
    """
    found: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        name = match[0]
        return (
            found.setdefault(name, f"function {len(found)}") if name in known else name
        )

    known = frozenset(functions)
    text = _WORD.sub(named, _NUMBER.sub("", text))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"(?<=CustomGradient)-\d+|_\d+(?=___redundant_placeholder)")


def written(module: ir.Module) -> str:
    """The text of all that a module holds, in its own order."""
    lookup = op_schema.lookup_of(module)
    functions = list(module.functions.values())
    protos = [serde.write_function(graph, lookup) for graph in functions]
    if module.main.name:
        protos.append(serde.write_function(module.main, lookup))
    else:
        protos.append(serde.write_graph(ir.Module(module.main, {})))
    return "".join(map(str, protos))


def digests(result: Rewrite) -> dict[str, Any]:
    decisions = [
        (d.node, d.op, d.dtype, d.rule, d.cause) for d in result.report.decisions
    ]
    names = [graph.name for graph in result.graph.graphs()]
    return {
        "nodes_low": result.report.nodes_low,
        "decisions": digest(json.dumps(decisions), names),
        "graph": digest(written(result.graph), names),
        "report": digest(result.report.to_json(), names),
    }


def outcome(module: ir.Module, settled: resolution.Resolution) -> dict[str, Any]:
    try:
        return digests(rewrite(module, settled, fetches=ends(module)))
    except AmpError as e:  # a refusal is to stay the same one
        return {"refused": f"{type(e).__name__}: {e.found}"}


def cases() -> Iterator[tuple[str, ir.Module]]:
    for module in MODELS:
        name = module.__name__.partition(".")[2]
        yield name, traced(module, xla=False)
        if module in COMPILED:
            yield f"{name} under XLA", traced(module, xla=True)
    for seed in range(RANDOM_GRAPHS):
        yield f"random {seed}", random_graphs.module(seed)


def ends(module: ir.Module) -> frozenset[str]:
    if module.main.name:
        return frozenset()
    return frozenset(module.main.nodes.keys() - {e[0] for e in module.main.readers})


def record() -> tuple[dict[str, str], dict[str, Any]]:
    """The digests of the graphs as traced, and of what came of them."""
    given, found = {}, {}
    for name, module in cases():
        given[name] = digest(written(module), [g.name for g in module.graphs()])
        for label, (device, fields) in CONFIGURATIONS.items():
            settled = resolution.resolve(Policy(**fields), device)
            found[f"{name} / {label}"] = outcome(module, settled)
        print(name, file=sys.stderr, flush=True)
    return given, found


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="file to write the digests to")
    parser.add_argument("--against", type=Path, help="file to compare them with")
    args = parser.parse_args()
    os.environ["AMP_CACHE_DIR"] = (
        "/dev/null/nowhere"  # plans come from the model's figures alone
    )
    os.environ["AMP_TUNE_BUDGET"] = "0"
    # A thread that reads the loss scale meanwhile would number functions differently.
    stalls.PERIOD = 1e6
    given, made = record()
    found = {"versions": versions(), "given": given, "digests": made}
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    if not args.against:
        return 0
    before = json.loads(args.against.read_text())
    if before["versions"] != found["versions"]:
        print(f"made with {before['versions']}, not with {found['versions']}")
        return 2
    known = before.get("given", {})
    for name in sorted(n for n in given if given[n] != known.get(n, given[n])):
        print(f"{name}: traced to another graph")
    names = before["digests"].keys() | found["digests"].keys()
    changed = 0
    for name in sorted(names):
        old = before["digests"].get(name, {})
        new = found["digests"].get(name, {})
        parts = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        if parts:
            changed += 1
            print(f"{name}: other {', '.join(sorted(parts))}")
    print(f"{changed} of {len(names)} plans changed")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
