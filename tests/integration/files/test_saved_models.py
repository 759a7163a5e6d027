"""A rewritten SavedModel has the interface it had, and TensorFlow alone loads it.

Models have values of one sign, so that no sum cancels and an error relative to each
rounded tensor bounds that of the result.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from amp.integration.files import explained_files, graph_files, targets
from amp.integration.files.explained_files import Asked
from amp.policy import Policy

v1 = tf.compat.v1
NATIVE = Policy(dtype="bfloat16", assignment="all")
EMULATED = Policy(dtype="bfloat16", assignment="all", emulate=True)
ROUNDING = 2.0**-8  # the largest relative error of a rounding to bfloat16
# Of at most 10 roundings on any way from an input to a result, each multiplies a
# positive value by at most 1 + ROUNDING; a sigmoid of a positive value, and a product
# of two rounded factors, are of degree 2 at most. float32 sums add far less than 1.
BOUND = (1 + ROUNDING) ** 21 - 1


class Model(tf.Module):
    """Nested functions, a custom gradient, a loop, a table, and a step of training."""

    def __init__(self, vocabulary: str) -> None:
        super().__init__()
        draw = np.random.default_rng(0)
        self.w = tf.Variable(draw.uniform(0.1, 1, [8, 8]).astype(np.float32) / 8)
        self.v = tf.Variable(draw.uniform(0.1, 1, [8, 8]).astype(np.float32) / 8)
        lines = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        source = tf.lookup.TextFileInitializer(
            vocabulary, tf.string, lines[0], tf.int64, lines[1]
        )
        self.table = tf.lookup.StaticVocabularyTable(source, 1)

    @tf.function(input_signature=[tf.TensorSpec([None, 8], name="x")])
    def __call__(self, x: Any) -> Any:
        return tf.matmul(tf.nn.silu(tf.matmul(x, self.w)), self.v)

    @tf.function(input_signature=[tf.TensorSpec([None, 8], name="x")])
    def outer(self, x: Any) -> Any:
        return {"y": self(x), "rows": tf.shape(x)[0]}

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([4, 8], name="x")])
    def loop(self, x: Any) -> Any:
        w = self.w.read_value()
        turned = tf.while_loop(
            lambda i, _: i < 2, lambda i, x: (i + 1, tf.matmul(x, w)), [0, x]
        )
        return {"y": turned[1]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
    def words(self, words: Any) -> Any:
        return {"y": self(tf.one_hot(self.table.lookup(words), 8))}

    @tf.function(input_signature=[tf.TensorSpec([4, 8], name="x")])
    def train(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x))
        for variable, gradient in zip(
            (self.w, self.v), tape.gradient(loss, [self.w, self.v]), strict=True
        ):
            variable.assign_add(0.1 * gradient)
        return {"loss": loss, "w": self.w + 0.0}


# Loads models where this package cannot be imported, and tells what they give.
CALL = """
import json, sys
sys.modules["amp"] = None
import numpy as np, tensorflow as tf
told = {}
for place in sys.argv[1:]:
    loaded = tf.saved_model.load(place)
    told[place] = mine = {}
    for name, function in loaded.signatures.items():
        specs = function.structured_input_signature[1]
        x = np.random.default_rng(1).uniform(0.1, 1, [4, 8]).astype("f")
        given = {n: tf.constant(["a", "c", "none"] if s.dtype == tf.string else x)
                 for n, s in specs.items()}
        made = function(**given)
        types = {n: str(s) for n, s in (*specs.items(), *sorted(made.items()))
                 if n in specs}
        types |= {n: [t.dtype.name, str(function.structured_outputs[n].shape)]
                  for n, t in made.items()}
        mine[name] = [types, {n: t.numpy().tolist() for n, t in made.items()}]
    if hasattr(loaded, "outer"):
        with tf.GradientTape() as tape:
            sum = tf.reduce_sum(loaded.outer(tf.ones([4, 8]))["y"])
        gradients = tape.gradient(sum, [loaded.w, loaded.v])
        mine["gradients"] = [{}, {str(i): g.numpy().tolist()
                                  for i, g in enumerate(gradients)}]
print(json.dumps(told))
"""


def called(*places: Path) -> list[dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", CALL, *map(str, places)],
        env=environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return [told[str(place)] for place in places]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("saved")
    (place / "vocabulary").write_text("a\nb\nc\n")
    model = Model(str(place / "vocabulary"))
    names = ("outer", "loop", "words", "train")
    signatures = {name: getattr(model, name) for name in names}
    signatures["serving_default"] = model.__call__
    tf.saved_model.save(model, str(place / "model"), signatures=signatures)
    (place / "vocabulary").unlink()  # the model brings its own
    return place


def low_functions(place: Path) -> set[str]:
    """The functions of a SavedModel that hold 16-bit tensors, or rounded ones."""
    (meta,) = targets.read_model(place).meta_graphs
    return {
        function.signature.name
        for function in meta.graph_def.library.function
        if any(node.attr["DstT"].type == 14 for node in function.node_def)
    }


@pytest.mark.slow
@pytest.mark.processes
def test_every_signature_keeps_its_names_types_and_values(saved: Path) -> None:
    places = [saved / "model", saved / "native", saved / "emulated"]
    for place, policy in zip(places[1:], (NATIVE, EMULATED), strict=True):
        told = graph_files.rewrite(places[0], place, policy, [], [])
        assert "functions rewritten" in told
        names = "".join(low_functions(place))
        for name in ("__call__", "loop", "train"):
            assert name in names
        assert not any("signature_wrapper" in n for n in low_functions(place))
        read = tf.saved_model.experimental.read_fingerprint(str(place))
        before = tf.saved_model.experimental.read_fingerprint(str(places[0]))
        assert read.checkpoint_hash == before.checkpoint_hash
        assert read.saved_model_checksum != before.saved_model_checksum
        data = "variables/variables.data-00000-of-00001"
        assert (place / data).read_bytes() == (places[0] / data).read_bytes()
    original, *rewritten = called(*places)
    for made in rewritten:
        assert made.keys() == original.keys()
        for name, (types, values) in original.items():
            assert made[name][0] == types
            for output, value in values.items():
                assert np.allclose(made[name][1][output], value, rtol=BOUND, atol=0)
        assert made["loop"] != original["loop"]  # so it did run in 16 bits


def test_a_second_rewrite_changes_nothing(saved: Path) -> None:
    first, second = saved / "first", saved / "second"
    graph_files.rewrite(saved / "model", first, NATIVE, [], [])
    graph_files.rewrite(first, second, NATIVE, [], [])
    (one,), (two,) = (targets.read_model(p).meta_graphs for p in (first, second))
    assert one.graph_def == two.graph_def


def test_a_server_needs_no_xla(saved: Path) -> None:
    out = saved / "plain"
    graph_files.rewrite(saved / "model", out, NATIVE, [], [])
    (meta,) = targets.read_model(out).meta_graphs
    assert not any("_XlaMustCompile" in f.attr for f in meta.graph_def.library.function)
    listed = {op.name for op in meta.meta_info_def.stripped_op_list.op}
    assert {"Cast", "MatMul"} <= listed


def test_nothing_is_executed(tmp_path: Path) -> None:
    module, trace = tf.Module(), tmp_path / "trace"

    @tf.function(input_signature=[tf.TensorSpec([4, 4])])
    def f(x: Any) -> Any:
        with tf.control_dependencies([tf.io.write_file(str(trace), "run")]):
            return tf.matmul(x, x)

    module.f = f
    tf.saved_model.save(module, str(tmp_path / "in"))
    graph_files.rewrite(tmp_path / "in", tmp_path / "out", NATIVE, [], [])
    asked = Asked(NATIVE, signature="serving_default")
    explained_files.explain(tmp_path / "in", asked)
    assert not trace.exists()
    assert low_functions(tmp_path / "out")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel of TensorFlow 1: two graphs, both kinds of variables, a v1 loop."""
    place = tmp_path_factory.mktemp("old")
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 8], name="x")
        start = np.random.default_rng(0).uniform(0.1, 1, [8, 8]).astype(np.float32)
        w = v1.Variable(start / 8, use_resource=False, name="w")
        v = v1.Variable(start / 8, use_resource=True, name="v")
        y = tf.matmul(tf.nn.relu(tf.matmul(x, w), name="hidden"), v, name="y")
        _, turned = v1.while_loop(
            lambda i, _: i < 2, lambda i, x: (i + 1, tf.matmul(x, v)), [0, y]
        )
        z = tf.identity(turned, name="z")
        v1.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_mean(y), name="step")
        session.run(v1.global_variables_initializer())
        predict = v1.saved_model.predict_signature_def
        signatures = {
            "serving_default": predict({"x": x}, {"y": y, "z": z}),
            "tail": predict(
                {"h": session.graph.get_tensor_by_name("hidden:0")}, {"y": y}
            ),
        }
        builder = v1.saved_model.Builder(str(place / "model"))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.add_meta_graph(["train", "gpu"], signatures)
        builder.save()
    return place


def test_every_graph_of_an_old_saved_model_is_rewritten(old: Path) -> None:
    out = old / "out"
    assert "2 of 2 functions rewritten" in graph_files.rewrite(
        old / "model", out, NATIVE, [], []
    )
    x = np.random.default_rng(1).uniform(0.1, 1, [4, 8]).astype(np.float32)
    for tags in (["serve"], ["train", "gpu"]):
        given = []
        for place in (old / "model", out):
            with tf.Graph().as_default() as graph, v1.Session() as session:
                v1.saved_model.load(session, tags, str(place))
                values = session.run(["y:0", "z:0"], {"x:0": x})
                tail = session.run("y:0", {"hidden:0": x})
                assert all(v.value().dtype == tf.float32 for v in v1.global_variables())
                session.run("step", {"x:0": x})
                after = session.run(v1.trainable_variables())
                given.append([*values, tail, *after])
                low = [n for n in graph.as_graph_def().node if n.attr["T"].type == 14]
                assert bool(low) == (place == out)
        for before, now in zip(*given, strict=True):
            assert now.dtype == np.float32
            assert np.allclose(now, before, rtol=BOUND, atol=0)


def test_a_model_without_signatures_is_explained_by_its_functions(
    tmp_path: Path,
) -> None:
    module = tf.Module()
    module.w = tf.Variable(tf.ones([4, 4]))
    module.f = tf.function(lambda x: tf.matmul(x, module.w))
    for rows in (2, 3):
        module.f.get_concrete_function(tf.TensorSpec([rows, 4]))
    tf.saved_model.save(module, str(tmp_path / "in"))
    report = explained_files.explain(tmp_path / "in", Asked(NATIVE))
    assert (
        sum(d.op == "MatMul" and d.dtype == "bfloat16" for d in report.decisions) == 2
    )


def test_explain_looks_at_one_signature(saved: Path, old: Path) -> None:
    for place, tags in ((saved, None), (old, "gpu,train")):
        asked = Asked(EMULATED, tags=tags)
        whole = explained_files.explain(place / "model", asked)
        asked = dataclasses.replace(asked, signature="serving_default")
        part = explained_files.explain(place / "model", asked)
        assert 0 < part.nodes_low <= whole.nodes_low
        assert part.nodes_total < whole.nodes_total
